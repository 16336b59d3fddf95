"""Hadoppler: schedule deep-learning work on unequal hardware, from clusters down to operations."""

__version__ = "0.1.0"
