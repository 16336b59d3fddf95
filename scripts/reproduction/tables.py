"""What is reproduced: a published table or figure with its rows, settings and claims, one ``conf/table/NAME.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import resources
from itertools import product
from typing import Any

import yaml
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hadoppler.envs.errors import HadopplerError

COMMANDS = ("train", "simulate", "place", "run", "calibrate", "evaluate")
TAKES = ("best", "first", "last", "mean")
HOWS = ("ratio", "reduction", "difference", "value")
ACROSS = ("mean", "best")
KINDS = ("completion_times", "use", "gantt", "curves", "calibration", "predicted", "lines")
At = Mapping[str, Any]
"""Settings of a part: name -> value."""


class TableError(HadopplerError):
    """A file of a table is wrong, or there is none of this name."""


@dataclass
class Figure:
    """A figure that is read from ``results.json`` of a part.

    Attributes:
        key: its name there; ``a.b`` is b inside a. Of several names the first counts that a row has.
        label, unit: for readers.
        better: ``lower`` or ``higher``.
        inside: where in the file its rows are.
        where: values by which the rows are chosen.
        take: which of several rows counts: ``best``, ``first``, ``last`` or their ``mean``.
        divide: a number, or the name of another figure of the same row.
        at: settings at which there is such a figure; elsewhere it stays empty.
    """

    key: Any = MISSING
    label: str = MISSING
    unit: str = ""
    better: str = "lower"
    inside: str = "rows"
    where: dict[str, Any] = field(default_factory=dict)
    take: str = "best"
    divide: Any = 1
    at: dict[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """Its names."""
        return [str(key) for key in (self.key if isinstance(self.key, list) else [self.key])]


@dataclass
class Need:
    """A file of another part that a row begins with.

    Attributes:
        row: of the other part.
        file: in its folder.
        table: where the row stands; the same table if empty.
        at: settings of the other part; of those that are not named, it has the same as this part, else its first.
    """

    row: str = MISSING
    file: str = MISSING
    table: str = ""
    at: dict[str, Any] = field(default_factory=dict)


@dataclass
class Row:
    """One row of a table.

    Attributes:
        row: its settings, ``conf/experiment/ROW.yaml``.
        command: if it is not the table's.
        settings: more of them.
        quick: others for ``mode=quick``.
        along: as of the table.
        only: setting -> the values of the table's at which there is this row.
        needs: setting -> the file that it names.
    """

    row: str = MISSING
    command: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    along: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    only: dict[str, list[Any]] = field(default_factory=dict)
    needs: dict[str, Need] = field(default_factory=dict)


@dataclass
class Claim:
    """A published comparison, and how ours is computed.

    Attributes:
        title: what is compared.
        figure, of, over: ``of`` is the row whose figure is compared with that of the row ``over``.
        how: ``ratio`` (of / over), ``reduction`` (1 - of / over), ``difference`` (of - over), or ``value`` (of alone).
        at: settings; a list gives a line for each value. Settings that are not named are taken ``across``.
        across: ``mean``, or ``best`` (the largest).
        published: a number, a range [low, high], or words.
        unit: ``x``, ``%`` (of shares), or a figure's own.
        note: one sentence, where ours differs.
    """

    title: str = MISSING
    figure: str = MISSING
    of: str = MISSING
    over: str = ""
    how: str = "ratio"
    at: dict[str, Any] = field(default_factory=dict)
    across: str = "mean"
    published: Any = MISSING
    unit: str = "x"
    note: str = ""


@dataclass
class Published:
    """Published figures that are shown beside ours, over those of the reference row, for units differ.

    Attributes:
        figure: of ours.
        unit: of theirs.
        over: the setting whose values the figures are listed by.
        values: value -> row -> figure.
    """

    figure: str = MISSING
    unit: str = MISSING
    over: str = MISSING
    values: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass
class Picture:
    """A picture of a table.

    Attributes:
        kind: one of ``KINDS``.
        figure: what is drawn, in ``lines``, ``curves`` (a name in ``metrics.jsonl``) and ``predicted``.
        over: the setting on the horizontal axis of ``lines``.
    """

    kind: str = MISSING
    figure: str = ""
    over: str = ""


@dataclass
class Quick:
    """What ``mode=quick`` has instead.

    Attributes:
        over: fewer values of settings.
        seeds: fewer seeds.
        settings: more settings, for the rows that have them.
    """

    over: dict[str, list[Any]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0])
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Table:
    """A published table or figure.

    Attributes:
        title, source: what it is, and where it was published.
        command: what runs its rows.
        rows: label -> row.
        figures: name -> figure.
        over: setting -> its values; a row is run at each combination.
        along: setting -> value -> further settings that go with it, for the rows that have them.
        seeds: one part each.
        reference: the row that others are put over.
        place: in the report, from 1 up.
        alone: whether its parts measure seconds and so run one at a time, after all others.
        remark: a paragraph for readers.
    """

    name: str = MISSING
    title: str = MISSING
    source: str = MISSING
    command: str = MISSING
    rows: dict[str, Row] = field(default_factory=dict)
    figures: dict[str, Figure] = field(default_factory=dict)
    over: dict[str, list[Any]] = field(default_factory=dict)
    along: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    seeds: list[int] = field(default_factory=lambda: [0])
    reference: str = ""
    place: int = 99
    alone: bool = False
    remark: str = ""
    claims: list[Claim] = field(default_factory=list)
    published: Published | None = None
    pictures: list[Picture] = field(default_factory=list)
    quick: Quick = field(default_factory=Quick)

    def settings(self, row: str, quick: bool) -> Iterator[dict[str, Any]]:
        """The combinations of settings at which a row is run."""
        over = self.over | self.quick.over if quick else self.over
        only = self.rows[row].only
        chosen = [[value for value in values if value in only.get(name, values)] for name, values in over.items()]
        for values in product(*chosen):
            yield dict(zip(over, values, strict=True))

    def chosen_seeds(self, quick: bool) -> list[int]:
        """The seeds of a mode."""
        return self.quick.seeds if quick else self.seeds


def table_names() -> list[str]:
    """All tables that there are."""
    folder = resources.files("hadoppler.conf").joinpath("table")
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def read_table(name: str) -> Table:
    """A table by name.

    Raises:
        TableError: there is none, or its file is wrong.
    """
    names = table_names()
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose some of {', '.join(names)}."
        raise TableError(f"there is no table {name!r}; {hint}")
    path = resources.files("hadoppler.conf").joinpath("table", f"{name}.yaml")
    return parse_table(name, path.read_text(encoding="utf-8"))


def parse_table(name: str, text: str) -> Table:
    """A table from the text of its file.

    Raises:
        TableError: a key is unknown, missing or of the wrong type, or a name that it mentions does not exist.
    """
    where = f"conf/table/{name}.yaml"
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise TableError(f"{where}: it is no YAML ({' '.join(str(error).split())}).") from error
    if not isinstance(content, dict):
        raise TableError(f"{where}: expected settings such as title and rows, found {type(content).__name__}.")
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Table), OmegaConf.create(content), {"name": name})
        table: Any = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise TableError(f"{where}: {error.full_key or 'the file'}: {said}.") from error
    _check(table, where)
    return table


def _check(table: Table, where: str) -> None:
    """Refuse names and words that nothing stands for."""
    if not table.rows or not table.figures:
        raise TableError(f"{where}: it has no {'figures' if table.rows else 'rows'}; give one at least.")
    for command in [table.command, *(row.command for row in table.rows.values() if row.command)]:
        _one_of(where, "command", command, COMMANDS)
    for name, figure in table.figures.items():
        _one_of(where, f"figures.{name}.better", figure.better, ("lower", "higher"))
        _one_of(where, f"figures.{name}.take", figure.take, TAKES)
        _known(where, f"figures.{name}.at", figure.at, table.over)
    for label, row in table.rows.items():
        _known(where, f"rows.{label}.only", row.only, table.over)
        _known(where, f"rows.{label}.along", row.along, table.over)
        for setting, need in row.needs.items():
            if not need.table:
                _one_of(where, f"rows.{label}.needs.{setting}.row", need.row, list(table.rows))
    for number, claim in enumerate(table.claims):
        _check_claim(table, claim, where, f"claims[{number}]")
    _check_shown(table, where)
    _known(where, "along", table.along, table.over)
    _known(where, "quick.over", table.quick.over, table.over)


def _check_claim(table: Table, claim: Claim, where: str, here: str) -> None:
    _one_of(where, f"{here}.figure", claim.figure, list(table.figures))
    for label in [claim.of, *([claim.over] if claim.how != "value" else [])]:
        _one_of(where, f"{here}, its row", label, list(table.rows))
    _one_of(where, f"{here}.how", claim.how, HOWS)
    _one_of(where, f"{here}.across", claim.across, ACROSS)
    _known(where, f"{here}.at", claim.at, table.over)
    numbers = claim.published if isinstance(claim.published, list) else [claim.published]
    if not all(isinstance(value, int | float) for value in numbers) and not isinstance(claim.published, str):
        raise TableError(f"{where}: {here}.published is {claim.published!r}; expected a number, [low, high], or words.")


def _check_shown(table: Table, where: str) -> None:
    """Names in what is shown beside the figures."""
    for number, picture in enumerate(table.pictures):
        _one_of(where, f"pictures[{number}].kind", picture.kind, KINDS)
        if picture.kind in ("lines", "predicted"):
            _one_of(where, f"pictures[{number}].figure", picture.figure, list(table.figures))
        if picture.kind == "lines":
            _one_of(where, f"pictures[{number}].over", picture.over, list(table.over))
    if table.reference:
        _one_of(where, "reference", table.reference, list(table.rows))
    if table.published:
        _one_of(where, "published.figure", table.published.figure, list(table.figures))
        _one_of(where, "published.over", table.published.over, list(table.over))


def _one_of(where: str, what: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        near = get_close_matches(given, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}."
        raise TableError(f"{where}: {what} is {given!r}; {hint}")


def _known(where: str, what: str, given: Mapping[str, Any], over: Mapping[str, Any]) -> None:
    for name in given:
        if name not in over:
            raise TableError(
                f"{where}: {what} names {name!r}, over which the table does not range; add it to over, or leave it out."
            )
