"""Hadoppler: schedule deep-learning work on unequal hardware, from clusters down to operations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .baselines.placement.methods import METHODS
from .envs.registration import register_environments

if TYPE_CHECKING:
    from .envs.cluster import Scheduler
    from .envs.placement import Placement, PlacementProblem

register_environments()

__version__ = "0.1.0"
__all__ = ["PLACEMENTS", "__version__", "make_scheduler", "place"]

PLACEMENTS: dict[str, str] = METHODS | {"doppler": "hadoppler.agents.placement.learned:doppler"}
"""Placement methods: name -> ``module:function``. Other packages add theirs through the entry point
group ``hadoppler.placements``. A method is called as ``method(problem, rng=, execution=, **options)``
and returns a ``Placement``."""


def place(method: str, problem: PlacementProblem, *, seed: int = 0, order: str = "fifo", **options: Any) -> Placement:
    """Place a problem's graph with a method by name, and score it in the simulator.

    Args:
        method: a name in ``PLACEMENTS``, or of another package's entry point.
        problem: graph and devices.
        seed: of the method's random draws.
        order: ``fifo``, or ``priority`` to run the operations in the method's own order wherever a
            device has a choice.
        options: the method's own; its docstring tells them.

    Raises:
        PlacementError: the arguments are of other types.
        UnknownNameError: no method has this name, or it has no such option.
        MissingExtraError: the method needs a package that is not installed.
        MemoryLimitError: the method found no placement that fits the devices' memory.
    """
    from .baselines.placement.registry import run_method

    return run_method(method, problem, PLACEMENTS, seed=seed, order=order, options=options)


def make_scheduler(name: str, **options: Any) -> Scheduler:
    """Make a cluster scheduler by name, such as ``make_scheduler("gavel", objective="max_min")``.

    Raises:
        UnknownNameError: no scheduler has this name, or it has no such option.
        MissingExtraError: the scheduler needs a package that is not installed.
    """
    from .baselines.cluster.registry import find_scheduler

    return find_scheduler(name, options)
