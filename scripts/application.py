"""What every command shares: a Hydra application whose errors are one sentence."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import nullcontext, suppress
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from hadoppler.envs.errors import HadopplerError
from hadoppler.scripts.offers import add_choices, names_of, own_choices
from hadoppler.scripts.resume import can_go_on
from hadoppler.scripts.run_state import recorded
from hadoppler.scripts.sweep import SweepFolder, read_members, report_sweep
from hadoppler.scripts.sweep_figures import Figures, no_figures

CONFIG_PATH = "pkg://hadoppler.conf"
ENDED = (
    "a process of the sweep was ended from outside, most likely for lack of memory; members that are not in the table "
    "did not begin; give fewer processes, as hydra.launcher.n_jobs=1."
)
OmegaConf.register_new_resolver(  # when imported, so that the processes of a sweep have it too
    "resumed", lambda folder, there, fresh: there if folder and can_go_on(folder) else fresh, replace=True
)


class CommandError(HadopplerError):
    """A command line that cannot be carried out."""


def launch(
    name: str,
    job: Callable[[DictConfig], Any],
    arguments: Sequence[str],
    *,
    check: Callable[[DictConfig], None] = lambda config: None,
    record: bool = False,
    figures: Figures = no_figures,
) -> int:
    """Compose ``conf/<name>.yaml`` with ``arguments``, call ``job`` (once per sweep member), return the exit code.

    A user's mistake is printed as one sentence and gives 2. Anything else is a defect: it keeps its traceback and
    gives 1. A sweep runs all its members, in this process or in others; each tells in ``status.json`` of its folder
    what became of it; at the end tables of all and of their figures over the seeds are printed, and ``sweep.json``
    holds the same.

    Args:
        check: refuses settings before anything in the run's folder is touched.
        record: keep ``status.json`` for single runs too.
        figures: what a member's folder tells.
    """
    OmegaConf.register_new_resolver("unique_run", lambda: secrets.token_hex(3), replace=True, use_cache=True)
    OmegaConf.register_new_resolver("choices", _choices, replace=True)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting
    begun: list[bool] = []
    mistakes: list[Exception] = []
    sweep = secrets.token_hex(8)
    run = partial(_run, name=name, job=job, arguments=arguments, check=check, record=record, sweep=sweep)

    def run_one(config: DictConfig) -> Any:
        begun.append(True)
        try:
            return run(config)
        except (HadopplerError, OmegaConfBaseException) as error:
            if HydraConfig.get().mode == RunMode.MULTIRUN:  # its own folder could not take it
                raise
            mistakes.append(error)
            return None

    SweepFolder.forget()
    for sentence in add_choices(arguments):
        print(f"hadoppler {name}: {sentence}", file=sys.stderr)
    previous = sys.argv
    sys.argv = [f"hadoppler {name}", *arguments]
    try:
        hydra.main(version_base="1.3", config_path=CONFIG_PATH, config_name=name)(run_one)()
    except (HydraException, OmegaConfBaseException, HadopplerError, OSError) as error:
        mistakes.append(error)
    except ValueError as error:
        if begun:
            raise
        mistakes.append(error)  # Hydra's, while it composes
    except SystemExit as stop:  # --help, or a flag that Hydra does not know
        return stop.code if isinstance(stop.code, int) else int(bool(stop.code))
    except BrokenExecutor:
        mistakes.append(CommandError(ENDED))
    except KeyboardInterrupt:
        print(f"hadoppler {name}: stopped.", file=sys.stderr)
        return 130
    finally:
        members = read_members(sweep)
        report_sweep(Console(), members, figures)
        sys.argv = previous
    if SweepFolder.current is not None and not members and not mistakes:
        mistakes.append(CommandError(f"no member of the sweep left a result in {SweepFolder.current}; see its logs."))
    failed = [member for member in members if member.state != "finished"]
    told = [one_sentence(mistake, name, arguments) for mistake in mistakes]
    for sentence in [*told, *(f"{member.reason} (member {member.number}: {member.name})" for member in failed)]:
        print(f"hadoppler {name}: {sentence}", file=sys.stderr)
    return 1 if any(member.code == 1 for member in failed) else 2 if told or failed else 0


def _run(
    config: DictConfig,
    *,
    name: str,
    job: Callable[[DictConfig], Any],
    arguments: Sequence[str],
    check: Callable[[DictConfig], None],
    record: bool,
    sweep: str,
) -> Any:
    """One run, or one member of a sweep, whose errors end in its folder: Hydra would stop the sweep at some of them."""
    sys.argv = [f"hadoppler {name}", *arguments]  # in a process of its own, too
    settings = HydraConfig.get()
    folder = Path(settings.runtime.output_dir)
    judge = partial(_judge, name=name, arguments=arguments, folder=folder)
    if settings.mode == RunMode.MULTIRUN:
        member = {"number": settings.job.num, "overrides": list(settings.overrides.task)}
        answer = None
        with recorded(folder, judge, swallow=True, sweep=sweep, **member):
            _check_settings(config)
            check(config)
            answer = job(config)
        return answer
    _check_settings(config)
    check(config)
    with recorded(folder, judge) if record else nullcontext():
        return job(config)


def _judge(error: Exception, name: str, arguments: Sequence[str], folder: Path) -> tuple[int, str]:
    """Exit code and sentence of what ended a run: 2 for a user's mistake, 1 for a defect."""
    if isinstance(error, HadopplerError | OmegaConfBaseException | HydraException | OSError):
        return 2, one_sentence(error, name, arguments)
    said = " ".join(str(error).split()).rstrip(".")
    return 1, f"it failed with {type(error).__name__}: {said}; the traceback is in {folder / 'traceback.txt'}."


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
        origin = error.__cause__
        if origin is not None and not isinstance(origin, TypeError | ValueError | AttributeError):
            raise origin from error
        reason = (str(origin or error).splitlines() or [type(origin).__name__])[0]
        given = ", ".join(f"{key}={value}" for key, value in config.items() if not str(key).startswith("_"))
        raise CommandError(f"{config.get('_target_', 'configuration')} cannot take {given} ({reason}).") from error


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


def _choices(*groups: str) -> str:
    """A line per group with the names of its files and of what other packages offer, for ``--help``."""
    names = {group: sorted({*own_choices(group), *names_of(group)}) for group in groups}
    return "\n".join(f"{group}: {', '.join(names[group])}" for group in groups) + "\n"


def _other_way(group: str, choice: str) -> str:
    """How to give what looks like a file."""
    if group in ("graph", "topology", "cluster") and "." in choice:
        return f"; a file is given as {group}=file {group}.path={choice}"
    if group == "workload" and "." in choice:
        return f"; a file is given as workload=trace workload.path={choice}"
    return ""


def _check_settings(config: DictConfig) -> None:
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
