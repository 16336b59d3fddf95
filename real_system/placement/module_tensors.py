"""Which tensor of a module, or of a call of it, is which input or output of a graph that was captured from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from ...envs.errors import GraphError
from ...envs.placement import DataflowGraph
from ...envs.placement.readers.capture_errors import quiet
from ...envs.placement.readers.fx_graph import translate
from ...envs.placement.readers.torch_export import capture
from ...envs.placement.whole_tensors import TILE, join_tiles, tile_spans, whole_types

Constants = Mapping[str, torch.Tensor]


def captured(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, training: bool
) -> tuple[DataflowGraph, Constants]:
    """``from_module`` with gradients enabled, whatever the caller has, and the constants in the module's code.

    Raises:
        GraphError: as of ``from_module``.
    """

    def fresh(value: Any) -> Any:
        return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value

    with torch.inference_mode(False), torch.enable_grad(), saved_tensors_hooks(_itself, _itself):
        found = capture(module, *tree_map(fresh, (args, dict(kwargs))), training=training)
        return translate(found), found.constants


@dataclass(frozen=True)
class Nested:
    """Values in nested tuples, lists and dictionaries: all of them in order, and how they are nested."""

    leaves: list[Any]
    nesting: TreeSpec

    @classmethod
    def of(cls, value: Any) -> Nested:
        """Take a nested value apart."""
        return cls(*tree_flatten(value))

    @classmethod
    def of_call(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Nested:
        """The arguments of a call, keywords in alphabetical order as in captured graphs."""
        return cls.of((tuple(args), {key: kwargs[key] for key in sorted(kwargs)}))

    def tensors(self) -> list[torch.Tensor]:
        """The leaves that are tensors."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]


