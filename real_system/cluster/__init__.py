"""The cluster level on real devices."""

from .profile import Measurement, Timing, find_devices, measure
from .throughput_file import check_target, extend
from .training_job import Data, JobSpec, TrainingJob
from .training_step import ProfileError

__all__ = [
    "Data",
    "JobSpec",
    "Measurement",
    "ProfileError",
    "Timing",
    "TrainingJob",
    "check_target",
    "extend",
    "find_devices",
    "measure",
]
