"""What tables and pictures over seeds call the figures of ``results.json``, and in which units they show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hadoppler.scripts.report import size_axis

TIMES = {
    "ttd_s": "TTD",
    "mean_jct_s": "mean JCT",
    "median_jct_s": "median",
    "p99_jct_s": "p99",
    "queueing_s": "queued",
    "max_waiting_s": "longest wait",
    "simulated_ttd_s": "simulated TTD",
    "simulated_mean_jct_s": "simulated JCT",
}
"""Times of schedules, all shown in the unit that suits the longest, as in the table of a single run."""
SECONDS = {"decision_s": "decided", "measured_s": "measured"}
SIZES = {"bytes_moved": "moved"}
"""Bytes, in the unit that suits the largest of each."""
NUMBERS = {
    "makespan": "makespan",
    "ratio_bound": "/ bound",
    "ratio_bound_mean": "/ bound, mean",
    "ratio_bound_worst": "/ bound, worst",
    "ratio_best": "/ best",
    "measured_ratio": "measured / simulated",
    "ftf": "FTF",
    "max_ftf": "worst FTF",
    "gru": "GRU",
    "cru": "CRU",
    "restarts": "restarts",
    "finished": "finished",
    "overruns": "overruns",
}
NEVER_NEGATIVE = frozenset({*TIMES, *SECONDS, *SIZES, *NUMBERS})
"""Figures whose interval ends at 0."""


@dataclass(frozen=True)
class Heading:
    """What stands over a figure: its name with the unit, and the divisor that its values are shown by."""

    text: str
    divisor: float = 1.0


def headings(figures: Mapping[str, Iterable[float]]) -> dict[str, Heading]:
    """The heading of every figure, by its values; figures without a name of ours keep their own."""
    from hadoppler.envs.cluster.render import time_unit

    longest = max((value for name, values in figures.items() if name in TIMES for value in values), default=0.0)
    divisor, unit = time_unit(longest)
    found = {}
    for name, values in figures.items():
        if name in SIZES:
            size, letters = size_axis(max(values, default=0.0))
            found[name] = Heading(f"{SIZES[name]} [{letters}]", size)
        elif name in TIMES:
            found[name] = Heading(f"{TIMES[name]} [{unit}]", divisor)
        elif name in SECONDS:
            found[name] = Heading(f"{SECONDS[name]} [s]")
        else:
            found[name] = Heading(NUMBERS.get(name, name))
    return found
