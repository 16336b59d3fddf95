"""What every command shares: a Hydra application whose errors are one sentence."""

from __future__ import annotations

import os
import secrets
import sys
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from hadoppler.envs.errors import HadopplerError
from hadoppler.scripts.compilation import compilation_told
from hadoppler.scripts.mistakes import CommandError as CommandError, check_settings, one_sentence
from hadoppler.scripts.offers import add_choices, names_of, own_choices
from hadoppler.scripts.resume import can_go_on
from hadoppler.scripts.run_state import recorded
from hadoppler.scripts.sweep import Member, SweepFolder, read_members, report_sweep
from hadoppler.scripts.sweep_figures import Figures, no_figures

CONFIG_PATH = "pkg://hadoppler.conf"
ENDED = (
    "a process of the sweep was ended from outside, most likely for lack of memory; members that are not in the table "
    "did not begin; give fewer processes, as hydra.launcher.n_jobs=1."
)
OmegaConf.register_new_resolver(  # when imported, so that the processes of a sweep have it too
    "resumed", lambda folder, there, fresh: there if folder and can_go_on(folder) else fresh, replace=True
)


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
    what became of it. At the end tables tell that of all and their figures over the seeds, as ``sweep.json`` does.

    Args:
        check: refuses settings before anything in the run's folder is touched.
        record: keep ``status.json`` for single runs too.
        figures: what a member's folder tells.
    """
    _prepare(name, arguments)
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

    previous = sys.argv, warnings.formatwarning
    sys.argv, warnings.formatwarning = [f"hadoppler {name}", *arguments], partial(_warning, name, previous[1])
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
        if SweepFolder.current is None:
            raise
        mistakes.append(CommandError(ENDED))
    except KeyboardInterrupt:
        print(f"hadoppler {name}: stopped.", file=sys.stderr)
        return 130
    finally:
        members = read_members(sweep)
        report_sweep(Console(), members, figures)
        sys.argv, warnings.formatwarning = previous
    return _conclude(name, arguments, mistakes, members)


def _prepare(name: str, arguments: Sequence[str]) -> None:
    """What a command's settings refer to; nothing is left of an earlier command in this process."""
    OmegaConf.register_new_resolver("unique_run", lambda: secrets.token_hex(3), replace=True, use_cache=True)
    OmegaConf.register_new_resolver("choices", _choices, replace=True)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing and exiting
    SweepFolder.forget()
    for sentence in add_choices(arguments):
        print(f"hadoppler {name}: {sentence}", file=sys.stderr)


def _warning(name: str, usual: Callable[..., str], message: Any, category: Any, file: str, *others: Any) -> str:
    """A warning that this package gives, as a sentence; others as usual: with a file and a line of code."""
    path, root = Path(file), Path(__file__).parents[1]
    own = path.is_relative_to(root) and "site-packages" not in path.relative_to(root).parts  # of a .venv in a checkout
    if own and category is UserWarning:
        return f"hadoppler {name}: {message}\n"
    return usual(message, category, file, *others)


def _conclude(name: str, arguments: Sequence[str], mistakes: list[Exception], members: Sequence[Member]) -> int:
    """Print what went wrong, a sentence each; returns the exit code."""
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
            check_settings(config)
            check(config)
            with compilation_told():
                answer = job(config)
        return answer
    check_settings(config)
    check(config)
    with recorded(folder, judge) if record else nullcontext(), compilation_told():
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
        seen = list[BaseException]()  # one within another leaves causes that go round in a circle
        while cause is not None and cause not in seen:
            if isinstance(cause, HadopplerError):
                raise cause from error
            seen.append(cause)
            cause = cause.__cause__
        origin = error.__cause__
        if origin is not None and not isinstance(origin, TypeError | ValueError | AttributeError):
            raise origin from error
        reason = (str(origin or error).splitlines() or [type(origin).__name__])[0]
        given = ", ".join(f"{key}={value}" for key, value in config.items() if not str(key).startswith("_"))
        raise CommandError(f"{config.get('_target_', 'configuration')} cannot take {given} ({reason}).") from error


def _choices(*groups: str) -> str:
    """A line per group with the names of its files and of what other packages offer, for ``--help``."""
    names = {group: sorted({*own_choices(group), *names_of(group)}) for group in groups}
    return "\n".join(f"{group}: {', '.join(names[group])}" for group in groups) + "\n"