class View(NamedTuple):
    """A part of a contiguous tensor."""

    whole: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class ModuleTensors:
    """The inputs and outputs of a graph, tiled or not, by name, as tensors of its module and of calls of it.

    Attributes:
        types: (shape, dtype) of each input; tiles put together, as everywhere here.
        pieces: [P] for each graph input the tensor that it is cut from, and (start, stop) per dimension.
        arguments, tangents: names of the inputs that are arguments, and gradients of outputs, in order.
        results: names of all outputs.
        changed: names of the inputs that a call changes in place.
        returned: what a call returns, with tensors that have no data.
        differentiable: names of the returned values whose gradients the backward pass takes, in order of ``tangents``.
        views: other returned values that need a gradient -> one of ``differentiable`` that they are a part of, and
            their sizes, strides and offset there. Torch captures no gradients of their own for these.
        trainable: names of the module's tensors that required gradients when it was captured.
    """

    def __init__(
        self, module: torch.nn.Module, graph: DataflowGraph, call: Nested, constants: Constants, trainable: set[str]
    ) -> None:
        spans, kinds = tile_spans(graph), whole_types(graph)
        self.title, self.call, self.constants, self.trainable = graph.title, call, constants, trainable
        self.pieces = [spans.get(number, (entry.name, [])) for number, entry in enumerate(graph.inputs)]
        roles = {name: entry.role for (name, _), entry in zip(self.pieces, graph.inputs, strict=True)}
        self.types = {n: (torch.Size(k.shape), getattr(torch, k.dtype)) for n, k in kinds.items() if k is not None}
        self.arguments = [name for name, role in roles.items() if role == "input"]
        self.tangents = [name for name, role in roles.items() if role == "tangent"]
        self.results = set(map(whole_name, graph.output_names))
        self.changed = {name for name in self.results if name in roles}
        self.state = _state_of(module, graph.title, [n for n, role in roles.items() if role in ("parameter", "buffer")])
        if len(self.arguments) != len(call.tensors()):
            raise GraphError(
                f"{graph.title}: the call holds {len(call.tensors())} tensors, but the graph has "
                f"{len(self.arguments)} inputs ({', '.join(self.arguments)}); call it as it was captured."
            )
        self.returned = _returned(module, call)
        self._check_results()
        self.differentiable = [f"output_{position(name)}" for name in self.tangents]
        self.views, self._lost = self._find_views(graph)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The tensor behind every input but the tangents, as it is now.

        Raises:
            GraphError: the arguments, or the module's tensors, are not of the form that was captured.
        """
        call = Nested.of_call(args, kwargs)
        if call.nesting != self.call.nesting:
            raise GraphError(
                f"{self.title}: the call does not have the arguments that the graph was captured from, nested in the "
                "same way; pass the same ones by position and by keyword as then."
            )
        for now, then in zip(call.leaves, self.call.leaves, strict=True):
            both = isinstance(now, torch.Tensor) and isinstance(then, torch.Tensor)
            if not both and (type(now) is not type(then) or now != then):
                raise GraphError(
                    f"{self.title}: the call has {_told(now)} where the graph was captured with {_told(then)}, which "
                    "it holds for good; wrap the module once more for the other value."
                )
        values = dict(zip(self.arguments, call.tensors(), strict=True))
        values |= {name: registry[key] for name, (registry, key) in self.state.items()} | dict(self.constants)
        for name, value in values.items():
            if name in self.types and (value.shape, value.dtype) != self.types[name]:
                shape, dtype = self.types[name]
                raise GraphError(
                    f"{self.title}: {name!r} has shape {tuple(value.shape)} and dtype {_dtype(value.dtype)}, but the "
                    f"graph was captured with {tuple(shape)} and {_dtype(dtype)}; a graph holds one form only, so pad "
                    "or drop what does not fit (drop_last=True in a DataLoader), or wrap the module once more."
                )
        return values

    def trained(self, values: Mapping[str, torch.Tensor]) -> list[str]:
        """Names of the inputs that now require a gradient, and for which the graph has one.

        Raises:
            GraphError: a gradient is required that was not captured.
        """
        names = [name for name, value in values.items() if value.requires_grad]
        missing = [name for name in names if f"grad.{name}" not in self.results and name not in self.trainable]
        if missing:
            raise GraphError(
                f"{self.title}: {missing[0]!r} requires a gradient, which it did not when the graph was captured; "
                "capture it again, or detach it or set its requires_grad to False."
            )
        if self._lost:
            raise GraphError(
                f"{self.title}: {self._lost[0]} is a view of something that has no gradient in the graph; let the "
                "module return a copy of it (value + 0)."
            )
        return [name for name in names if f"grad.{name}" in self.results]

    def check_changed(self, values: Mapping[str, torch.Tensor]) -> None:
        """Refuse to change what autograd follows.

        Raises:
            GraphError: the call changes a tensor that requires a gradient.
        """
        for name in sorted(self.changed):
            if values[name].requires_grad:
                raise GraphError(
                    f"{self.title}: the call changes {name!r}, which requires a gradient, in place; let the module "
                    "work on a copy of it."
                )

    def cut(self, values: Mapping[str, torch.Tensor], numbers: Iterable[int]) -> dict[int, torch.Tensor]:
        """Graph inputs by number, cut out of whole tensors."""
        found = {}
        for number in numbers:
            name, region = self.pieces[number]
            tensor = values[name]
            for dim, (start, stop) in enumerate(region):
                tensor = tensor.narrow(dim, start, stop - start)
            found[number] = tensor
        return found

    def names_of(self, numbers: Collection[int]) -> set[str]:
        """The whole tensors behind some graph inputs."""
        return {self.pieces[number][0] for number in numbers}

    def _find_views(self, graph: DataflowGraph) -> tuple[dict[str, View], list[str]]:
        """Fill ``views``; the second part are names for which there is nothing that they are a part of."""
        views, lost = dict[str, View](), list[str]()
        computed = {whole_name(n) for n, r in zip(graph.output_names, graph.outputs, strict=True) if r.source == "op"}
        wholes = [(name, self.returned.leaves[position(name)]) for name in self.differentiable]
        for number, leaf in enumerate(self.returned.leaves):
            name = f"output_{number}"
            if name not in computed or name in self.differentiable or not leaf.requires_grad:
                continue
            whole = next((other for other, value in wholes if _holds(value, leaf)), None)
            if whole is None:
                lost.append(name)
            else:
                offset = leaf.storage_offset() - self.returned.leaves[position(whole)].storage_offset()
                views[name] = View(whole, tuple(leaf.shape), leaf.stride(), offset)
        return views, lost

    def _check_results(self) -> None:
        """All that a call returns is an output of the graph, and all gradients are of what it returns."""
        returned = {f"output_{i}" for i, leaf in enumerate(self.returned.leaves) if isinstance(leaf, torch.Tensor)}
        for name in sorted(returned - self.results):
            raise GraphError(f"{self.title}: the graph lacks {name}, which the module returns; capture it again.")
        for name in self.tangents:
            if name.replace("tangent_", "output_", 1) not in returned:
                raise GraphError(
                    f"{self.title}: the module returns several views of a value that it does not return itself, or "
                    f"changes an argument that requires a gradient ({name}); let it return copies (value + 0), and "
                    "change a copy."
                )


def check_state(module: torch.nn.Module, graph: DataflowGraph) -> None:
    """Whether a module has the parameters and buffers that a graph reads, in their form.

    Raises:
        GraphError: one is missing, or has another shape or dtype.
    """
    roles = {whole_name(entry.name): entry.role for entry in graph.inputs}
    kinds = {name: kind for name, kind in whole_types(graph).items() if roles[name] in ("parameter", "buffer")}
    for name, (registry, key) in _places(module, graph.title, kinds).items():
        value, kind = registry[key], kinds[name]
        if kind is not None and (tuple(value.shape), _dtype(value.dtype)) != (kind.shape, kind.dtype):
            raise GraphError(
                f"{graph.title}: the graph reads {name!r} with shape {kind.shape} and dtype {kind.dtype}, but the "
                f"module has it with {tuple(value.shape)} and {_dtype(value.dtype)}; give the module that the graph "
                "was captured from, or capture this one."
            )


def position(name: str) -> int:
    """Place of ``output_i``, or of ``tangent_i``, among all values that a call returns."""
    return int(name.rpartition("_")[2])


def whole_name(label: str) -> str:
    """The tensor that an input or output belongs to: ``w`` for ``w[0, 1]``."""
    match = TILE.fullmatch(label)
    return label if match is None else match.group(1)


def joined(outputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``join_tiles``, also of tiles that lie on different devices: each tensor then lies where its first tile does."""
    first: dict[str, torch.device] = {}
    return join_tiles({n: value.to(first.setdefault(whole_name(n), value.device)) for n, value in outputs.items()})


