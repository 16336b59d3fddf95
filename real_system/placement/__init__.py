"""Placed graphs on real and emulated devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .cpu import cpu_executor
from .cuda import cuda_executor
from .emulated import emulated_executor
from .executor import Execution, ExecutionClosedError, ExecutionError, ExecutionTimeoutError, Executor

if TYPE_CHECKING:
    from .placed_module import PlacedModule

__all__ = [
    "Execution",
    "ExecutionClosedError",
    "ExecutionError",
    "ExecutionTimeoutError",
    "Executor",
    "PlacedModule",
    "cpu_executor",
    "cuda_executor",
    "emulated_executor",
]


def __getattr__(name: str) -> Any:
    """``PlacedModule`` is a module of torch, which is imported when it is asked for."""
    if name == "PlacedModule":
        from .placed_module import PlacedModule

        return PlacedModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
