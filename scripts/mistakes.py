"""What was wrong with a command line, in one sentence, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hadoppler.baselines.registry import how_to_offer
from hadoppler.envs.errors import HadopplerError
from hadoppler.scripts.offers import FAMILIES


class CommandError(HadopplerError):
    """A command line that cannot be carried out."""


def one_sentence(error: Exception, name: str, arguments: Sequence[str] = ()) -> str:
    """What was wrong with the command line, and what would be right."""
    if isinstance(error, HadopplerError):
        return str(error)
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        return (
            f"{error.filename or 'a file'}: {error.strerror or error}; check the path, its rights and the free space."
        )
    if isinstance(error, OverrideParseException):
        return f"{error.override!r} cannot be read; give name=value, a list as name=[a,b], other texts in quotes."
    text = str(error)
    missing = re.search(r"Could not (?:find|load) '(?P<group>\w+)/(?P<choice>[^']*)'", text)
    if missing:
        with hydra.initialize_config_module("hadoppler.conf", version_base="1.3"):
            choices = GlobalHydra.instance().config_loader().get_group_options(missing["group"])
        group, choice = missing["group"], missing["choice"]
        return f"there is no {group} called {choice!r}; choose one of {', '.join(choices)}{_other_way(group, choice)}."
    unknown = re.search(r"Could not override '(?P<key>[^']+)'", text) or re.search(
        r"Key '(?P<key>[^']+)' (?:is not in struct|not in)", text
    )
    if unknown:
        key = unknown["key"]
        left_out = _left_out(key, name, arguments)
        return left_out or f"there is no setting {key!r}; {_nearest(key, _valid_keys(name, arguments))}"
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        text = (str(cause).splitlines() or [type(cause).__name__])[0]
        text = f"{cause.full_key}: {text}" if cause.full_key else text
    return " ".join(line.strip() for line in text.splitlines() if line.strip()).rstrip(".") + "."


def _other_way(group: str, choice: str) -> str:
    """How to give what looks like a file, or like a function of one's own."""
    if group in FAMILIES and not choice.isidentifier():
        return how_to_offer(FAMILIES[group].noun, FAMILIES[group].entry_points)
    if group in ("graph", "topology", "cluster") and "." in choice:
        return f"; a file is given as {group}=file {group}.path={choice}"
    if group == "workload" and "." in choice:
        return f"; a file is given as workload=trace workload.path={choice}"
    return ""


def check_settings(config: DictConfig) -> None:
    """Refuse settings that the schema does not know (``+name=...`` adds them) and values left as ``???``."""
    schema: Any = OmegaConf.get_type(config)
    if is_dataclass(schema):
        valid = [item.name for item in fields(schema)]
        for key in map(str, config):
            if key not in valid:
                raise CommandError(f"there is no setting {key!r}; {_nearest(key, valid)}")
    for key in sorted(OmegaConf.missing_keys(config)):
        raise CommandError(f"{key} is missing; give it as {key}=VALUE.")


def _valid_keys(name: str, arguments: Sequence[str]) -> list[str]:
    """Every setting of a command under the groups that were chosen; of a sweep, the first of them."""
    with hydra.initialize_config_module("hadoppler.conf", version_base="1.3"):
        groups = GlobalHydra.instance().config_loader().list_groups("")
        chosen = [re.sub(r"=(\w+),.*", r"=\1", item) for item in arguments if item.partition("=")[0] in groups]
        try:
            return list(_keys(hydra.compose(name, chosen)))
        except HydraException:
            return list(_keys(hydra.compose(name)))


def _left_out(key: str, name: str, arguments: Sequence[str]) -> str | None:
    """The sentence if a choice leaves out the group of ``key``, which the command has otherwise; None if none does."""
    root = key.partition(".")[0]
    with hydra.initialize_config_module("hadoppler.conf", version_base="1.3"):
        groups = GlobalHydra.instance().config_loader().list_groups("")
        if root not in groups or not hydra.compose(name).get(root):
            return None
        chosen = [item.partition("=") for item in arguments]
        for group, choice in [(group, choice) for group, _, given in chosen for choice in given.split(",")]:
            with suppress(HydraException):
                if group in groups and group != root and not hydra.compose(name, [f"{group}={choice}"]).get(root):
                    return f"{root} does not go with {group}={choice}; leave it out, or choose another {group}."
    return None


def _nearest(key: str, valid: Sequence[str]) -> str:
    """Valid settings close to ``key``: beside it, or of its name elsewhere."""
    parent, _, last = key.rpartition(".")
    while parent and parent not in valid:
        parent, _, last = parent.rpartition(".")
    beside = {item.rpartition(".")[2]: item for item in valid if item.rpartition(".")[0] == parent}
    near = [beside[item] for item in get_close_matches(last, beside, n=2)]
    near = near or [item for item in valid if item.endswith(f".{last}")]
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"valid ones are {', '.join(beside.values())}." if beside else f"there are none in {parent}."


def _keys(config: DictConfig, prefix: str = "") -> list[str]:
    found = []
    for key in map(str, config):
        if key.startswith("_"):
            continue
        found.append(f"{prefix}{key}")
        child = config._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_missing():
            found.extend(_keys(child, f"{prefix}{key}."))
    return found
