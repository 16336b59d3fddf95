"""Find a scheduler by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ...envs.errors import SchedulerError
from ..registry import SCHEDULERS as ENTRY_POINTS, check_options, find_by_name, offered, package_of

if TYPE_CHECKING:
    from ...envs.cluster import Scheduler

SCHEDULERS: dict[str, str] = {
    "yarn_cs": "hadoppler.baselines.cluster.yarn_cs:YarnCS",
    "tiresias": "hadoppler.baselines.cluster.tiresias:Tiresias",
    "srtf": "hadoppler.baselines.cluster.srtf:SRTF",
    "random": "hadoppler.baselines.cluster.random_scheduler:RandomScheduler",
    "gavel": "hadoppler.baselines.cluster.gavel:gavel",
    "replay": "hadoppler.baselines.cluster.replay:replay",
    "hadar": "hadoppler.baselines.cluster.hadar:hadar",
    "hadare": "hadoppler.baselines.cluster.hadare:HadarE",
    "learned": "hadoppler.agents.cluster.scheduler:LearnedScheduler",
    "sia": "hadoppler.baselines.cluster.sia:Sia",
}
"""Schedulers: name -> ``module:class or function`` that makes one from its options. Other packages add
theirs through the entry point group ``hadoppler.schedulers``."""


def find_scheduler(
    name: str, options: Mapping[str, Any] | None = None, table: Mapping[str, str] = SCHEDULERS
) -> Scheduler:
    """Make a scheduler by name with its own options.

    Raises:
        UnknownNameError: nobody offers the name, or it has no such option; the valid ones are listed.
        MissingExtraError: its module needs a package that is not installed.
        SchedulerError: another package's offer is no scheduler.
    """
    make: Callable[..., Scheduler] = find_by_name(name, table, ENTRY_POINTS, "scheduler")
    options = dict(options or {})
    check_options(f"scheduler {name!r}", make, options)
    scheduler = make(**options)
    if name not in table:
        from ...envs.cluster import Scheduler

        if not isinstance(scheduler, Scheduler):
            raise SchedulerError(
                f"the scheduler {name!r} of the package {package_of(offered(ENTRY_POINTS)[name])} is of the type "
                f"{type(scheduler).__name__}; expected an object with name, mixes, forks, reset and schedule."
            )
    return scheduler
