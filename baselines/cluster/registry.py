"""Find a scheduler by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...envs.cluster import Scheduler
from ..registry import check_options, find_by_name

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
    """
    make: Callable[..., Scheduler] = find_by_name(name, table, "hadoppler.schedulers", "scheduler")
    options = dict(options or {})
    check_options(f"scheduler {name!r}", make, options)
    return make(**options)
