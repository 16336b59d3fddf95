"""Every row of ``conf/experiment`` stands in a table, says what it is, and is composed by the command that runs it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("torch_geometric")

from hydra import compose
from omegaconf import OmegaConf

from hadoppler.scripts.application import instantiate
from hadoppler.scripts.reproduction.parts import configurations
from hadoppler.scripts.reproduction.table_files import read_table, table_names
from hadoppler.scripts.reproduction.tables import COMMANDS

FOLDER = Path(__file__).resolve().parents[1] / "conf" / "experiment"
ROWS = sorted(f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.yaml"))
TABLES = {name: read_table(name) for name in table_names()}
USES = [(row.command or table.command, row) for table in TABLES.values() for row in table.rows.values()]


@pytest.fixture(autouse=True)
def _settings() -> Iterator[None]:
    with configurations():
        yield


def test_every_row_stands_in_a_table() -> None:
    assert {row.row for _, row in USES} == set(ROWS)


@pytest.mark.parametrize("name", ROWS)
def test_rows_say_for_which_command_they_are(name: str) -> None:
    first, second, *_ = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert first == "# @package _global_"
    command, _, told = second.removeprefix("# ").partition(": ")
    assert command in COMMANDS
    assert {used for used, row in USES if row.row == name} == {command}
    assert told


@pytest.mark.parametrize("name", ROWS)
def test_rows_are_composed_by_their_command(name: str) -> None:
    command, row = next((command, row) for command, row in USES if row.row == name)
    graph = ["graph=chain"] if command in ("place", "calibrate") else []
    settings = [f"{setting}=somewhere/{need.file}" for setting, need in row.needs.items()]
    import_module(f"hadoppler.scripts.{command}")  # the schema of its settings
    config = compose(command, [f"experiment={name}", *graph, *settings])
    assert not OmegaConf.missing_keys(config)
    if command == "train":
        plan = instantiate(config.agent, _convert_="all")
        assert plan.made_stages()
        assert plan.execution == ("priority" if name.endswith("priority") else "fifo")


def test_every_published_table_is_there() -> None:
    cluster = {"headline", "mixes", "trained_mixes", "fork_quality"}
    simulated = {"main", "rivals", "policy_ablation", "stage_ablation", "transfer", "message_passing", "scaling"}
    executed = {"measured", "stages_measured", "work_conserving", "calibration"}
    assert set(TABLES) == cluster | simulated | executed | {"regimes", "recipe", "generalist"}
