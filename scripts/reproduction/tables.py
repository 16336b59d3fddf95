"""What is reproduced: a published table or figure with its rows, settings and claims, one ``conf/table/NAME.yaml``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from omegaconf import MISSING

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
        """The combinations of settings at which a row is run; one that quick runs leave out has its own first."""
        over = self.over | self.quick.over if quick else self.over
        only = {name: self.rows[row].only.get(name, values) for name, values in over.items()}
        chosen = {name: [value for value in values if value in only[name]] for name, values in over.items()}
        for values in product(*(found or only[name][:1] for name, found in chosen.items())):
            yield dict(zip(over, values, strict=True))

    def chosen_seeds(self, quick: bool) -> list[int]:
        """The seeds of a mode."""
        return self.quick.seeds if quick else self.seeds
