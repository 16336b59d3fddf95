"""Sharded tensor programs: exact numbers for any cuts, and the operations and costs that they append."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from hadoppler.envs.errors import GraphError
from hadoppler.envs.placement.interpreter import join_tiles, run
from hadoppler.envs.placement.kernel import Kernel, Reference, TensorType, decode, encode
from hadoppler.envs.placement.workloads.normalisation import layer_norm, log_softmax, rms_norm, softmax
from hadoppler.envs.placement.workloads.sharded_tensor import balanced_factors, boundaries
from hadoppler.envs.placement.workloads.tensor_program import ShardedTensor, TensorProgram

torch = pytest.importorskip("torch", reason="kernels run with torch")
COMBINE = ["single", "chain", "tree"]
exact = settings(max_examples=40, deadline=None)


@st.composite
def cut_of(draw: st.DrawFn, size: int) -> tuple[int, ...]:
    """Any boundary list of a dimension."""
    inner = draw(st.sets(st.integers(1, size - 1), max_size=3)) if size > 1 else set()
    return (0, *sorted(inner), size)


@st.composite
def cut_tensor(draw: st.DrawFn, dims: int) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], ...]]]:
    """A shape and two ways to cut it."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=dims, max_size=dims)))
    return shape, [tuple(draw(cut_of(size)) for size in shape) for _ in range(2)]


