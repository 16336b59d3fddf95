"""The report: ``report.md``, and the same as one page, ``report.html``."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hadoppler import __version__
from hadoppler.scripts.intervals import Estimate
from hadoppler.scripts.report import read_json
from hadoppler.scripts.reproduction.evidence import Evidence, Finding, estimated, find, numbers_of, over_reference
from hadoppler.scripts.reproduction.page import page
from hadoppler.scripts.reproduction.parts import Part, short
from hadoppler.scripts.reproduction.pictures import draw
from hadoppler.scripts.reproduction.records import FAILED, FINISHED, MISSING
from hadoppler.scripts.reproduction.table_files import table_names
from hadoppler.scripts.reproduction.tables import Figure, Table
from hadoppler.scripts.settings import setting

NOTHING = "–"


def write_report(evidence: Evidence, folder: Path) -> tuple[Path, Path]:
    """Write both forms of the report, atomically, with pictures beside the first; returns their paths."""
    from hadoppler.envs.placement.readers.files import write_text

    shutil.rmtree(folder / "pictures", ignore_errors=True)
    (folder / "pictures").mkdir(parents=True)
    markdown = "\n".join(lines_of(evidence, folder)) + "\n"
    paths = folder / "report.md", folder / "report.html"
    write_text(paths[0], markdown)
    write_text(paths[1], page(markdown, folder))
    return paths


def lines_of(evidence: Evidence, folder: Path) -> Iterator[str]:
    """The report's lines; pictures are written on the way."""
    plan = evidence.plan
    yield f"# Reproduction, {'quick' if plan.quick else 'full'} mode"
    yield from _overview(evidence)
    yield from _claims(evidence)
    for table in (plan.tables[name] for name in plan.rows):
        yield from _table(evidence, table)
        for drawn in draw(evidence, table):
            from hadoppler.envs.pictures import save_figure

            save_figure(folder / "pictures" / drawn.name, drawn.figure)
            yield from ("", f"![{_text(drawn.caption)}](pictures/{drawn.name})", "", f"*{_text(drawn.caption)}*")
        yield from _commands(evidence, table)


# --- what was run -------------------------------------------------------------------------------------


def _overview(evidence: Evidence) -> Iterator[str]:
    plan = evidence.plan
    shown = {part.key: part for parts in plan.rows.values() for part in parts} | plan.parts
    records = {key: evidence.record(part) for key, part in shown.items()}
    count = Counter(record.state for record in records.values())
    begun = sorted(record.begun for record in records.values() if record.begun and record.state == FINISHED)
    mode, seconds = "quick" if plan.quick else "full", sum(record.seconds for record in records.values())
    yield ""
    yield (
        f"{count[FINISHED]} of {len(records)} parts finished, {count[FAILED]} failed, {count[MISSING]} are missing. "
        + (
            f"Begun between {begun[0]} and {begun[-1]}; {seconds / 3600:.3g} hours of processes together."
            if begun
            else ""
        )
    )
    if plan.quick:
        yield ""
        yield (
            "**This is the quick mode: it shows that every row runs. Trainings have a few updates, workloads a few "
            "jobs, most rows one seed; its figures say nothing about the claims.**"
        )
    yield from (
        "",
        f"hadoppler {__version__}; this report was written on {platform.platform()}, {os.cpu_count()} cores.",
    )
    for told, number in _machines(evidence, shown.values()).most_common():
        yield from ("", f"{number} parts: {_text(told)}.")
    names = "" if set(plan.rows) == set(table_names()) else f" 'tables=[{','.join(plan.rows)}]'"
    yield from ("", "To repeat everything, and this report from what is there:", "", "```sh")
    yield f"hadoppler reproduce mode={mode}{names}"
    yield f"hadoppler reproduce mode={mode}{names} run=false"
    yield "```"
    yield ""
    yield (
        "Of five seeds or more, figures are interquartile means with 95 % bootstrap intervals; of fewer, means with "
        "Student's t; of one, the figure alone. Ratios are taken seed by seed. Every part's folder is named by a hash; "
        "`part.json` in it holds its command, `log.txt` what it said."
    )
    yield from _failures(evidence, shown.values())


def _machines(evidence: Evidence, parts: Iterable[Part]) -> Counter[str]:
    """Where parts ran, with which versions."""
    found: Counter[str] = Counter()
    for part in parts:
        told = read_json(part.folder(evidence.root) / "run.json") if evidence.results(part) else {}
        if told:
            versions = ", ".join(f"{name} {value}" for name, value in told.get("versions", {}).items())
            found[f"{told.get('machine')}, Python {told.get('python')}, {versions}{_commit(told)}"] += 1
    return found


def _commit(told: Mapping[str, Any]) -> str:
    """Of the package's checkout; older records have that of the folder only in which they were made."""
    state = told.get("hadoppler_git", told.get("git")) or {}
    commit, changed = state.get("commit", "")[:10], ", with changes" * bool(state.get("changed"))
    return f", commit {commit}{changed}" if commit else ""


