"""Where a command is told beside its folder, which is always the record of truth: nowhere, or in wandb."""

from __future__ import annotations

import netrc
import os
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from hadoppler.envs.errors import HadopplerError, MissingExtraError
from hadoppler.scripts.application import instantiate
from hadoppler.scripts.metrics import read_metrics
from hadoppler.scripts.report import plain, read_json, say, write_json
from hadoppler.scripts.wandb_results import tell_results

MODES = ("online", "offline", "disabled")
SECONDS = 30
"""How long wandb may take to reach its server before a command begins."""


class TrackingError(HadopplerError):
    """A tracker cannot start with its settings."""


class Tracker(Protocol):
    """What a command tells; its settings are checked when it is made."""

    def start(self, folder: Path, config: Mapping[str, Any], group: str | None = None, resume: bool = False) -> str:
        """A command begins in ``folder``, as a member of the sweep ``group``; returns a sentence for people."""

    def log(self, line: Mapping[str, Any]) -> None:
        """A line of ``metrics.jsonl``, right after it was written."""

    def finish(self, status: str) -> None:
        """The command is ``finished``, ``failed`` or ``interrupted``; what it made lies in its folder."""


class NoTracker:
    """``tracking=none``."""

    def start(self, folder: Path, config: Mapping[str, Any], group: str | None = None, resume: bool = False) -> str:
        """Nothing."""
        return ""

    def log(self, line: Mapping[str, Any]) -> None:
        """Nothing."""

    def finish(self, status: str) -> None:
        """Nothing."""


