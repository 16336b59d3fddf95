"""Hydra configuration: one folder a group, values only in YAML."""
