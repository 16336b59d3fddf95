"""The whole tensors behind the tiled inputs and outputs of a graph.

A tiled graph has one input or output ``name[i, j]`` per tile of a tensor ``name``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import GraphError
from .graph import DataflowGraph
from .kernel import TensorType

if TYPE_CHECKING:
    import torch

TILE = re.compile(r"(.*)\[([\d, ]*)\]", re.DOTALL)
"""Names of tiles: the tensor's name, then the position in its grid."""


def cut_inputs(graph: DataflowGraph, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """A tensor for each graph input, in order; tiles are cut out of whole tensors where these are given.

    Raises:
        GraphError: an input is missing, unknown or of another shape or dtype.
    """
    wholes = whole_types(graph)
    known = {entry.name for entry in graph.inputs} | set(wholes)
    for name in inputs:
        if name not in known:
            raise GraphError(f"{graph.title}: there is no input {name!r}; inputs are {', '.join(wholes)}.")
    spans = tile_spans(graph)
    tensors = []
    for number, entry in enumerate(graph.inputs):
        tensor, expected = inputs.get(entry.name), entry.type
        if tensor is None and number in spans:
            name, region = spans[number]
            tensor = inputs.get(name)
            _check_type(graph, name, tensor, wholes[name])
            assert tensor is not None, "checked above"
            for dim, (start, stop) in enumerate(region):
                tensor = tensor.narrow(dim, start, stop - start)
        _check_type(graph, entry.name, tensor, expected)
        assert tensor is not None, "checked above"
        tensors.append(tensor)
    return tensors


def join_tiles(outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put outputs named ``name[i, j]`` together into whole tensors ``name``; others stay as they are."""
    import torch

    tiles: dict[str, dict[tuple[int, ...], torch.Tensor]] = {}
    whole: dict[str, torch.Tensor] = {}
    for label, tensor in outputs.items():
        match = TILE.fullmatch(label)
        if match is None:
            whole[label] = tensor
            continue
        name, position = match.group(1), tuple(int(cell) for cell in match.group(2).split(",") if cell)
        whole.setdefault(name, tensor)
        tiles.setdefault(name, {})[position] = tensor
    for name, grid in tiles.items():
        for dim in reversed(range(len(next(iter(grid))))):
            rows: dict[tuple[int, ...], list[torch.Tensor]] = {}
            for position in sorted(grid):
                rows.setdefault(position[:dim], []).append(grid[position])
            grid = {position: torch.cat(row, dim) if len(row) > 1 else row[0] for position, row in rows.items()}
        whole[name] = grid[()]
    return whole


def whole_types(graph: DataflowGraph) -> dict[str, TensorType | None]:
    """Name and type of each graph input, in order, with tiles put together."""
    types: dict[str, TensorType | None] = {}
    spans = tile_spans(graph)
    for number, entry in enumerate(graph.inputs):
        if number not in spans:
            types[entry.name] = entry.type
            continue
        name, region = spans[number]
        before = types.get(name)
        stops = tuple(stop for _, stop in region)
        shape = stops if before is None else tuple(map(max, before.shape, stops))
        assert entry.type is not None, "tiles have types"
        types[name] = TensorType(shape, entry.type.dtype)
    return types


def module_inputs(
    graph: DataflowGraph,
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    tangents: Sequence[torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """The inputs of a graph that was captured from ``module``, tiled or not, as ``run`` wants them.

    Args:
        args, kwargs: arguments of the call, nested as when the graph was captured.
        tangents: gradients with respect to the outputs, in their order, for a training graph;
            ones by default.

    Raises:
        GraphError: the module or its arguments do not fit the graph.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    ordered = {key: (kwargs or {})[key] for key in sorted(kwargs or {})}
    leaves = [leaf for leaf in tree_leaves((tuple(args), ordered)) if isinstance(leaf, torch.Tensor)]
    types, roles = whole_types(graph), _roles(graph)
    wanted = [name for name, role in roles.items() if role == "input"]
    if len(wanted) != len(leaves):
        raise GraphError(
            f"{graph.title}: the arguments hold {len(leaves)} tensors, but the graph has {len(wanted)} inputs "
            f"({', '.join(wanted)}); give the arguments with which it was captured."
        )
    state = dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])
    values: dict[str, torch.Tensor] = dict(zip(wanted, leaves, strict=True))
    names = [name for name, role in roles.items() if role == "tangent"]
    if tangents is not None and len(tangents) != len(names):
        raise GraphError(f"{graph.title}: {len(tangents)} tangents are given, but the graph has {len(names)}.")
    device = next((tensor.device for tensor in [*state.values(), *leaves]), torch.device("cpu"))
    for position, name in enumerate(names):
        kind = types[name]
        assert kind is not None, "tangents of captured graphs have types"
        one = torch.ones(kind.shape, dtype=getattr(torch, kind.dtype), device=device)
        values[name] = one if tangents is None else tangents[position]
    if "constant" in roles.values():
        values.update(_constants(graph, module, args, kwargs, training=bool(names)))
    for name, role in roles.items():
        if role in ("parameter", "buffer") and name in state:
            values[name] = state[name]
    return {name: value for name, value in values.items() if name in types}


def _constants(
    graph: DataflowGraph, module: torch.nn.Module, args: Any, kwargs: Any, *, training: bool
) -> dict[str, torch.Tensor]:
    """Values of the constants in a module's code; they are found by capturing it again."""
    from .readers.torch_export import capture

    return capture(module, tuple(args), kwargs, training=training).constants


def _roles(graph: DataflowGraph) -> dict[str, str]:
    spans = tile_spans(graph)
    return {spans[n][0] if n in spans else entry.name: entry.role for n, entry in enumerate(graph.inputs)}


def tile_spans(graph: DataflowGraph) -> dict[int, tuple[str, list[tuple[int, int]]]]:
    """Number of a graph input that is a tile -> the whole tensor's name, and a (start, stop) per dimension."""
    positions: dict[int, tuple[str, tuple[int, ...]]] = {}
    sizes: dict[tuple[str, int], dict[int, int]] = {}
    for number, entry in enumerate(graph.inputs):
        match = TILE.fullmatch(entry.name)
        if match is None or entry.type is None:
            continue
        position = tuple(int(cell) for cell in match.group(2).split(",") if cell)
        if len(position) != len(entry.type.shape):
            continue
        positions[number] = match.group(1), position
        for dim, index in enumerate(position):
            sizes.setdefault((match.group(1), dim), {})[index] = entry.type.shape[dim]
    spans = {}
    for number, (name, position) in positions.items():
        region = []
        for dim, index in enumerate(position):
            row = sizes[name, dim]
            start = sum(row.get(before, 0) for before in range(index))
            region.append((start, start + row[index]))
        spans[number] = name, region
    return spans


def _check_type(graph: DataflowGraph, name: str, tensor: torch.Tensor | None, kind: TensorType | None) -> None:
    expected = "" if kind is None else f" of shape {kind.shape} and dtype {kind.dtype}"
    if tensor is None:
        raise GraphError(f"{graph.title}: the input {name!r} is missing; give a tensor{expected}.")
    if kind is None:
        return
    found = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    if found != (kind.shape, kind.dtype):
        raise GraphError(
            f"{graph.title}: the input {name!r} has shape {found[0]} and dtype {found[1]}; expected one{expected}."
        )
