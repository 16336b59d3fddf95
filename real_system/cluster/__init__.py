"""The cluster level on real devices."""

from .profile import Measurement, Timing, find_devices, measure
from .throughput_file import check_target, extend
from .training_step import ProfileError

__all__ = ["Measurement", "ProfileError", "Timing", "check_target", "extend", "find_devices", "measure"]