@dataclass
class WandbTracker:
    """``tracking=wandb``: one run of Weights & Biases per run of a command, which goes on when that does.

    All its files lie in the command's folder, its id in ``wandb.json`` there. Artifacts (checkpoint, placement,
    results) and a table of the results are told at the end.

    Attributes:
        mode: ``online``, ``offline`` (``wandb sync`` uploads later) or ``disabled``; None: what ``WANDB_MODE`` or
            ``wandb offline`` say, else online if there is a key and offline if not. Nothing is ever asked.
        project, entity, tags: as in ``wandb.init``.

    Raises:
        MissingExtraError: wandb is not installed.
        TrackingError: the mode does not exist, or is ``online`` and there is no key.
    """

    mode: str | None = None
    project: str = "hadoppler"
    entity: str | None = None
    tags: Sequence[str] = ()
    _run: Any = field(default=None, init=False, repr=False)
    _step: int | None = field(default=None, init=False, repr=False)
    _folder: Path = field(default=Path(), init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            import wandb  # noqa: F401
        except ImportError as error:
            raise MissingExtraError(
                "tracking=wandb needs the package 'wandb'; install it with pip install 'hadoppler[wandb]', "
                "or leave tracking=wandb out."
            ) from error
        if self.mode not in (None, *MODES):
            raise TrackingError(f"tracking.mode is {self.mode!r}; expected one of {', '.join(MODES)}, or null.")
        self.tags = (self.tags,) if isinstance(self.tags, str) else tuple(map(str, self.tags or ()))
        self.mode = self.mode or _usual_mode()
        if self.mode == "online" and not has_key():
            raise TrackingError(
                "wandb is to be online and there is no key; set WANDB_API_KEY, run wandb login, "
                "or give tracking.mode=offline."
            )

    def start(self, folder: Path, config: Mapping[str, Any], group: str | None = None, resume: bool = False) -> str:
        """Begin a run of wandb, or go on with the one that ``wandb.json`` names.

        Raises:
            TrackingError: wandb refused, or was not reached.
        """
        import wandb

        self._folder = folder
        known = _read(folder / "wandb.json") if resume else {}
        online, was_online = self.mode == "online", bool(known.pop("online", False))
        told = known or {
            "id": secrets.token_hex(4),
            "project": self.project,
            "entity": self.entity,
            "group": group,
            "name": f"{group}/{folder.name}" if group else folder.name,
        }
        write_json(folder / "wandb.json", {**told, "online": was_online})
        how = ("must" if was_online else "allow") if known and online else None  # offline, the id alone does
        options: dict[str, Any] = {**told, "mode": self.mode, "resume": how, "tags": self.tags, "reinit": "create_new"}
        quiet = wandb.Settings(console="off", silent=True, init_timeout=SECONDS)
        try:
            self._run = wandb.init(dir=str(folder), config=plain(config), settings=quiet, **options)
        except wandb.errors.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise TrackingError(
                f"wandb did not start ({reason}); check the key and the network, or give tracking.mode=offline."
            ) from error
        write_json(folder / "wandb.json", {**told, "online": online or was_online})
        if online:
            return f"wandb: {self._run.url}"
        if self.mode == "disabled":
            return f"wandb: disabled, run {told['id']}"
        files = shlex.quote(str(Path(self._run.dir).parent))
        return f"wandb: offline, run {told['id']}; to upload it: wandb sync {files}"

    def log(self, line: Mapping[str, Any]) -> None:
        """One step of wandb per line; a line that was logged before the training stopped is not logged twice."""
        self._step = max(len(read_metrics(self._folder)), 1) if self._step is None else self._step + 1
        self._run.log(dict(line), step=self._step)

    def finish(self, status: str) -> None:
        """Tell what the folder holds, unless it was interrupted, and end the run; as failed, unless it finished."""
        if self._run is None:
            return
        import wandb

        run, self._run = self._run, None
        code = 1
        try:
            if status != "interrupted":
                tell_results(run, self._folder)
            code = 0 if status == "finished" else 1
        except wandb.errors.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise TrackingError(f"wandb took no results ({reason}); they are complete in {self._folder}.") from error
        finally:
            run.finish(exit_code=code)


def has_key() -> bool:
    """Whether wandb would find credentials by itself: in the environment, in its settings, or in a netrc file."""
    import wandb

    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    settings = wandb.setup().settings
    hosts = {urlsplit(str(settings.base_url)).netloc, "api.wandb.ai"}
    given = os.environ.get("NETRC")
    for path in [Path(given)] if given else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        with suppress(OSError, netrc.NetrcParseError):
            entries = netrc.netrc(str(path.expanduser()))
            if any((entries.hosts.get(host) or ("", "", ""))[2] for host in hosts):
                return True
    return bool(settings.api_key)


def _usual_mode() -> str:
    """The mode where none is given: the user's own choice, else by whether there is a key."""
    import wandb

    chosen = os.environ.get("WANDB_MODE") or str(wandb.setup().settings.mode)
    if chosen == "dryrun":
        return "offline"
    if chosen in MODES and (chosen != "online" or os.environ.get("WANDB_MODE")):
        return chosen
    return "online" if has_key() else "offline"


def _read(path: Path) -> dict[str, Any]:
    """What ``wandb.json`` tells; ``{}`` where there is none."""
    told = read_json(path)
    return told if "id" in told else {}


@contextmanager
def tracked(tracker: Tracker, folder: Path, config: DictConfig, *, resume: bool) -> Iterator[str]:
    """Start a tracker, as a member of its sweep's group, and tell it how it ended; yields its sentence for people."""
    settings = HydraConfig.get()
    group = Path(str(settings.sweep.dir)).name if settings.mode == RunMode.MULTIRUN else None
    values: Any = OmegaConf.to_container(config, resolve=True)
    status = "failed"
    try:
        yield tracker.start(folder, values, group, resume=resume)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        tracker.finish(status)


def tracked_job(job: Callable[[DictConfig], Any]) -> Callable[[DictConfig], Any]:
    """The job of a command, told to the tracker of its settings: when it begins, and at its end what it made."""

    @wraps(job)
    def run(config: DictConfig) -> Any:
        folder = Path(HydraConfig.get().runtime.output_dir)
        tracker: Tracker = instantiate(config.tracking, _convert_="all")
        with tracked(tracker, folder, config, resume=False) as sentence:
            if sentence:
                say(Console(), sentence)
            return job(config)

    return run


def is_tracked(config: DictConfig) -> bool:
    """Whether somebody is told."""
    return not str(config.tracking._target_).endswith(f".{NoTracker.__name__}")
