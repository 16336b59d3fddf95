"""``resume=FOLDER``: which folders a training can go on in, and that it goes on with the settings it began with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from hadoppler.envs.errors import HadopplerError
from hadoppler.scripts.report import plain
from hadoppler.scripts.run_state import held

FREE = ("resume", "tracking", "pictures")
"""Settings that may change, because they do not touch what is trained."""


class ResumeError(HadopplerError):
    """A training cannot go on in the folder that was given."""


def is_training(folder: str | Path) -> bool:
    """Whether ``hadoppler train`` began in a folder."""
    return _settings(folder) is not None


def with_settings(words: Sequence[str]) -> list[str]:
    """``resume=FOLDER`` alone means all settings with which the training in it began; what is given beside it wins."""
    resumed = [word.partition("=")[2] for word in words if word.startswith("resume=")]
    if not resumed or not is_training(resumed[-1]):
        return list(words)  # the check tells what is wrong with the folder
    try:
        text = (Path(resumed[-1]) / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")
        began = list(map(str, yaml.safe_load(text) or []))
    except (OSError, ValueError, yaml.YAMLError):
        return list(words)
    given = {_key(word) for word in words}
    return [*(word for word in began if _key(word) not in given), *words]


def _key(word: str) -> str:
    """The setting that a word of the command line gives, adds or takes away."""
    return word.partition("=")[0].lstrip("+~")


def check_resume(config: DictConfig, folder: str) -> None:
    """Refuse a folder before anything in it is touched.

    Raises:
        ResumeError: it is not a training's, or its settings were others.
        RunningError: a training is under way in it.
    """
    began = _settings(folder)
    if began is None:
        raise ResumeError(f"resume={folder} is no folder of hadoppler train; give one that holds its run.json.")
    with held(Path(folder)):
        pass
    given = plain(OmegaConf.to_container(config, resolve=True))
    now, then = dict(flat(given)), dict(flat(began))
    for key in sorted({**now, **then}, key=lambda key: key.count(".")):
        if key.partition(".")[0] not in FREE and now.get(key, ...) != then.get(key, ...):
            here = f"is {_told(now, key)}" if _told(now, key) else "is not given"
            there = f"began with {_told(then, key)}" if _told(then, key) else "began without it"
            raise ResumeError(f"{key} {here}, but the training in {folder} {there}; give the settings it began with.")


def _told(values: Mapping[str, Any], key: str) -> str:
    """A setting of ``_flat``, a group by all that it holds; nothing where there is none."""
    if key in values:
        return repr(values[key])
    mine = [f"{name}={value}" for name, value in values.items() if name.startswith(f"{key}.")]
    return ", ".join(mine)


def _settings(folder: str | Path) -> dict[str, Any] | None:
    """The settings that a training began with; None if the folder is not a training's."""
    try:
        record = json.loads((Path(folder) / "run.json").read_text(encoding="utf-8"))
        config = record["config"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return config if isinstance(config, dict) and "agent" in config else None


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its full name; an empty group stands for itself."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
