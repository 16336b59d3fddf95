"""Readers of job traces: Gavel, Philly, Helios, Alibaba PAI, Slurm, and one's own CSV."""

from .machines import MachineUse, read_pai_machines
from .reading import FORMATS, SAMPLES, read_workload

__all__ = ["FORMATS", "SAMPLES", "MachineUse", "read_pai_machines", "read_workload"]
