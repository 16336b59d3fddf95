"""What a command left in its folder, told to a run of Weights & Biases: artifacts, a table with pictures, figures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hadoppler.scripts.metrics import best_figures, read_metrics
from hadoppler.scripts.sweep_figures import numbers, read_results

ARTIFACTS: dict[str, tuple[str, ...]] = {
    "checkpoint": ("policy.pt",),
    "placement": ("placement.json",),
    "results": ("results.json", "run.json", "jobs.csv", "*.png"),
}
"""Kind of an artifact -> its files; rounds.csv is left out, for it may be very large."""
NAMES = ("method", "scheduler", "times")
"""Keys of a row that tell what it is of."""


@contextmanager
def staged_in(folder: Path) -> Iterator[None]:
    """What wandb copies until it is uploaded lies in a folder, unless the user has chosen another place for it."""
    chosen = "WANDB_DATA_DIR" in os.environ
    os.environ.setdefault("WANDB_DATA_DIR", str(folder.absolute()))
    try:
        yield
    finally:
        if not chosen:
            del os.environ["WANDB_DATA_DIR"]


def tell_results(run: Any, folder: Path) -> None:
    """Give a run all that its folder holds; nothing that is not there."""
    with staged_in(folder / "wandb"):
        _tell(run, folder)


def _tell(run: Any, folder: Path) -> None:
    lines = read_metrics(folder)
    if lines:
        run.summary.update({f"best/{name}": value for name, value in best_figures(lines).items()})
    else:  # the rows of a training are the lines that were logged already
        rows = read_results(folder).get("rows", [])
        run.summary.update(named_figures(rows))
        tell_table(run, folder, rows)
    for kind, patterns in ARTIFACTS.items():
        tell_artifact(run, kind, [path for pattern in patterns for path in sorted(folder.glob(pattern))])


def tell_artifact(run: Any, kind: str, paths: Sequence[Path]) -> None:
    """Log files as an artifact of a run, which keeps them where they are; nothing for none."""
    import wandb

    if not paths:
        return
    artifact = wandb.Artifact(f"{kind}-{run.id}", type=kind)
    for path in paths:
        artifact.add_file(str(path.absolute()), name=path.name, policy="immutable")
    run.log_artifact(artifact)


def tell_table(run: Any, folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Log the rows of ``results.json`` as a table, the Gantt picture of each placement beside it; nothing for none."""
    import wandb

    if not rows:
        return
    cells = table_columns(rows)
    pictures = [folder / "placements" / f"{row.get('method')}.png" for row in rows]
    if any(path.exists() for path in pictures):
        cells["gantt"] = [wandb.Image(str(path)) if path.exists() else None for path in pictures]
    table = wandb.Table(columns=list(cells), data=[list(row) for row in zip(*cells.values(), strict=True)])
    run.log({"placements" if "gantt" in cells else "results": table})


def table_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Key -> its values in all rows, of those that are texts or numbers; each column is of one kind, gaps are None."""
    found = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        values = [row.get(key) for row in rows]
        kinds = (bool, int, float) if any(isinstance(value, int | float) for value in values) else (str,)
        if any(isinstance(value, kinds) for value in values):  # undefined numbers are texts in JSON
            found[key] = [value if isinstance(value, kinds) else None for value in values]
    return found


def named_figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """``NAME/FIGURE`` -> value, of rows whose name no other row has."""
    names = [next((str(row[key]) for key in NAMES if key in row), "") for row in rows]
    return {
        f"{name}/{key}": value
        for name, row in zip(names, rows, strict=True)
        if name and names.count(name) == 1
        for key, value in numbers(row, row).items()
    }
