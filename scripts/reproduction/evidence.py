"""What came out: figures of parts, over seeds, and what they say of the published claims."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from hadoppler.scripts.intervals import Estimate, estimate
from hadoppler.scripts.report import read_json
from hadoppler.scripts.reproduction.parts import Part, Plan, short
from hadoppler.scripts.reproduction.records import FINISHED, Record, read_record, rows_of
from hadoppler.scripts.reproduction.tables import At, Claim, Figure, Table

Values = dict[int, float]
"""Seed -> figure."""


@dataclass(frozen=True)
class Finding:
    """A claim at some settings, and ours.

    Attributes:
        table, claim: what was published.
        setting: at which settings, for people.
        ours: over seeds; None if parts are missing.
        ratios: ours over what was published, a number for each published one.
    """

    table: Table
    claim: Claim
    setting: str
    ours: Estimate | None
    ratios: Sequence[float]


@dataclass
class Evidence:
    """Results of the parts of a plan, read when they are asked for.

    Attributes:
        plan: the parts.
        root: where they are.
    """

    plan: Plan
    root: Path
    _results: dict[str, dict[str, Any]] = field(default_factory=dict)
    _records: dict[str, Record] = field(default_factory=dict)

    def record(self, part: Part) -> Record:
        """What became of a part."""
        if part.key not in self._records:
            self._records[part.key] = read_record(part, self.root)
        return self._records[part.key]

    def results(self, part: Part) -> dict[str, Any]:
        """``results.json`` of a part; ``{}`` if it has not finished."""
        if part.key not in self._results:
            done = self.record(part).state == FINISHED
            self._results[part.key] = read_json(part.folder(self.root) / "results.json") if done else {}
        return self._results[part.key]

    def parts(self, table: str, row: str, at: At | None = None) -> list[Part]:
        """Parts of a row; at some settings, if they are given."""
        return [part for part in self.plan.rows[table] if part.row == row and (at is None or dict(part.at) == dict(at))]

    def values(self, table: Table, figure: str, row: str, at: At) -> Values:
        """A figure of a row at some settings, by seed; of the parts that have it."""
        told = table.figures[figure]
        if any(at.get(name) != value for name, value in told.at.items()):
            return {}
        found = {part.seed: figure_of(told, self.results(part)) for part in self.parts(table.name, row, at)}
        return {seed: value for seed, value in found.items() if value is not None}


def figure_of(figure: Figure, results: Mapping[str, Any]) -> float | None:
    """A figure of ``results.json``; None if it has no such number."""
    wanted = figure.where.items()
    chosen = [row for row in rows_of(results, figure.inside) if all(row.get(key) == value for key, value in wanted)]
    found = [value for value in (_quotient(figure, row) for row in chosen) if value is not None]
    if not found:
        return None
    if figure.take == "best":
        return min(found) if figure.better == "lower" else max(found)
    return fmean(found) if figure.take == "mean" else found[0 if figure.take == "first" else -1]


def _quotient(figure: Figure, row: Mapping[str, Any]) -> float | None:
    above = next((value for value in (_number(row, key) for key in figure.keys) if value is not None), None)
    below = _number(row, figure.divide) if isinstance(figure.divide, str) else float(figure.divide)
    return above / below if above is not None and below else None


def _number(row: Any, key: str) -> float | None:
    for name in key.split("."):
        row = row.get(name) if isinstance(row, Mapping) else None
    known = isinstance(row, int | float) and not isinstance(row, bool) and math.isfinite(row)
    return float(row) if known else None


def find(evidence: Evidence, table: Table) -> list[Finding]:
    """Every claim of a table, a finding for each value of settings that it lists."""
    return [
        _finding(evidence, table, claim, chosen)
        for claim in table.claims
        for chosen in _lines(claim.at, evidence.plan.quick and table.quick.over)
    ]


def _lines(at: At, quick: Any) -> Iterator[dict[str, Any]]:
    """The settings of each line of a claim; what quick runs leave out has no line of its own."""
    listed = {name: value if isinstance(value, list) else [value] for name, value in at.items()}
    for name, values in dict(quick or {}).items():
        if name in listed:
            listed[name] = [value for value in listed[name] if value in values] or (
                list(values) if isinstance(at[name], list) else listed[name]
            )
    for values in product(*listed.values()):
        yield dict(zip(listed, values, strict=True))


def _finding(evidence: Evidence, table: Table, claim: Claim, chosen: dict[str, Any]) -> Finding:
    here = [at for at in table.settings(claim.of, evidence.plan.quick) if _agrees(at, chosen)]
    found = [values for values in (compared(evidence, table, claim, at) for at in here) if values]
    seeds = sorted(set.intersection(*(set(values) for values in found))) if found else []
    pick = fmean if claim.across == "mean" else max
    ours = estimate([pick([values[seed] for values in found]) for seed in seeds]) if seeds else None
    numbers = [] if isinstance(claim.published, str) else numbers_of(claim)
    ratios = [ours.centre / number for number in numbers if ours is not None and number]
    free = [f"{claim.across} over {name.rpartition('.')[2]}" for name in table.over if name not in chosen]
    free = free if len(here) > 1 else []
    fixed = [f"{name.rpartition('.')[2]} {short(value)}" for name, value in chosen.items()]
    return Finding(table, claim, ", ".join([*fixed, *free]), ours, ratios)


def numbers_of(claim: Claim) -> list[float]:
    """The published numbers: one, or the ends of a range."""
    return list(claim.published) if isinstance(claim.published, list) else [claim.published]


def _agrees(at: At, chosen: At) -> bool:
    return all(at.get(name) == value for name, value in chosen.items())


def compared(evidence: Evidence, table: Table, claim: Claim, at: At) -> Values:
    """What a claim compares, at some settings: by seed, of the seeds that both rows have."""
    ours = evidence.values(table, claim.figure, claim.of, at)
    if claim.how == "value":
        return ours
    theirs = evidence.values(table, claim.figure, claim.over, at)
    if claim.how == "difference":
        return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}
    quotients = {seed: ours[seed] / theirs[seed] for seed in ours if theirs.get(seed)}
    if claim.how == "ratio":
        return quotients
    return {seed: 1.0 - quotient for seed, quotient in quotients.items()}


def over_reference(evidence: Evidence, table: Table, figure: str, row: str, at: At) -> Estimate | None:
    """A figure of a row over that of the table's reference row, paired by seed; None where there is none."""
    if not table.reference:
        return None
    ours = evidence.values(table, figure, row, at)
    theirs = evidence.values(table, figure, table.reference, at)
    quotients = [ours[seed] / theirs[seed] for seed in sorted(ours) if theirs.get(seed)]
    return estimate(quotients) if quotients else None


def estimated(values: Values) -> Estimate | None:
    """Centre and interval of a figure over seeds; None without a value."""
    return estimate([values[seed] for seed in sorted(values)]) if values else None
