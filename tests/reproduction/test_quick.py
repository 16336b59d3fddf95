"""``hadoppler reproduce mode=quick`` as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric")
pytest.importorskip("sklearn")

from hadoppler.scripts.reproduction.report import _text as written
from hadoppler.scripts.reproduction.table_files import read_table, table_names


@pytest.mark.slow
@pytest.mark.xdist_group("reproduce")
def test_every_row_runs_and_stands_in_the_report(tmp_path: Path) -> None:
    """Slow: about ninety processes, each of which imports torch, some with five workers; minutes on two cores."""
    command = [sys.executable, "-m", "hadoppler.scripts.cli", "reproduce", f"folder={tmp_path}"]
    environment = os.environ | {"COLUMNS": "200"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    text = (tmp_path / "quick" / "report.md").read_text(encoding="utf-8")
    assert ", 0 failed, 0 are missing." in text
    assert "| remark on the full run |" in text, "remarks are of another run than the figures beside them"
    for name in table_names():
        table = read_table(name)
        section = text.partition(f"## {written(table.title)}\n")[2].partition("\n## ")[0]
        for label, row in table.rows.items():
            assert f"| {written(label)} |" in section, f"{name}: {label}"
            assert f"experiment={row.row} " in section
        for number, picture in enumerate(table.pictures):
            assert f"pictures/{name}_{number}_" in section, f"{name}: {picture.kind}"
    assert (tmp_path / "quick" / "report.html").stat().st_size > 100_000
