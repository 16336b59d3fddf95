"""Every block of the README is run as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hadoppler.scripts.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
COMMANDS = [line for language, text in BLOCKS if language == "bash" for line in text.splitlines()]
PROGRAMS = [text for language, text in BLOCKS if language == "python" and "def factory" not in text]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the files that the README asks for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model.py").write_text(next(text for _, text in BLOCKS if "def factory" in text))
    (tmp_path / "jobs.csv").write_text(next(text for language, text in BLOCKS if language == "csv"))
    for name, key in (("devices.yaml", "devices:"), ("cluster.yaml", "nodes:")):
        (tmp_path / name).write_text(next(text for language, text in BLOCKS if language == "yaml" and key in text))
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, folder: Path) -> None:
    words = shlex.split(command)
    assert words[0] == "hadoppler"
    assert main(words[1:]) == 0
    if words[-1] == "--help":
        return
    results = list(folder.glob("runs/**/results.json"))
    assert len(results) == (4 if "-m" in words else 1)


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(program: str, folder: Path) -> None:
    exec(compile(program, "README.md", "exec"), {"__name__": "readme"})


def test_links_and_pictures_exist() -> None:
    root = Path(__file__).parents[1]
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert "://" in target or (root / target).is_file(), target