def values(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def evaluate(program: TensorProgram, tensor: ShardedTensor, **inputs: torch.Tensor) -> torch.Tensor:
    """Run the program so far and put the tensor together; also checks that tiles have their shapes."""
    graph = program.finish({"result": tensor})
    outputs = run(graph, inputs)
    shapes = [tuple(tile.shape) for tile in outputs.values()]
    assert shapes == [tuple(b - a for a, b in region) for region in tensor.regions()]
    return join_tiles(outputs)["result"]


def with_input(shape: tuple[int, ...], cuts: tuple, name: str = "x") -> tuple[TensorProgram, ShardedTensor]:
    program = TensorProgram()
    return program, program.input(name, shape, cuts, "float64")


def test_boundaries_split_evenly_or_as_given() -> None:
    assert boundaries(10, 3) == (0, 3, 6, 10)
    assert boundaries(10, (0, 7, 10)) == (0, 7, 10)
    for bad in (0, 11, (0, 7), (1, 10), (0, 5, 5, 10)):
        with pytest.raises(GraphError):
            boundaries(10, bad)


@pytest.mark.parametrize(
    ("number", "parts", "factors"),
    [(16, 3, (4, 2, 2)), (32, 3, (4, 4, 2)), (16, 2, (4, 4)), (32, 2, (8, 4)), (6, 3, (3, 2, 1)), (1, 2, (1, 1))],
)
def test_balanced_factors(number: int, parts: int, factors: tuple[int, ...]) -> None:
    assert balanced_factors(number, parts) == factors


@exact
@given(cut_tensor(2), cut_tensor(2), st.sampled_from(COMBINE), st.booleans(), st.data())
def test_product_is_exact_for_any_cuts(left, right, combine, form_singles, data) -> None:
    (m, k), (a_cuts, _) = left
    n, b_cuts = right[0][1], (data.draw(cut_of(k)), right[1][0][1])
    cuts = tuple(data.draw(st.none() | cut_of(size)) for size in (m, k, n))
    program = TensorProgram(combine=combine, form_singles=form_singles)
    a = program.input("a", (m, k), a_cuts, "float64")
    b = program.input("b", (k, n), b_cuts, "float64")
    x, y = values(m, k), values(k, n, seed=1)
    torch.testing.assert_close(evaluate(program, program.product(a, b, cuts), a=x, b=y), x @ y)


@exact
@given(cut_tensor(3))
def test_reform_is_exact_and_free_within_tiles(drawn) -> None:
    shape, (before, after) = drawn
    program, tensor = with_input(shape, before)
    formed = program.reform(program.copy(tensor, before), after)
    contained = all(set(old) <= set(new) for old, new in zip(before, after, strict=True))
    assert (len(program.builder.kernels) == len(tensor.tiles)) == contained
    x = values(*shape)
    assert torch.equal(evaluate(program, formed, x=x), x)
    assert torch.equal(evaluate(program, program.gather(formed), x=x), x)


@exact
@given(cut_tensor(3), st.integers(-3, 2), st.sampled_from(COMBINE), st.sampled_from([softmax, log_softmax]))
def test_softmax_is_exact_across_tiles(drawn, dim, combine, function) -> None:
    shape, (before, cuts) = drawn
    program = TensorProgram(combine=combine)
    tensor = program.input("x", shape, before, "float64")
    x = values(*shape)
    dense = getattr(torch.nn.functional, function.__name__)
    torch.testing.assert_close(evaluate(program, function(program, tensor, dim, cuts), x=x), dense(x, dim))


@exact
@given(
    cut_tensor(3),
    st.sampled_from(["sum", "mean", "amax", "amin"]),
    st.sets(st.integers(0, 2), min_size=1),
    st.booleans(),
)
def test_reductions_are_exact(drawn, reduction, dims, keepdim) -> None:
    shape, (before, cuts) = drawn
    program, tensor = with_input(shape, before)
    x = values(*shape)
    got = evaluate(program, program.reduce(reduction, tensor, sorted(dims), keepdim, cuts), x=x)
    torch.testing.assert_close(got, getattr(torch, reduction)(x, dim=sorted(dims), keepdim=keepdim))


@exact
@given(cut_tensor(2), st.booleans(), st.data())
def test_normalisations_are_exact(drawn, layered, data) -> None:
    shape, (before, cuts) = drawn
    program, tensor = with_input(shape, before)
    weight = program.input("w", shape[1:], (data.draw(cut_of(shape[1])),), "float64")
    bias = program.input("b", shape[1:], None, "float64")
    x, w, b = values(*shape), values(shape[1], seed=1), values(shape[1], seed=2)
    if layered:
        got = evaluate(program, layer_norm(program, tensor, weight, bias, cuts=cuts), x=x, w=w, b=b)
        torch.testing.assert_close(got, torch.nn.functional.layer_norm(x, shape[1:], w, b))
    else:
        got = evaluate(program, rms_norm(program, tensor, weight, 1e-6, cuts), x=x, w=w, b=b)
        torch.testing.assert_close(got, torch.nn.functional.rms_norm(x, shape[1:], w, 1e-6))


@exact
@given(cut_tensor(3), st.permutations(range(3)), st.sampled_from([(-1,), (2, -1), (-1, 2), (1, -1, 1)]))
def test_permute_then_reshape(drawn, dims, shape) -> None:
    (first, second, _), (before, _) = drawn
    before = (*before[:2], (0, 2, 4))
    x = values(first, second, 4)
    program, tensor = with_input((first, second, 4), before)
    wanted = x.permute(dims).reshape(shape)
    moved = program.permute(program.elementwise("aten.neg.default", tensor), dims)
    got = evaluate(program, program.reshape(moved, tuple(wanted.shape)), x=-x)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize(
    ("shape", "cuts", "new", "grid", "views"),
    [
        ((8, 6), (4, 1), (8, 2, 3), (4, 1, 1), "aten.view.default"),
        ((8, 6), (2, 3), (8, 3, 2), (2, 3, 1), "aten.view.default"),
        ((4, 2, 6), (4, 1, 3), (8, 6), (4, 3), "aten.reshape.default"),
        ((6,), (3,), (1, 6, 1), (1, 3, 1), "aten.view.default"),
    ],
)
def test_reshape_that_maps_tiles_to_tiles_is_free(shape, cuts, new, grid, views) -> None:
    program, tensor = with_input(shape, cuts)
    reshaped = program.reshape(tensor, new)
    assert reshaped.grid == grid
    assert not program.builder.kernels
    assert {tile.views[-1].target for tile in reshaped.tiles} == {views}


@pytest.mark.parametrize(
    ("equation", "target"),
    [
        ("mk,kn->mn", "aten.mm.default"),
        ("km,kn->nm", "aten.mm.default"),
        ("bmk,bkn->bmn", "aten.bmm.default"),
        ("mbk,bnk->bnm", "aten.bmm.default"),
        ("k,kn->n", "aten.mv.default"),
        ("mk,k->m", "aten.mv.default"),
        ("mkl,lkn->mn", "aten.tensordot.default"),
        ("k,k->", "aten.tensordot.default"),
        ("abmk,abkn->abmn", "aten.einsum.default"),
        ("m,n->mn", "aten.einsum.default"),
    ],
)
def test_einsum_is_exact_and_uses_the_simplest_kernel(equation: str, target: str) -> None:
    sizes = dict(zip("abmknl", (2, 3, 5, 6, 4, 2), strict=True))
    letters = equation.partition("->")[0].split(",")
    program = TensorProgram()
    shapes = [tuple(sizes[letter] for letter in group) for group in letters]
    a, b = (program.input(n, s, [2] * len(s), "float64") for n, s in zip("ab", shapes, strict=True))
    result = program.einsum(equation, a, b, {equation[0]: 1})
    assert {kernel.target for kernel in program.builder.kernels} - {"aten.add.Tensor"} == {target}
    x, y = values(*shapes[0]), values(*shapes[1], seed=1)
    torch.testing.assert_close(evaluate(program, result, a=x, b=y), torch.einsum(equation, x, y))
    flops = sum(f for f, k in zip(*map(program.builder.columns.get, ("flops", "kind")), strict=True) if k == "matmul")
    used = {letter for group in letters for letter in group}
    assert flops == 2 * torch.tensor([sizes[letter] for letter in used]).prod()


@pytest.mark.parametrize("equation", ["mk,kn", "mk,kn->mk", "mm,kn->mn", "mk,jn->mn", "mk,kn->mnz"])
def test_einsum_refuses_what_it_cannot_do(equation: str) -> None:
    program = TensorProgram()
    a, b = program.input("a", (2, 3)), program.input("b", (3, 4))
    with pytest.raises(GraphError):
        program.einsum(equation, a, b)
    with pytest.raises(GraphError, match="no dimension 'q'"):
        program.einsum("mk,kn->mn", a, b, {"q": 2})
    with pytest.raises(GraphError, match="dtypes"):
        program.product(a, program.input("c", (3, 4), dtype="float64"))


@pytest.mark.parametrize(
    ("combine", "form_singles", "inner", "products", "formations"),
    [
        ("single", False, 5, 20, 4),
        ("chain", False, 5, 20, 16),
        ("tree", False, 5, 20, 16),
        ("single", False, 1, 4, 0),
        ("single", True, 1, 4, 4),
        ("tree", True, 2, 8, 4),
    ],
)
def test_formations_are_counted(combine, form_singles, inner, products, formations) -> None:
    program = TensorProgram(combine=combine, form_singles=form_singles)
    a, b = program.input("a", (4, 10), (2, inner)), program.input("b", (10, 6), (inner, 2))
    program.product(a, b)
    kinds = program.builder.columns["kind"]
    assert (kinds.count("matmul"), len(kinds) - kinds.count("matmul")) == (products, formations)


def test_tree_is_shallower_than_chain() -> None:
    depth = {}
    for combine in ("chain", "tree"):
        program = TensorProgram(combine=combine)
        result = program.product(program.input("a", (2, 8), (1, 8)), program.input("b", (8, 2), (8, 1)))
        depth[combine] = int(program.finish([result]).depth.max())
    assert depth == {"chain": 7, "tree": 3}


def test_broadcasting_follows_the_operands() -> None:
    program = TensorProgram()
    a = program.input("a", (4, 1, 6), (2, 1, 3), "float64")
    b = program.input("b", (5, 1), (5, 1), "float64")
    x, y = values(4, 1, 6), values(5, 1, seed=1)
    result = program.elementwise("aten.add.Tensor", a, b, kwargs={"alpha": 2})
    assert result.grid == (2, 5, 3)
    torch.testing.assert_close(evaluate(program, result, a=x, b=y), x + 2 * y)
    with pytest.raises(GraphError, match="do not broadcast"):
        program.elementwise("aten.add.Tensor", a, program.input("c", (3, 7)))
    with pytest.raises(GraphError, match="no tensor"):
        program.elementwise("aten.add.Tensor", 1, 2)


def test_groups_shards_layers_and_costs() -> None:
    program = TensorProgram(layer=3)
    a = program.input("a", (4, 8), (2, 2), "float32", "parameter")
    b = program.input("b", (8, 6), (1, 1))
    result = program.product(a, b, (2, 2, 1), name="ab")
    graph = program.finish({"ab": result}, title="two")
    assert graph.names == ("ab[0]", "ab[1]", "ab[2]", "ab[3]", "ab.form[0]", "ab.form[1]")
    assert graph.group.tolist() == [0, 0, 0, 0, 1, 1]
    assert graph.shard.tolist() == [0, 1, 2, 3, 0, 1]
    assert set(graph.layer.tolist()) == {3}
    assert graph.flops.tolist() == [2 * 2 * 4 * 6] * 4 + [12.0] * 2
    # A 2 x 4 tile of a, half of b and a 2 x 6 result; then three 2 x 6 matrices; 4 bytes each.
    assert graph.bytes_moved.tolist() == [4 * (8 + 24 + 12)] * 4 + [4 * 36] * 2
    assert graph.out_bytes.tolist() == [48.0] * 6
    assert [entry.name for entry in graph.inputs] == ["a[0, 0]", "a[0, 1]", "a[1, 0]", "a[1, 1]", "b"]
    assert [entry.role for entry in graph.inputs][3:] == ["parameter", "input"]
    assert graph.output_names == ("ab[0, 0]", "ab[1, 0]")
    assert graph.e == 4


def test_a_piece_in_several_tiles_is_read_within_the_operation() -> None:
    program, x = with_input((4, 4), (2, 2))
    copied = program.copy(x, (2, 2))
    whole = program.elementwise("aten.relu.default", copied, cuts=(1, 1))
    kernel = program.builder.kernels[-1]
    assert isinstance(kernel.args[0], Kernel)
    assert len(kernel.references()) == 4
    # Four tiles read; two nested rows written and read, the nested whole too; the result written; 8 bytes each.
    assert program.builder.columns["bytes_moved"][-1] == 8 * (16 + 2 * 16 + 2 * 16 + 16)
    assert decode(json.loads(json.dumps(encode(kernel)))) == kernel
    assert program.finish([whole]).e == 4


def test_slices_of_one_tile_are_views() -> None:
    program, x = with_input((8, 4), (2, 1))
    result = program.elementwise("aten.neg.default", x, cuts=(8, 2))
    assert all(isinstance(kernel.args[0], Reference) for kernel in program.builder.kernels)
    assert program.builder.columns["bytes_moved"] == [8.0 * 2 * 2] * 16
    part = result.narrow(0, 1, 6).transpose()
    values_in = values(8, 4)
    assert torch.equal(evaluate(program, part, x=values_in), -values_in[1:6].T)


def test_accumulate_and_cast() -> None:
    program = TensorProgram()
    cuts = [(2, 1), (1, 2), (3, 3)]
    tensors = [program.input(f"x{i}", (3, 4), cut, "float64") for i, cut in enumerate(cuts)]
    inputs = {f"x{i}": values(3, 4, seed=i) for i in range(3)}
    total = program.cast(program.accumulate(tensors), "float32")
    assert total.dtype == "float32"
    torch.testing.assert_close(evaluate(program, total, **inputs), sum(inputs.values()).float())


def test_kernels_outputs_have_their_declared_type() -> None:
    program = TensorProgram()
    x = program.input("x", (4,), (2,), "int64")
    mask = program.elementwise("aten.gt.Scalar", x, 1, dtype="bool")
    assert program.builder.kernels[0].outputs == (TensorType((2,), "bool"),)
    assert evaluate(program, mask, x=torch.arange(4)).tolist() == [False, False, True, True]


def test_reductions_need_a_name_and_a_dimension() -> None:
    program = TensorProgram()
    x = program.input("x", (4, 4))
    with pytest.raises(GraphError, match="no reduction 'median'"):
        program.reduce("median", x, 0)
    with pytest.raises(GraphError, match="no dimension to reduce"):
        program.reduce("sum", x, ())
