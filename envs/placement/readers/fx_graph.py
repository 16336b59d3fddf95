"""From an ``fx`` graph of ATen operators to a ``DataflowGraph``: views collapse, costs are counted."""

from __future__ import annotations

import operator
import re
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...errors import GraphError
from ..graph import DataflowGraph
from ..graph_builder import GraphBuilder
from ..kernel import ITEM_BYTES, Kernel, Reference, Symbol, TensorType, View
from .aten_costs import bytes_moved, flops_of, is_guessed, kind_of, packet_name, tensors

if TYPE_CHECKING:
    import torch
    from torch import fx
    from torch._ops import OpOverload

    from .torch_export import Captured

SAME = ("detach", "alias", "lift_fresh_copy", "lift_fresh", "lift")
"""Operators that give their tensor back, in a graph without side effects."""

NOTHING = TensorType((0,), "bool")
"""Stands for an entry of an operator's result that is no tensor."""

Value = Reference | list[Reference]


def translate(captured: Captured, title: str | None = None) -> DataflowGraph:
    """The dataflow graph of a captured module.

    Raises:
        GraphError: an operator that has no static shape, calls Python or runs a graph of its own.
    """
    translator = _Translator(captured.title, GraphBuilder(title or captured.title))
    for node in captured.graph.nodes:
        if node in captured.inputs:
            translator.add_input(node, *captured.inputs[node])
        elif node.op == "call_function":
            translator.add(node)
    outputs = [*captured.outputs, *captured.mutated.items()]
    for name, node in captured.mutated.items():
        translator.keep_order(name, node)
    if translator.guessed:
        warnings.warn(
            f"{captured.title}: no FLOP formula is known for {', '.join(translator.guessed)}, priced at one FLOP per "
            "element, which is too low for linear algebra; measured seconds in the graph win over it.",
            stacklevel=2,
        )
    if not translator.builder.kernels:
        raise GraphError(f"{captured.title}: the module computes nothing; there is no operation to place.")
    references = [translator.reference(node) for _, node in outputs]
    return translator.builder.finish(references, [name for name, _ in outputs])


