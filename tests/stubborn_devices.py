"""CPU devices whose operations do not return; a module that other processes can import."""

from __future__ import annotations

import time
from typing import Any

from hadoppler.envs.placement import PlacementProblem
from hadoppler.real_system.placement.cpu import CpuDevices, CpuJob
from hadoppler.real_system.placement.threads import ThreadExecutor


class StubbornJob(CpuJob):
    """Its first operation sleeps in native code for a minute."""

    def compute(self, v: int) -> None:
        time.sleep(60.0)


class StubbornDevices(CpuDevices):
    """CPU devices with such jobs."""

    def job(self, plan: Any, inputs: Any, seed: int) -> StubbornJob:
        return StubbornJob(plan, [])


def stubborn(problem: PlacementProblem) -> ThreadExecutor:
    return ThreadExecutor(problem, StubbornDevices(problem))
