"""The portfolio: the best of all list heuristics, judged by the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...envs.placement import Placement, PlacementProblem
from ...envs.placement.simulator import Order
from .critical_path import critical_path
from .dls import dls
from .enumerative import enumerative
from .etf import etf
from .heft import heft
from .min_min import min_min
from .parallelism import GraphStructureError, pipeline, tensor_parallel
from .peft import peft
from .simple import round_robin, single_device

MEMBERS: dict[str, Callable[..., Placement]] = {
    "critical_path": critical_path,
    "heft": heft,
    "peft": peft,
    "etf": etf,
    "dls": dls,
    "min_min": min_min,
    "enumerative": enumerative,
    "round_robin": round_robin,
    "single_device": single_device,
    "tensor_parallel": tensor_parallel,
    "pipeline": pipeline,
}


def portfolio(problem: PlacementProblem, *, rng: np.random.Generator, execution: Order) -> Placement:
    """The best, in the simulator, of every list heuristic, the simple placements and those made by hand.

    ``notes["winner"]`` names it. No single heuristic wins everywhere, so this is the baseline to beat.
    """
    found = members(problem, rng, execution)
    name, best = min(found, key=lambda pair: pair[1].makespan)
    return replace(best, calls=sum(placement.calls + 1 for _, placement in found), notes={"winner": name})


def members(problem: PlacementProblem, rng: np.random.Generator, execution: Order) -> list[tuple[str, Placement]]:
    """The placement of every member with its simulated makespan; memory overflow is penalised, not raised.

    Those that the graph has no shards or layers for are left out; whatever else a member raises is not caught.
    """
    relaxed = problem.with_options(memory="penalty") if problem.memory == "error" else problem
    found = []
    for name, method in MEMBERS.items():
        try:
            placement = replace(method(problem, rng=rng, execution=execution), execution=execution)
        except GraphStructureError:
            continue
        found.append((name, replace(placement, makespan=placement.simulate(relaxed).makespan)))
    return found
