"""Typed errors of the whole package.

Each message is one sentence that names the offender, says what was expected and how to mend it.
All of them derive from ``HadopplerError``, which the command line prints without a traceback.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class HadopplerError(ValueError):
    """A mistake in the user's input; the message is meant to be shown as it is."""


class GraphError(HadopplerError):
    """A dataflow graph, or the file or module it is read from, is not usable."""


class TopologyError(HadopplerError):
    """A description of devices and links is not usable."""


class PlacementError(HadopplerError):
    """An assignment or an order does not belong to its graph and devices."""


class MemoryLimitError(PlacementError):
    """A placement, or every placement, needs more memory than a device has."""


class UnknownNameError(HadopplerError):
    """A method, preset, workload or option of that name does not exist."""


class MissingExtraError(HadopplerError, ImportError):
    """An optional package is needed and not installed."""


class ClusterError(HadopplerError):
    """A description of nodes, of their failures, or the rules of a cluster simulation are not usable."""


class ThroughputError(HadopplerError):
    """A throughput table is not usable, or lacks a model or a GPU type that a job needs."""


class TraceError(HadopplerError):
    """A trace of jobs cannot be read at all; single bad rows are reported with the workload instead."""


class SchedulerError(HadopplerError):
    """An option of a scheduler is out of range."""


class AllocationError(HadopplerError):
    """A scheduler's decision does not belong to its cluster and jobs."""


class CheckpointError(HadopplerError):
    """A file of a trained policy is missing, or is not one."""


class TrainingError(HadopplerError):
    """A setting of a training is out of range."""


class SuiteError(HadopplerError):
    """A suite of problems is not the one that its name stands for."""


def describe(value: object) -> str:
    """What stands where something else belongs, in a few letters: plain values as they are, of others the type."""
    plain = isinstance(value, str | int | float | None)
    return repr(value) if plain else f"of the type {type(value).__name__}"


def unknown_name(noun: str, name: str, valid: Iterable[str], otherwise: str = "") -> UnknownNameError:
    """The error for a name that nobody offers, with the nearest one, all that are valid, and what else one can do."""
    names = list(valid)
    near = get_close_matches(str(name), names, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return UnknownNameError(f"no {noun} is called {name!r}{hint}; choose one of {', '.join(names)}{otherwise}.")
