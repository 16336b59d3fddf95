"""Parts: one call of one command each, known by a hash of all that its result depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hadoppler import __version__
from hadoppler.scripts.report import plain
from hadoppler.scripts.reproduction.table_files import read_table
from hadoppler.scripts.reproduction.tables import At, Table, TableError
from hadoppler.scripts.settings import setting

TOLD = ("resume", "tracking", "pictures", "rounds", "processes")
"""Settings that change what is told of a result, not the result: they are not in the hash."""


@dataclass(frozen=True, eq=False)
class Part:
    """One call of one command.

    Attributes:
        table, row, at, seed: where its figures stand.
        command: of ``hadoppler``.
        settings: all of them, by name.
        needs: setting -> another part, and the file in its folder that the setting names.
        key: hash of the command, its composed settings, the package's version, and the keys of the parts it needs.
        has: names of the command's settings.
        alone: whether it measures seconds, so that nothing may run beside it.
        drawn: whether pictures show what it did in every round.
    """

    table: str
    row: str
    at: At
    seed: int
    command: str
    settings: Mapping[str, Any]
    needs: Mapping[str, tuple[Part, str]]
    key: str
    has: Sequence[str]
    alone: bool
    drawn: bool

    @property
    def name(self) -> str:
        """For people."""
        where = [f"{key.rpartition('.')[2]} {short(value)}" for key, value in self.at.items()]
        return ", ".join([f"{self.table}: {self.row}", *where, f"seed {self.seed}"])

    def folder(self, root: Path) -> Path:
        """Where it writes."""
        return root / "parts" / self.key

    def words(self, root: Path) -> list[str]:
        """The command line behind ``hadoppler``, without where it writes."""
        files = {setting: str(part.folder(root) / file) for setting, (part, file) in self.needs.items()}
        told = {"pictures": False, "rounds": self.drawn}
        more = {name: value for name, value in told.items() if name in self.has and name not in self.settings}
        return [self.command, *(setting(*item) for item in {**self.settings, **files, **more}.items())]


@dataclass
class Plan:
    """All parts of some tables.

    Attributes:
        tables: by name.
        quick: the mode.
        rows: table -> its parts, in the order of its lines.
        parts: key -> part, those first that others need; also of tables that are not shown.
    """

    tables: dict[str, Table]
    quick: bool
    rows: dict[str, list[Part]] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)


def make_plan(names: Sequence[str], *, quick: bool, short: Mapping[str, Any] | None = None) -> Plan:
    """The parts of tables.

    Args:
        names: of tables.
        quick: the mode.
        short: settings of ``mode=quick``, for the rows that have them.

    Raises:
        TableError: a table is wrong, or the settings of a row cannot be composed.
    """
    tables = {name: read_table(name) for name in names}
    tables = dict(sorted(tables.items(), key=lambda item: (item[1].place, item[0])))
    with configurations():
        return plan_of(tables, quick=quick, short=short)


def plan_of(tables: Mapping[str, Table], *, quick: bool, short: Mapping[str, Any] | None = None) -> Plan:
    """``make_plan`` of tables that were read already; Hydra must know where settings are."""
    plan = Plan(dict(tables), quick)
    maker = _Maker(dict(tables), quick, dict(short or {}) if quick else {}, plan.parts)
    for name, table in tables.items():
        plan.rows[name] = [
            maker.make(name, row, at, seed)
            for row in table.rows
            for at in table.settings(row, quick)
            for seed in table.chosen_seeds(quick)
        ]
    return plan


@contextmanager
def configurations() -> Iterator[None]:
    """Let ``compose`` find the package's settings, within a command of Hydra's or without one."""
    if GlobalHydra.instance().is_initialized():
        yield
        return
    with initialize_config_module("hadoppler.conf", version_base="1.3"):
        yield


class _Maker:
    """Makes parts, each once, and first those that it needs."""

    def __init__(self, tables: dict[str, Table], quick: bool, short: dict[str, Any], made: dict[str, Part]) -> None:
        self.tables, self.quick, self.short, self.made = tables, quick, short, made
        self.under_way: list[tuple[str, str]] = []
        self.composed: dict[tuple[str, ...], DictConfig] = {}
        self.groups = GlobalHydra.instance().config_loader().list_groups("")

    def make(self, name: str, row: str, at: At, seed: int) -> Part:
        """The part of a row at some settings, with a seed."""
        if (name, row) in self.under_way:
            told = " -> ".join(row for _, row in [*self.under_way, (name, row)])
            raise TableError(f"conf/table/{name}.yaml: rows need each other: {told}; take one need away.")
        self.under_way.append((name, row))
        table = self.tables[name]
        wanted = table.rows[row].needs.items()
        needs = {setting: (self._needed(name, need, at, seed), need.file) for setting, need in wanted}
        self.under_way.pop()
        part = self._part(name, row, at, seed, needs)
        self.made.setdefault(part.key, part)
        return part

    def _needed(self, name: str, need: Any, at: At, seed: int) -> Part:
        other = need.table or name
        if other not in self.tables:
            self.tables[other] = read_table(other)
        table = self.tables[other]
        if need.row not in table.rows:
            raise TableError(f"conf/table/{name}.yaml: it needs the row {need.row!r} of {other}, which has none.")
        found = list(table.settings(need.row, self.quick))
        wanted = {key: value for key, value in {**at, **need.at}.items() if key in table.over}
        for key, values in (table.over | (table.quick.over if self.quick else {})).items():
            wanted.setdefault(key, values[0])
        if wanted not in found and not need.at:
            wanted = next((there for there in found if _agree(there, at)), found[0])
        seeds = table.chosen_seeds(self.quick)
        return self.make(other, need.row, wanted, seed if seed in seeds else seeds[0])

    def _part(self, name: str, row: str, at: At, seed: int, needs: Mapping[str, tuple[Part, str]]) -> Part:
        table, told = self.tables[name], self.tables[name].rows[row]
        command = told.command or table.command
        settings = {"experiment": told.row, **at, **told.settings}
        keys = {setting: f"{part.key}/{file}" for setting, (part, file) in needs.items()}
        where = f"conf/table/{name}.yaml: {row}"
        config = self._compose(where, command, settings | keys)
        more = {**_along(table.along, at), **_along(told.along, at)}
        if self.quick:
            more |= self.short | table.quick.settings | told.quick
        files = {key: value for key, value in more.items() if key in self.groups and key not in at and has(config, key)}
        if files:  # what they bring can be set, too
            settings |= files
            config = self._compose(where, command, settings | keys)
        more = {key: value for key, value in more.items() if has(config, key) and key not in at}
        if more:
            settings |= more
            config = self._compose(where, command, settings | keys)
        seeded = "seeds" if "seeds" in config else "seed"
        values = {str(key): value for key, value in _with(config, seeded, seed).items() if key not in TOLD}
        known = {"command": command, "config": plain(values), "version": __version__}
        key = hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()[:16]
        alone = table.alone and not self.quick  # seconds of quick runs say nothing anyway
        drawn = "rounds" in config and seed == table.chosen_seeds(self.quick)[0]
        settings[seeded] = seed
        return Part(
            name, row, dict(at), seed, command, settings, dict(needs), key, tuple(map(str, config)), alone, drawn
        )

    def _compose(self, where: str, command: str, settings: Mapping[str, Any]) -> DictConfig:
        """The settings of a command; what chooses among files is composed once, for it takes a tenth of a second."""
        groups = {key: value for key, value in settings.items() if key in self.groups}
        words = tuple(setting(*item) for item in groups.items())
        try:
            if (command, *words) not in self.composed:
                import_module(f"hadoppler.scripts.{command}")  # the schema of its settings
                self.composed[command, *words] = compose(command, list(words))
            config = self.composed[command, *words].copy()
            for key, value in settings.items():
                if key not in groups:
                    OmegaConf.update(config, key, value)
        except (HydraException, OmegaConfBaseException) as error:
            said = " ".join(str(error.__cause__ or error).split())
            raise TableError(f"{where}: its settings cannot be composed: {said}.") from error
        return config


def _along(along: Mapping[str, Mapping[str, Mapping[str, Any]]], at: At) -> dict[str, Any]:
    """Further settings that go with the values of a part's."""
    chosen = [values.get(str(at.get(name)), {}) for name, values in along.items()]
    return {key: value for found in chosen for key, value in found.items()}


def _agree(there: At, at: At) -> bool:
    return all(at.get(key, value) == value for key, value in there.items())


def _with(config: DictConfig, name: str, seed: int) -> dict[Any, Any]:
    """All settings in plain form, with a seed."""
    OmegaConf.update(config, name, seed)
    found: Any = OmegaConf.to_container(config, resolve=True)
    return found


def has(config: DictConfig, key: str) -> bool:
    """Whether there is a setting of this name, be it without a value."""
    parent, _, last = key.rpartition(".")
    try:
        node = OmegaConf.select(config, parent) if parent else config
    except OmegaConfBaseException:
        return False
    return isinstance(node, DictConfig) and last in list(node.keys())


def short(value: Any) -> str:
    """A setting's value for people."""
    if isinstance(value, Mapping):
        return " ".join(f"{key} {short(item)}" for key, item in value.items())
    return ", ".join(map(short, value)) if isinstance(value, list | tuple) else str(value)
