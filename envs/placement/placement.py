"""A placement: which device runs each operation, in which order they were chosen, and what it brings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..errors import PlacementError
from .graph import DataflowGraph, Floats, Integers
from .problem import PlacementProblem
from .readers.files import write_text
from .simulator import Order, Schedule, makespans, simulate


class Plan(NamedTuple):
    """The schedule that a method had in mind: starts and ends [N], seconds (or raw units)."""

    start: Floats
    end: Floats

    @property
    def makespan(self) -> float:
        """End of the last operation of the plan."""
        return float(self.end.max())


@dataclass(frozen=True)
class Placement:
    """The answer of a placement method.

    Attributes:
        assignment: [N] device of each operation.
        order: [N] the operations in the order in which the method chose or starts them, a
            topological order; used as priority when ``execution`` is ``priority``.
        method: its name.
        execution: the order rule under which ``makespan`` was simulated.
        makespan: simulated seconds (or raw units): what methods are ranked by.
        planned: the method's own schedule, where it makes one.
        seconds: time to decide.
        calls: simulator calls that the method made, the final score not counted.
        seed: where its random draws came from.
        repeatable: False if a budget in seconds, or parallel solving, decided when it stopped.
        notes: more figures of the method (spread over runs, a solver's own bound, ...).
    """

    assignment: Integers
    order: Integers
    method: str = ""
    execution: Order = "fifo"
    makespan: float = np.nan
    planned: Plan | None = None
    seconds: float = 0.0
    calls: int = 0
    seed: int = 0
    repeatable: bool = True
    notes: Mapping[str, Any] = field(default_factory=dict)

    def simulate(self, problem: PlacementProblem, **options: Any) -> Schedule:
        """The schedule behind ``makespan``; options as of ``simulate``."""
        rule = {"order": self.execution}
        if self.execution == "priority":
            options.setdefault("priority", self.order)
        return simulate(problem, self.assignment, **(rule | options))

    def spread(self, problem: PlacementProblem, runs: int = 100, noise: float = 0.05, seed: int = 0) -> Floats:
        """[runs] makespans in random order and with noise: what a real, stochastic system may do."""
        rows = np.broadcast_to(self.assignment, (runs, problem.n))
        return makespans(problem, rows, order="random", noise=noise, seed=seed)

    def save(self, path: str | Path, problem: PlacementProblem, **more: Any) -> None:
        """Write JSON: ids with their devices, in the order of choice, and the figures; atomically."""
        graph = problem.graph
        record = {
            "graph": graph.title,
            "topology": problem.topology.name,
            "devices": [device.kind for device in problem.topology.devices],
            "method": self.method,
            "execution": self.execution,
            "makespan": self.makespan if np.isfinite(self.makespan) else None,
            "seed": self.seed,
            "seconds": self.seconds,
            "calls": self.calls,
            "repeatable": self.repeatable,
            "notes": dict(self.notes),
            "operations": [
                {"id": graph.ids[v], "name": graph.names[v], "device": int(self.assignment[v])} for v in self.order
            ],
            **more,
        }
        write_text(path, json.dumps(record, ensure_ascii=False, indent=1, default=_as_json))

    @classmethod
    def load(cls, path: str | Path, problem: PlacementProblem) -> Placement:
        """Read what ``save`` wrote for the same graph.

        A file may also hold a plain object ``{"id": device, ...}``; ids are then compared as text.

        Raises:
            PlacementError: the file is missing or no JSON, an operation is missing, unknown or
                stands twice, a device does not exist.
        """
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise PlacementError(f"{path}: cannot be read ({error.strerror}); give a placement's path.") from error
        except (ValueError, RecursionError) as error:
            raise PlacementError(f"{path}: is not JSON ({error}); give what hadoppler place wrote.") from error
        chosen = _read_devices(record, problem.graph, str(path))
        assignment = np.empty(problem.n, dtype=np.int64)
        assignment[list(chosen)] = list(chosen.values())
        order = np.array(list(chosen), dtype=np.int32)
        if not is_topological(problem.graph, order):
            order = problem.graph.topological_order
        execution: Any = record.get("execution", "fifo") if isinstance(record.get("operations"), list) else "fifo"
        return cls(problem.check_assignment(assignment), order, "file", execution)


def is_topological(graph: DataflowGraph, order: ArrayLike) -> bool:
    """Whether ``order`` lists every operation once, producers before consumers."""
    sequence = np.asarray(order)
    if len(sequence) != graph.n or not np.array_equal(np.sort(sequence), np.arange(graph.n)):
        return False
    position = np.empty(graph.n, dtype=np.int64)
    position[sequence] = np.arange(graph.n)
    return bool((position[graph.edge_source] < position[graph.edge_target]).all())


def order_by_start(graph: DataflowGraph, start: ArrayLike) -> Integers:
    """[N] operations by start time; ties in topological order, so zero-cost chains stay in order."""
    position = np.empty(graph.n, dtype=np.int64)
    position[graph.topological_order] = np.arange(graph.n)
    return np.lexsort((position, np.asarray(start))).astype(np.int32)


def _as_json(value: Any) -> Any:
    """Notes may hold NumPy's numbers and arrays; anything else is written as text."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def _read_devices(record: Any, graph: DataflowGraph, where: str) -> dict[int, int]:
    """Operation number -> device, in the order of the file."""
    if not isinstance(record, dict):
        raise PlacementError(f"{where}: expected a JSON object, found {type(record).__name__}.")
    if isinstance(record.get("operations"), list):
        number = {(type(label), label): v for v, label in enumerate(graph.ids)}
        pairs = [
            ((type(item["id"]), item["id"]), item["id"], item["device"])
            if isinstance(item, dict) and isinstance(item.get("id"), int | str) and "device" in item
            else (None, item, None)
            for item in record["operations"]
        ]
    else:
        number = {(str, str(label)): v for v, label in enumerate(graph.ids)}
        pairs = [((str, label), label, device) for label, device in record.items()]
    chosen: dict[int, int] = {}
    for key, label, device in pairs:
        v = number.get(key) if key else None
        if v is None:
            raise PlacementError(f"{where}: {label!r} is no operation of {graph.title}; is this the right graph?")
        if v in chosen:
            raise PlacementError(f"{where}: operation {label!r} stands twice.")
        if not isinstance(device, int) or isinstance(device, bool) or abs(device) >= 2**31:
            raise PlacementError(f"{where}: operation {label!r} has the device {device!r}; expected a device number.")
        chosen[v] = device
    missing = [label for v, label in enumerate(graph.ids) if v not in chosen]
    if missing:
        raise PlacementError(f"{where}: {len(missing)} operations have no device, the first is {missing[0]!r}.")
    return chosen