def apart(tensors: Sequence[torch.Tensor], others: Sequence[torch.Tensor] = ()) -> list[torch.Tensor]:
    """Tensors each of which has memory of its own: who writes to one, as optimizers do, changes no other."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in others}
    found = []
    for tensor in tensors:
        place = tensor.untyped_storage().data_ptr()
        found.append(tensor.detach().clone() if place in taken else tensor.detach())
        taken.add(place)
    return found


def _state_of(module: torch.nn.Module, title: str, names: Iterable[str]) -> dict[str, tuple[dict[str, Any], str]]:
    """``_places`` of tensors that have values."""
    found = _places(module, title, names)
    for name, (registry, key) in found.items():
        if registry[key].is_meta:
            raise GraphError(f"{title}: {name!r} lies on the meta device and has no values; give it some first.")
    return found


def _places(module: torch.nn.Module, title: str, names: Iterable[str]) -> dict[str, tuple[dict[str, Any], str]]:
    """Name -> where the module holds the tensor, so that one which is replaced is found too."""
    found: dict[str, tuple[dict[str, Any], str]] = {}
    owners = dict(module.named_modules(remove_duplicate=False))
    for name in names:
        path, _, key = name.rpartition(".")
        owner = owners.get(path)
        registry: Any = next((r for r in (owner._parameters, owner._buffers) if key in r), None) if owner else None
        if registry is None or registry[key] is None:
            raise GraphError(f"{title}: the graph reads {name!r}, which the module lacks; it is of another module.")
        found[name] = registry, key
    return found


def _returned(module: torch.nn.Module, call: Nested) -> Nested:
    """What a call returns, as tensors without data, and other values as they are; nothing is computed."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(value: Any) -> Any:
        return mode.from_tensor(value) if isinstance(value, torch.Tensor) else value

    with quiet(), torch.inference_mode(False), torch.enable_grad(), saved_tensors_hooks(_itself, _itself), mode:
        state = {name: fake(value) for name, value in [*module.named_parameters(), *module.named_buffers()]}
        args, kwargs = tree_map(fake, tree_unflatten(call.leaves, call.nesting))
        return Nested.of(torch.func.functional_call(module, state, args, kwargs))


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _holds(whole: torch.Tensor, part: torch.Tensor) -> bool:
    """Whether a tensor is a part of a contiguous one."""
    if not whole.is_contiguous() or whole.dtype != part.dtype:
        return False
    first = part.storage_offset() - whole.storage_offset()
    last = first + sum((size - 1) * stride for size, stride in zip(part.shape, part.stride(), strict=True))
    return whole.untyped_storage()._cdata == part.untyped_storage()._cdata and 0 <= first <= last < whole.numel()


def _told(value: Any) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else repr(value)


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
