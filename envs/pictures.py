"""What all pictures share: colours, labels shown as they are, files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""Wong's eight colours, distinct for colour-blind readers."""
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
HATCHES = ("", "///", "...", "\\\\\\", "xxx", "+++", "ooo", "---")


def line_style(number: int) -> dict[str, Any]:
    """Colour and dashes of a line by its number, as matplotlib's arguments: forty differ, and five without colour."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def verbatim(text: str) -> str:
    """Text that matplotlib shows as it is: no formulas, and no label left out for its first underscore."""
    shown = text.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def save_figure(path: str | Path, figure: Figure) -> None:
    """Write a figure as PNG, atomically."""
    target = Path(path)
    scratch = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        figure.savefig(scratch, dpi=120, format="png")
        scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)
