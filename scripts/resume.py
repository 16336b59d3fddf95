"""``resume=FOLDER``: in which folders a command can go on, and that it goes on with the settings it began with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from hadoppler.envs.errors import HadopplerError
from hadoppler.scripts.report import plain, read_json
from hadoppler.scripts.run_state import held


class ResumeError(HadopplerError):
    """A command cannot go on in the folder that was given."""


@dataclass(frozen=True)
class Resumable:
    """A command that can go on where it was stopped.

    Attributes:
        command: its name.
        what: it does, for people.
        mark: setting by which its folders are known: no other command has it.
        free: settings that may change, because they do not touch what is done.
    """

    command: str
    what: str
    mark: str
    free: tuple[str, ...]

    def began_in(self, folder: str | Path) -> bool:
        """Whether the command began in a folder."""
        return self._settings(folder) is not None

    def with_settings(self, words: Sequence[str]) -> list[str]:
        """``resume=FOLDER`` alone means all settings with which it began there; what is given beside it wins."""
        resumed = [word.partition("=")[2] for word in words if word.startswith("resume=")]
        if not resumed or not self.began_in(resumed[-1]):
            return list(words)  # the check tells what is wrong with the folder
        try:
            text = (Path(resumed[-1]) / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")
            began = list(map(str, yaml.safe_load(text) or []))
        except (OSError, ValueError, yaml.YAMLError):
            return list(words)
        given = {_key(word) for word in words}
        return [*(word for word in began if _key(word) not in given), *words]

    def check(self, config: DictConfig, folder: str) -> None:
        """Refuse a folder before anything in it is touched.

        Raises:
            ResumeError: it is not the command's, or its settings were others.
            RunningError: the command is at work in it.
        """
        began = self._settings(folder)
        if began is None:
            raise ResumeError(
                f"resume={folder} is no folder of hadoppler {self.command}; give one that holds its run.json."
            )
        with held(Path(folder)):
            pass
        given = plain(OmegaConf.to_container(config, resolve=True))
        now, then = dict(_flat(given)), dict(_flat(began))
        for key in sorted({**now, **then}, key=lambda key: key.count(".")):
            if key.partition(".")[0] not in self.free and now.get(key, ...) != then.get(key, ...):
                here = f"is {_told(now, key)}" if _told(now, key) else "is not given"
                there = f"began with {_told(then, key)}" if _told(then, key) else "began without it"
                raise ResumeError(
                    f"{key} {here}, but the {self.what} in {folder} {there}; give the settings it began with."
                )

    def _settings(self, folder: str | Path) -> dict[str, Any] | None:
        """The settings that it began with; None if the folder is not its own."""
        config = read_json(Path(folder) / "run.json").get("config")
        return config if isinstance(config, dict) and self.mark in config else None


TRAINING = Resumable("train", "training", "agent", ("resume", "tracking", "pictures"))
RUN = Resumable("run", "run", "backend", ("resume", "tracking", "pictures", "linger_s", "quiet_s", "tries", "backend"))


def can_go_on(folder: str | Path) -> bool:
    """Whether some command began in a folder that can go on there."""
    return TRAINING.began_in(folder) or RUN.began_in(folder)


def _key(word: str) -> str:
    """The setting that a word of the command line gives, adds or takes away."""
    return word.partition("=")[0].lstrip("+~")


def _told(values: Mapping[str, Any], key: str) -> str:
    """A setting of ``_flat``, a group by all that it holds; nothing where there is none."""
    if key in values:
        return repr(values[key])
    mine = [f"{name}={value}" for name, value in values.items() if name.startswith(f"{key}.")]
    return ", ".join(mine)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting by its full name; an empty group stands for itself."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
