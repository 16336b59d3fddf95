"""What every command shares: a Hydra application whose errors are one sentence."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hadoppler.envs.errors import HadopplerError

CONFIG_PATH = "pkg://hadoppler.conf"


class CommandError(HadopplerError):
    """A command line that cannot be carried out."""


def launch(name: str, job: Callable[[DictConfig], Any], arguments: Sequence[str]) -> int:
    """Compose ``conf/<name>.yaml`` with ``arguments``, call ``job`` (once per sweep member), return the exit code.

    A user's mistake is printed as one sentence and gives 2; anything else is a defect and keeps its
    traceback.
    """
    OmegaConf.register_new_resolver("unique_run", lambda: secrets.token_hex(3), replace=True, use_cache=True)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting
    mistakes: list[HadopplerError] = []

    def run_one(config: DictConfig) -> Any:
        try:
            return job(config)
        except HadopplerError as error:
            if HydraConfig.get().mode == RunMode.MULTIRUN:
                raise  # Hydra runs the other members, then names this one
            mistakes.append(error)
            return None

    previous = sys.argv
    sys.argv = [f"hadoppler {name}", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=CONFIG_PATH, config_name=name)(run_one)()
        if mistakes:
            raise mistakes[0]
    except (HydraException, OmegaConfBaseException, HadopplerError) as error:
        print(f"hadoppler {name}: {one_sentence(error, name)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"hadoppler {name}: stopped.", file=sys.stderr)
        return 130
    finally:
        sys.argv = previous
    return 0


def instantiate(config: Any, *args: Any, **kwargs: Any) -> Any:
    """Hydra's ``instantiate``, with the errors of our own code passed through as they are.

    Raises:
        HadopplerError: the target refused its arguments.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate as hydra_instantiate

    try:
        return hydra_instantiate(config, *args, **kwargs)
    except InstantiationException as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, HadopplerError):
                raise cause from error
            cause = cause.__cause__
        reason = str(error.__cause__ or error).splitlines()[0]
        raise CommandError(f"{config.get('_target_', 'configuration')}: {reason}") from error


def one_sentence(error: Exception, name: str) -> str:
    """What was wrong with the command line, and what would be right."""
    text = str(error)
    missing = re.search(r"Could not find '(?:(?P<group>[\w/]+)/)?(?P<choice>[^'/]+)'", text)
    if missing and missing["group"]:
        choices = re.findall(r"^\t(\S+)$", text, flags=re.MULTILINE)
        return f"there is no {missing['group']} called {missing['choice']!r}; choose one of {', '.join(choices)}."
    unknown = re.search(r"Could not override '(?P<key>[^']+)'", text) or re.search(
        r"Key '(?P<key>[^']+)' (?:is not in struct|not in)", text
    )
    if unknown:
        return f"there is no setting {unknown['key']!r}; {_nearest(unknown['key'], name)}"
    absent = re.search(r"Missing mandatory value: (?P<key>[\w.]+)", text)
    if absent:
        return f"{absent['key']} is missing; give it as {absent['key']}=VALUE."
    cause = error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        text = str(cause)
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


def _nearest(key: str, name: str) -> str:
    """Valid names close to ``key``."""
    with hydra.initialize_config_module("hadoppler.conf", version_base="1.3"):
        valid = list(_keys(hydra.compose(name)))
    root, _, _ = key.rpartition(".")
    near = get_close_matches(key, valid, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(near)}?"
    siblings = [item for item in valid if item.rpartition(".")[0] == root]
    return f"valid ones are {', '.join(siblings or [item for item in valid if '.' not in item])}."


def _keys(config: DictConfig, prefix: str = "") -> list[str]:
    found = []
    for key in map(str, config):
        found.append(f"{prefix}{key}")
        child = config._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none():
            found.extend(_keys(child, f"{prefix}{key}."))
    return found
