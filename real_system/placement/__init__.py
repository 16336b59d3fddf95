"""Placed graphs on real and emulated devices."""

from .cpu import cpu_executor
from .cuda import cuda_executor
from .emulated import emulated_executor
from .executor import Execution, ExecutionError, ExecutionTimeoutError, Executor

__all__ = [
    "Execution",
    "ExecutionError",
    "ExecutionTimeoutError",
    "Executor",
    "cpu_executor",
    "cuda_executor",
    "emulated_executor",
]