@dataclass
class _Translator:
    module: str
    builder: GraphBuilder
    values: dict[fx.Node, Value] = field(default_factory=dict)
    inputs: dict[str, Reference] = field(default_factory=dict)
    guessed: dict[str, None] = field(default_factory=dict)

    def add_input(self, node: fx.Node, name: str, role: str) -> None:
        """Declare a graph input; state that nothing reads is left out."""
        value: Any = node.meta.get("val")
        if not tensors(value) or (not node.users and role not in ("input", "tangent")):
            return
        if name not in self.inputs:
            self.inputs[name] = self.builder.add_input(name, self.type_of(node, value), role)
        self.values[node] = self.inputs[name]

    def add(self, node: fx.Node) -> None:
        """Turn one call into an operation, or into a view of one."""
        if node.target is operator.getitem:
            whole = self.values[node.args[0]]  # type: ignore[index]
            self.values[node] = whole[node.args[1]] if isinstance(whole, list) else whole  # type: ignore[index]
            return
        target = _operator(node)
        if not hasattr(target, "_schema"):
            raise GraphError(
                f"{self.module}: it calls {target}, which is not a plain tensor operator and cannot be placed; "
                "write it with ordinary operators or capture the parts around it."
            )
        result = node.meta.get("val")
        if not tensors(result):
            return
        source = node.args[0] if node.args else None
        if packet_name(target) in SAME or _copies_nothing(node):
            self.values[node] = self.reference(source)
        elif target.is_view or packet_name(target) == "_unsafe_view":
            self.values[node] = self.view(node, self.reference(source))
        else:
            self.values[node] = self.operation(node, result)

    def view(self, node: fx.Node, source: Reference) -> Value:
        """A view of a reference; the pieces of splits are slices."""
        name, result = packet_name(_operator(node)), node.meta["val"]
        if isinstance(result, torch_tensor()):
            target = "aten.view.default" if name in ("view", "_unsafe_view", "reshape") else str(node.target)
            return replace(source, views=(*source.views, View(target, self.arguments(_positional(node)[1:]))))
        dim = int(dict(zip(_names(node), _positional(node), strict=False)).get("dim", 0))
        pieces, start = list[Reference](), 0
        dim %= node.args[0].meta["val"].dim()  # type: ignore[union-attr]
        for position, piece in enumerate(result):
            if name.startswith("unbind"):
                view = View("aten.select.int", (dim, position))
            elif "split" in name:
                view = View("aten.slice.Tensor", (dim, start, start + piece.shape[dim], 1))
                start += piece.shape[dim]
            else:
                raise GraphError(
                    f"{self.module}: the operator {node.target} returns several views, which is not known."
                )
            pieces.append(replace(source, views=(*source.views, view)))
        return pieces

    def operation(self, node: fx.Node, result: Any) -> Value:
        """Append an operation with its costs."""
        target, several = _operator(node), isinstance(result, tuple | list)
        outputs = tuple(
            self.type_of(node, item) if tensors(item) else NOTHING for item in (result if several else [result])
        )
        kwargs = {key: value for key, value in node.kwargs.items() if key not in ("device", "pin_memory")}
        kernel = Kernel(
            str(target),
            self.arguments(node.args),
            outputs,
            tuple(zip(kwargs, self.arguments(kwargs.values()), strict=True)),
        )
        if is_guessed(target):
            self.guessed[packet_name(target)] = None
        path, layer, backward = _place(node)
        reference = self.builder.add(
            kernel,
            kind=kind_of(target),
            flops=flops_of(target, _fakes(node.args), _fakes(node.kwargs), result),
            name=f"{path}{packet_name(target)}{' (backward)' if backward else ''}",
            bytes_moved=bytes_moved(target, self.reads(node), sum(output.bytes for output in outputs)),
            layer=layer,
        )
        return [replace(reference, output=position) for position in range(len(outputs))] if several else reference

    def reads(self, node: fx.Node) -> list[float]:
        """Bytes that each distinct argument makes the device read: a view's own, at most what is stored."""
        sizes: dict[Reference, float] = {}
        for argument in node.all_input_nodes:
            reference, value = self.reference(argument), argument.meta["val"]
            stored = self.builder.type_of(reference).bytes
            sizes[reference] = float(min(value.numel() * value.element_size(), stored))
        return list(sizes.values())

    def keep_order(self, name: str, node: fx.Node) -> None:
        """Make the operation that changes an input wait for the readers of its old value before it."""
        old, new = self.inputs.get(name), self.reference(node)
        if old is None or new.source != "op":
            return
        for number, kernel in enumerate(self.builder.kernels[: new.number]):
            if any((r.source, r.number) == ("input", old.number) for r in kernel.references()):
                self.builder.add_order(Reference("op", number), new)

    def reference(self, node: Any) -> Reference:
        """The tensor that a node stands for."""
        value = self.values.get(node)
        if not isinstance(value, Reference):
            raise GraphError(f"{self.module}: {node} is not a single tensor of the graph, which is not supported.")
        return value

    def arguments(self, values: Any) -> tuple[Any, ...]:
        """Arguments of a call as plain data."""
        return tuple(self.argument(value) for value in values)

    def argument(self, value: Any) -> Any:
        """One argument as plain data."""
        import torch

        if isinstance(value, torch.fx.Node):
            return self.reference(value)
        if isinstance(value, list | tuple):
            return self.arguments(value)
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return Symbol(str(value).removeprefix("torch."))
        if isinstance(value, torch.device):
            return None
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise GraphError(f"{self.module}: a call has the argument {value!r}, which is neither tensor nor constant.")

    def type_of(self, node: fx.Node, value: torch.Tensor) -> TensorType:
        """Shape and dtype of a traced tensor."""
        dtype = str(value.dtype).removeprefix("torch.")
        if not all(isinstance(size, int) for size in value.shape):
            raise GraphError(
                f"{self.module}: the shape of {node} depends on the values of tensors; a static graph needs fixed "
                "shapes, so replace the operation (nonzero, masking, unique, ...) by one of fixed size."
            )
        if dtype not in ITEM_BYTES:
            raise GraphError(f"{self.module}: {node} has the dtype {dtype}; known are {', '.join(ITEM_BYTES)}.")
        return TensorType(tuple(value.shape), dtype)


def _operator(node: fx.Node) -> OpOverload:
    """The ATen operator that a node calls."""
    target: Any = node.target
    return target


def torch_tensor() -> type:
    """The class of tensors, imported when it is needed."""
    import torch

    return torch.Tensor


def _copies_nothing(node: fx.Node) -> bool:
    """Whether a copy gives a tensor of the same type and layout, so that it can be left out."""
    if packet_name(_operator(node)) not in ("clone", "_to_copy") or not node.args:
        return False
    old, new = node.args[0].meta.get("val"), node.meta["val"]  # type: ignore[union-attr]
    return old is not None and (old.dtype, old.stride(), old.shape) == (new.dtype, new.stride(), new.shape)


def _names(node: fx.Node) -> list[str]:
    return [argument.name for argument in _operator(node)._schema.arguments]


def _positional(node: fx.Node) -> list[Any]:
    """All arguments of a call by position, keywords included as far as they go."""
    values = list(node.args)
    for argument in _operator(node)._schema.arguments[len(values) :]:
        if argument.name not in node.kwargs:
            break
        values.append(node.kwargs[argument.name])
    return values


def _fakes(values: Any) -> Any:
    """Arguments with nodes replaced by the tensors that were traced."""
    import torch

    return torch.fx.node.map_arg(values, lambda node: node.meta["val"])


def _place(node: fx.Node) -> tuple[str, int, bool]:
    """Where in the module a call comes from: path with a dot behind it, layer number or -1, backward or not."""
    backward = "fwd_nn_module_stack" in node.meta
    stack = node.meta.get("fwd_nn_module_stack") or node.meta.get("nn_module_stack") or {}
    paths = [re.sub(r"@\d+", "", str(entry[0])) for entry in stack.values()]
    path = paths[-1] if paths else ""
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", path)
    return (f"{path}." if path else ""), int(numbers[0]) if numbers else -1, backward