def _failures(evidence: Evidence, parts: Iterable[Part]) -> Iterator[str]:
    """Parts that failed, with their sentences, and how many are missing of which table."""
    failed = [part for part in parts if evidence.record(part).state == FAILED]
    if failed:
        yield from ("", "## Parts that failed", "")
        for part in failed:
            yield f"- {_text(part.name)}: {_text(evidence.record(part).reason)} (`parts/{part.key}/log.txt`)"
    missing = Counter(part.table for part in parts if evidence.record(part).state == MISSING)
    if missing:
        told = ", ".join(f"{number} of {name}" for name, number in missing.items())
        yield from ("", f"Parts that are missing, because they were not run or not to their end: {told}.")


# --- claims -------------------------------------------------------------------------------------------


def _claims(evidence: Evidence) -> Iterator[str]:
    rows = [_claim(finding) for name in evidence.plan.rows for finding in find(evidence, evidence.plan.tables[name])]
    if rows:
        yield from ("", "## Claims", "")
        remark = "remark on the full run" if evidence.plan.quick else "remark"
        yield from _markdown(("claim", "published", "ours", "ours / published", "setting", "seeds", remark), rows)


def _claim(finding: Finding) -> list[str]:
    claim, ours = finding.claim, finding.ours
    published = claim.published
    if not isinstance(published, str):
        published = "–".join(_in_unit(number, claim.unit) for number in numbers_of(claim)) + f" {_unit(claim.unit)}"
    setting = f"{finding.table.name}; {finding.setting}" if finding.setting else finding.table.name
    return [
        claim.title,
        published,
        NOTHING if ours is None else f"{_interval(ours, claim.unit)} {_unit(claim.unit)}".strip(),
        " to ".join(f"{ratio:.3g}" for ratio in finding.ratios) or NOTHING,
        setting,
        NOTHING if ours is None else str(ours.seeds),
        claim.note,
    ]


def _unit(unit: str) -> str:
    return {"x": "×"}.get(unit, unit)


def _in_unit(number: float, unit: str) -> str:
    return f"{100 * number:.3g}" if unit == "%" else f"{number:.4g}"


def _interval(found: Estimate, unit: str) -> str:
    centre, low, high = (_in_unit(value, unit) for value in (found.centre, found.low, found.high))
    return centre if found.seeds < 2 else f"{centre} [{low}, {high}]"


# --- tables -------------------------------------------------------------------------------------------


def _table(evidence: Evidence, table: Table) -> Iterator[str]:
    yield from ("", f"## {_text(table.title)}", "", f"{_text(table.source)} (table `{table.name}`)")
    if table.remark:
        yield from ("", _text(table.remark))
    yield ""
    header = [name.rpartition(".")[2] for name in table.over] + ["row", "seeds"]
    for figure in table.figures.values():
        header.append(_heading(figure))
        if table.reference:
            header.append(f"/ {table.reference}")
    if table.published:
        header += [f"published [{table.published.unit}]", f"published / {table.reference}"]
    yield from _markdown(header, list(_rows(evidence, table)))


def _heading(figure: Figure) -> str:
    return f"{figure.label} [{figure.unit}]" if figure.unit else figure.label


def _rows(evidence: Evidence, table: Table) -> Iterator[list[str]]:
    """A line for each combination of settings and each row that is run there."""
    seen: list[dict[str, Any]] = []
    for part in evidence.plan.rows[table.name]:
        if dict(part.at) not in seen:
            seen.append(dict(part.at))
    for at in seen:
        for row in table.rows:
            parts = evidence.parts(table.name, row, at)
            if parts:
                yield [short(at[name]) for name in table.over] + _cells(evidence, table, row, at, parts)


def _cells(evidence: Evidence, table: Table, row: str, at: Mapping[str, Any], parts: Sequence[Part]) -> list[str]:
    done = sum(evidence.record(part).state == FINISHED for part in parts)
    failed = sum(evidence.record(part).state == FAILED for part in parts)
    state = f"{done}" if done == len(parts) else f"{done} of {len(parts)}" + f", {failed} failed" * bool(failed)
    cells = [row, state]
    for name in table.figures:
        cells.append(_told(estimated(evidence.values(table, name, row, at))))
        if table.reference:
            cells.append(_told(over_reference(evidence, table, name, row, at)))
    if table.published:
        known = table.published.values.get(str(at.get(table.published.over)), {})
        ours, reference = known.get(row), known.get(table.reference)
        cells.append(NOTHING if ours is None else f"{ours:g}")
        cells.append(NOTHING if ours is None or not reference else f"{ours / reference:.3f}")
    return cells


def _told(found: Estimate | None) -> str:
    return NOTHING if found is None else str(found)


def _commands(evidence: Evidence, table: Table) -> Iterator[str]:
    """How to run the first part of each row by itself."""
    yield from ("", f"Commands of `{table.name}`: the first part of each row; others differ in settings and seed.", "")
    yield "```sh"
    for row in table.rows:
        parts = evidence.parts(table.name, row)
        if parts:
            words = parts[0].words(evidence.root)
            folder = setting("hydra.run.dir", str(parts[0].folder(evidence.root)))
            yield f"hadoppler {shlex.join([*words, folder])}"
    yield "```"


# --- Markdown -----------------------------------------------------------------------------------------


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table of Markdown."""
    yield f"| {' | '.join(map(_text, header))} |"
    yield f"|{'---|' * len(header)}"
    for row in rows:
        yield f"| {' | '.join(map(_text, row))} |"


def _text(text: str) -> str:
    """Text in which no sign means anything to Markdown."""
    for sign in "\\|*_`<>[]#":
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
