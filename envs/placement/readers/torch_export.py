"""Dataflow graphs of a user's ``torch.nn.Module``, captured by ``torch.export``."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from ...errors import GraphError, HadopplerError, MissingExtraError
from ..graph import DataflowGraph
from .capture_errors import explain, quiet

if TYPE_CHECKING:
    import torch
    from torch import fx
    from torch.export import ExportedProgram


Rename = Callable[[str, str], str]


@dataclass
class Captured:
    """A module as an ``fx`` graph of ATen operators without side effects.

    Attributes:
        title: class name of the module.
        graph: the operators.
        inputs: placeholder or attribute node -> (name, role); nodes that share a parameter share a name.
        outputs: (name, node) of every tensor that the graph returns.
        mutated: names of inputs that the module changes -> the node that holds the new value.
        constants: values of the inputs of role ``constant``, by name.
    """

    title: str
    graph: fx.Graph
    inputs: dict[fx.Node, tuple[str, str]] = field(default_factory=dict)
    outputs: list[tuple[str, fx.Node]] = field(default_factory=list)
    mutated: dict[str, fx.Node] = field(default_factory=dict)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)


def from_module(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    training: bool = False,
    title: str | None = None,
) -> DataflowGraph:
    """The dataflow graph of one call ``module(*args, **kwargs)``, with an executable kernel per operation.

    Nothing is computed: modules and arguments may lie on the ``meta`` device.

    Graph inputs: parameters and buffers that are used (by their qualified name; shared ones once),
    the tensors among the arguments (by their parameter name), constants written in the code, and
    with ``training`` one ``tangent_i`` per differentiable output (the gradient of the loss with
    respect to ``output_i``; 1 where the module returns its loss).

    Graph outputs: ``output_i`` (numbered over all values that the call returns, tensors only), the
    new value of every buffer or argument that the call changes in place (under its own name), and
    with ``training`` a gradient ``grad.NAME`` of every input that requires one.

    FLOPs come from torch's own formulas (equal to ``FlopCounterMode``; attention as for torch's plain
    implementation); other operations count one per element read or written, copies none. Views cost
    nothing and are no operations. Scaled dot-product attention stays one operation in a forward
    graph, and is products and a softmax in a training graph.

    Args:
        training: forward and backward instead of forward only. Dropout and batch normalisation
            follow ``module.training``, as ever.
        title: by default the module's class name.

    Raises:
        GraphError: the module cannot be captured as a static graph, with a way out.
        MissingExtraError: torch is not installed.
    """
    from .fx_graph import translate

    return translate(capture(module, args, kwargs, training=training), title)


def capture(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, training: bool = False
) -> Captured:
    """Capture a module as ATen operators; see ``from_module``."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("from_module needs torch; install hadoppler[torch].") from error
    if not isinstance(module, torch.nn.Module):
        raise GraphError(f"from_module got a {type(module).__name__}; expected a torch.nn.Module.")
    if not isinstance(args, tuple | list):
        raise GraphError(f"{type(module).__name__}: args is a {type(args).__name__}; give a tuple of arguments.")
    ordered = {key: (kwargs or {})[key] for key in sorted(kwargs or {})}
    with quiet(), _without_onednn() if training else contextlib.nullcontext():
        try:
            neutral, given, named = _on_fake_cpu(module, *_all_different(tuple(args), ordered))
            program = torch.export.export(neutral, given, named, strict=False)
            rename = _renaming(module)
            captured = _joint(program, given, named, rename) if training else _forward(program, rename)
        except HadopplerError:
            raise
        except Exception as error:
            raise explain(error, module, training) from error
    captured.title = type(module).__name__
    captured.graph.eliminate_dead_code()
    return captured


def _without_onednn() -> contextlib.AbstractContextManager[None]:
    """While a training graph is captured: oneDNN's recurrent layers hand their backward pass a workspace that is no
    tensor where they do without it; torch's own operators, step by step, give the same values."""
    import torch

    found: contextlib.AbstractContextManager[None] = torch.backends.mkldnn.flags(enabled=False)
    return found


