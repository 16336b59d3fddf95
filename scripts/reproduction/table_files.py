"""Files of tables: read, and held to what they may say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hadoppler.scripts.reproduction.tables import ACROSS, COMMANDS, HOWS, KINDS, TAKES, Claim, Table, TableError


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
