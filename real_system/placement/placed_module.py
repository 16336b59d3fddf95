"""A user's own module, computed by a placed graph on several devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from ...envs.errors import GraphError, PlacementError
from ...envs.placement import DataflowGraph, Placement, PlacementProblem, Topology
from ...envs.placement.graph import Integers
from .cpu import cpu_executor
from .executor import Execution, ExecutionError
from .following import following
from .module_tensors import Constants, ModuleTensors, Nested, captured, check_state
from .phased import PhasedExecutor
from .placed_graph import Call, PlacedGraph
from .run import Run

Modes = tuple[bool, ...]
"""``training`` of a module and of all that it holds."""


class PlacedModule(nn.Module):
    """Wraps a module so that its calls, and their backward passes, run on the devices of a placement.

    ``placed(*args, **kwargs)`` returns what ``module(*args, **kwargs)`` would, in tensors of their own; ``backward``
    fills ``.grad``, so that any optimizer and any loss, inside or outside, work as ever. The module is not changed, and
    can be used beside this one: parameters and buffers are the same objects, under the same names (``state_dict``, too,
    so that checkpoints are interchangeable). Devices that are processors read them where they are.

    The graph has one form: shapes, dtypes, nesting, and values of arguments that are no tensors are those of the
    capture. After ``eval()`` or ``train()`` the module is captured once more for its other mode, with a placement that
    follows the given one: operations go where those of the same name, or submodule, are. What was captured runs:
    another module with the same parameters but other settings (dropout's ``p``) computes as the captured one. Under
    ``torch.no_grad`` only the operations run that the returned values and changed buffers need.

    Unlike in plain PyTorch: random draws (dropout) come in another order, from torch's global generator; hooks of
    submodules run when the module is captured and not later; a call goes backward once and not twice
    (``retain_graph``); second derivatives (``create_graph``), autocast, and changed arguments that require gradients
    are refused.

    Devices have threads, which end with ``close`` or a ``with`` block, or when an operation fails.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        placement: Placement | ArrayLike,
        *,
        graph: DataflowGraph | None = None,
        problem: PlacementProblem | None = None,
        executor: Callable[[PlacementProblem], PhasedExecutor] = cpu_executor,
    ) -> None:
        """Wrap a module.

        Args:
            module: as it was captured, in the same mode.
            placement: for the graph that ``from_module(module, args, training=True)`` gives, or with
                ``training=False``, when there is nothing to train; tiled or not. [N] devices will do. A placement
                whose ``execution`` is ``priority`` runs in its order.
            graph: that graph; else the module is captured at the first call.
            problem: graph and devices; by default as many processors of this machine as the placement uses.
            executor: makes the executor of a problem, such as ``functools.partial(cuda_executor, devices=[0, 1])``.

        Raises:
            GraphError: the module lacks parameters or buffers that the graph reads, or has them in another form.
            PlacementError: the placement is another graph's.
        """
        super().__init__()
        if not isinstance(module, nn.Module):
            raise GraphError(f"PlacedModule got a {type(module).__name__}; expected a torch.nn.Module.")
        if problem is not None and graph is not None and problem.graph is not graph:
            raise GraphError(f"{graph.title}: graph= and problem= are of different graphs; give one of them.")
        self.__dict__["module"] = module  # not as a submodule, which would put its name before those of parameters
        for registry in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
            self.__dict__[registry] = getattr(module, registry)
        self.training = module.training
        self._assignment, self._priority = _parts(placement)
        self._problem, self._executor = problem, executor
        self._graph = graph if problem is None else problem.graph
        self._constants: Constants | None = None
        self._captured_in: Modes | None = None
        self._trainable = set[str]()
        self._placed: dict[tuple[Modes, bool], PlacedGraph] = {}
        self._last: Run | None = None
        if self._graph is not None:
            self._check_length(self._graph)
            check_state(module, self._graph)
            self._note_form()

    def __repr__(self) -> str:
        """The module's class, how many operations, and on which devices."""
        devices = int(self._assignment.max()) + 1
        where = f"{devices} devices" if self._problem is None else self._problem.topology.name
        return f"PlacedModule({type(self.module).__name__}: {len(self._assignment)} operations on {where})"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module returns.

        Raises:
            GraphError: the call is not of the form that was captured, or needs a gradient that was not.
            ExecutionError: an operation failed; the threads have ended.
        """
        if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
            raise GraphError(
                f"{type(self.module).__name__}: a graph has its dtypes from when it was captured, and cannot follow "
                "torch.autocast; call the placed module outside of it, and convert the module instead."
            )
        placed = self._placed_for(args, kwargs)
        values = placed.tensors.bind(args, kwargs)
        call = Call(placed, values, self._note)
        names = placed.tensors.trained(values) if torch.is_grad_enabled() and placed.late else []
        if names:
            inputs = [values[name] for name in names]
            return call.returned(_Passes.apply(call, names, *inputs))  # type: ignore[no-untyped-call]
        call.forward(backward=False)
        return call.returned(())

    @property
    def last(self) -> Execution:
        """The last execution, measured: of a forward pass, and of its backward pass when that has run.

        Operations that did not run have NaN for their times. Outputs are not kept.

        Raises:
            PlacementError: there was none.
        """
        if self._last is None:
            raise PlacementError(f"{type(self.module).__name__}: nothing was executed yet; call it first.")
        return Execution(self._last.schedule(), self._last.ready_times())

    def close(self) -> None:
        """End the threads; the next call begins new ones, and forward passes without their backward passes are lost."""
        for placed in self._placed.values():
            placed.close()

    def __enter__(self) -> PlacedModule:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def train(self, mode: bool = True) -> PlacedModule:
        """Set the mode of the module."""
        self.module.train(mode)
        self.training = mode
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own."""
        return self.module.load_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """The module's own, when this one is part of another module."""
        self.module._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: they begin threads of their own."""
        return self.__dict__ | {"_placed": {}, "_last": None}

    def _placed_for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PlacedGraph:
        """The graph for the present mode; captured and placed where it is new."""
        if self._graph is None:
            self._capture(args, kwargs)
        assert self._graph is not None, "captured before"
        modes, given_trains = self._modes(), _trains(self._graph)
        state = [*self.module.parameters(), *self.module.buffers()]
        trains = torch.is_grad_enabled() and any(
            tensor.requires_grad for tensor in [*state, *Nested.of_call(args, kwargs).tensors()]
        )
        if trains and not given_trains:
            raise GraphError(
                f"{self._graph.title}: the placement is of a forward graph, but gradients are needed; capture the "
                "module with training=True and place that, or call it under torch.no_grad()."
            )
        given = modes == self._captured_in
        key = (modes, given_trains if given else trains or (modes, True) in self._placed)
        if key not in self._placed:
            self._placed[key] = self._place(given, key[1], args, kwargs)
        return self._placed[key]

    def _place(self, given: bool, trains: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PlacedGraph:
        """Put the given graph on devices, or that of another mode."""
        module, graph, constants = self.module, self._graph, self._constants
        assert graph is not None, "captured before"
        assignment, priority, trainable = self._assignment, self._priority, self._trainable
        if not given:
            followed = graph
            graph, constants = captured(module, args, kwargs, training=trains)
            assignment, priority = following(graph, followed, assignment), None
            trainable = _trainable(module)
        elif constants is None and any(entry.role == "constant" for entry in graph.inputs):
            constants = captured(module, args, kwargs, training=trains)[1]
        tensors = ModuleTensors(module, graph, Nested.of_call(args, kwargs), constants or {}, trainable)
        if given and self._problem is not None:
            problem = self._problem
        else:
            devices = int(self._assignment.max()) + 1
            topology = Topology.this_machine(devices) if self._problem is None else self._problem.topology
            problem = PlacementProblem(graph, topology, memory="off")
        return PlacedGraph(tensors, self._executor(problem), problem.check_assignment(assignment), priority)

    def _capture(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Find the graph that was placed: the training graph if there is one of that size, else the forward graph."""
        tensors = [*self.module.parameters(), *Nested.of_call(args, kwargs).tensors()]
        sizes = []
        for training in (True, False) if any(tensor.requires_grad for tensor in tensors) else (False,):
            graph, constants = captured(self.module, args, kwargs, training=training)
            if graph.n == len(self._assignment):
                self._graph, self._constants = graph, constants
                self._note_form()
                return
            sizes.append(f"the {'training' if training else 'forward'} graph has {graph.n}")
        raise PlacementError(
            f"{type(self.module).__name__}: the placement has {len(self._assignment)} operations, but "
            f"{' and '.join(sizes)}; give the graph that was placed with graph=, if it was tiled or captured otherwise."
        )

    def _note_form(self) -> None:
        self._captured_in, self._trainable = self._modes(), _trainable(self.module)

    def _modes(self) -> Modes:
        return tuple(part.training for part in self.module.modules())

    def _check_length(self, graph: DataflowGraph) -> None:
        if len(self._assignment) != graph.n:
            raise PlacementError(
                f"{graph.title}: the placement has {len(self._assignment)} operations, but the graph has {graph.n}; "
                "place this graph."
            )

    def _note(self, run: Run) -> None:
        self._last = run.trace()