def _all_different(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments in which no tensor stands twice: the tracer would take both places for one input."""
    import torch
    from torch.utils._pytree import tree_map

    seen: set[int] = set()

    def different(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) not in seen:
            seen.add(id(value))
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    found: tuple[tuple[Any, ...], dict[str, Any]] = tree_map(different, (args, kwargs))
    return found


def _on_fake_cpu(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """Module and arguments with every tensor on the CPU, so that the graph does not depend on the device.

    Where one lies elsewhere (``meta`` too), all become fake CPU tensors that hold no data; the
    caller's module is left as it is.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._pytree import tree_leaves, tree_map

    tensors = [*module.parameters(), *module.buffers(), *tree_leaves((args, kwargs))]
    if all(value.device.type == "cpu" for value in tensors if isinstance(value, torch.Tensor)):
        return module, args, kwargs
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        if isinstance(value, torch.nn.Parameter):
            return torch.nn.Parameter(empty, value.requires_grad)
        return empty.requires_grad_(value.requires_grad)

    memo = {id(value): fake(value) for value in [*module.parameters(), *module.buffers()]}
    given, named = tree_map(fake, (args, kwargs))
    return copy.deepcopy(module, memo), given, named


@cache
def _decompositions() -> dict[Any, Any]:
    """torch's own decompositions, except that attention stays one operation."""
    import torch

    table: Any = torch.export.default_decompositions()
    table.pop(torch.ops.aten.scaled_dot_product_attention.default, None)
    return dict(table.items())


def _forward(program: ExportedProgram, rename: Rename) -> Captured:
    """Decompose the exported program and name its inputs and outputs."""
    program = program.run_decompositions(dict(_decompositions()))
    captured = Captured("", program.graph)
    roles = {"PARAMETER": "parameter", "BUFFER": "buffer", "CONSTANT_TENSOR": "constant", "USER_INPUT": "input"}
    nodes = {node.name: node for node in program.graph.nodes}
    for spec in program.graph_signature.input_specs:
        node, role = nodes.get(getattr(spec.arg, "name", "")), roles.get(spec.kind.name)
        if node is not None and role is not None:
            name = rename(spec.target or spec.arg.name, role)
            captured.inputs[node] = (name, role)
            if role == "constant":
                captured.constants[name] = program.constants[spec.target]
    position = 0
    for spec in program.graph_signature.output_specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        if spec.kind.name == "USER_OUTPUT":
            if node is not None:
                captured.outputs.append((f"output_{position}", node))
            position += 1
        elif node is not None:
            role = "input" if spec.kind.name == "USER_INPUT_MUTATION" else "buffer"
            captured.mutated[rename(spec.target, role)] = node
    return captured


def _joint(program: ExportedProgram, args: tuple[Any, ...], kwargs: dict[str, Any], rename: Rename) -> Captured:
    """Trace forward and backward as one graph and name its inputs and outputs."""
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with contextlib.ExitStack() as stack, sdpa_kernel(SDPBackend.MATH):
        joint = aot_export_joint_with_descriptors(
            stack, program.module(), args, kwargs, decompositions=dict(_decompositions())
        )
    arguments = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]

    def name_of(desc: Any, fallback: str = "") -> str:
        return rename(*_describe(desc, fallback, arguments))

    captured = Captured("", joint.graph_module.graph)
    for node in captured.graph.nodes:
        if node.op == "placeholder":
            desc = node.meta.get("desc")
            captured.inputs[node] = (name_of(desc, node.name), _describe(desc, node.name, arguments)[1])
        elif node.op == "get_attr":
            name = rename(str(node.target), "constant")
            captured.inputs[node] = (name, "constant")
            captured.constants[name] = getattr(joint.graph_module, node.target)
        elif node.op == "output":
            _name_results(captured, node, name_of)
    if not any(name.startswith("grad.") for name, _ in captured.outputs):
        raise GraphError(
            "A training graph needs an output that depends on a parameter with requires_grad; there is none, so "
            "capture with training=False or turn requires_grad on."
        )
    return captured


def _name_results(captured: Captured, output: fx.Node, name_of: Callable[[Any], str]) -> None:
    """Outputs, gradients and changed inputs of a joint graph, from torch's descriptors."""
    for value, desc in zip(output.args[0], output.meta["desc"], strict=True):  # type: ignore[arg-type]
        kind = type(desc).__name__
        if not hasattr(value, "meta"):
            continue
        if kind == "InputMutationAOTOutput":
            captured.mutated[name_of(desc.mutated_input)] = value
        elif kind == "GradAOTOutput":
            captured.outputs.append((f"grad.{name_of(desc.grad_of)}", value))
        else:
            captured.outputs.append((f"output_{getattr(desc, 'idx', len(captured.outputs))}", value))


def _describe(desc: Any, fallback: str, arguments: list[str]) -> tuple[str, str]:
    """Name and role of an input of the joint graph, from torch's descriptor."""
    kind = type(desc).__name__
    if kind in ("ParamAOTInput", "BufferAOTInput"):
        return desc.target, "parameter" if kind == "ParamAOTInput" else "buffer"
    if kind == "PlainAOTInput":
        return arguments[desc.idx], "input"
    if kind == "TangentAOTInput":
        return f"tangent_{getattr(desc.output, 'idx', fallback)}", "tangent"
    return fallback, "input"


def _renaming(module: torch.nn.Module) -> Rename:
    """(name, role) -> distinct name: state has that of its first owner, others make way for it."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    owner = {name: first.setdefault(id(value), name) for name, value in named}

    def rename(name: str, role: str) -> str:
        if role in ("parameter", "buffer"):
            return owner.get(name, name)
        return f"{role}.{name}" if name in owner else name

    return rename