class _Passes(torch.autograd.Function):
    """Both passes of a call, as one operation of autograd."""

    @staticmethod
    def forward(ctx: Any, call: Call, names: list[str], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The returned values that have gradients; inputs are there for autograd to see them."""
        ctx.call, ctx.places = call, {name: tensor.device for name, tensor in zip(names, inputs, strict=True)}
        ctx.set_materialize_grads(False)
        call.forward(backward=True)
        ctx.save_for_backward(*call.kept())
        return tuple(call.results[name] for name in call.tensors.differentiable)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Gradients of the inputs, each where its tensor lies.

        Raises:
            ExecutionError: they are to be differentiated again, for which nothing was captured.
        """
        if torch.is_grad_enabled():  # only under create_graph; constants would be returned for what has a derivative
            raise ExecutionError(
                f"{ctx.call.tensors.title}: a graph holds first derivatives only, and create_graph=True asks for "
                "second ones; leave it out, or call the module itself (.module) where you need them."
            )
        ctx.saved_tensors  # noqa: B018 (torch raises if one of them has changed since)
        found = ctx.call.backward(gradients)
        return None, None, *(found[name].to(place) for name, place in ctx.places.items())


def _parts(placement: Placement | ArrayLike) -> tuple[Integers, Integers | None]:
    """[N] devices, and the order if it counts."""
    if isinstance(placement, Placement):
        return placement.assignment, placement.order if placement.execution == "priority" else None
    assignment = np.asarray(placement)
    if assignment.ndim != 1 or not np.issubdtype(assignment.dtype, np.integer) or not assignment.size:
        raise PlacementError(
            f"PlacedModule: the placement is an array of shape {assignment.shape} and dtype {assignment.dtype}; "
            "expected a Placement or one device number for each operation."
        )
    return assignment, None


def _trains(graph: DataflowGraph) -> bool:
    """Whether it is a forward and backward graph."""
    return any(entry.role == "tangent" for entry in graph.inputs)


def _trainable(module: nn.Module) -> set[str]:
    state = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name for name, value in state if value.requires_grad}
