"""Every row of the published tables composes, and makes a plan whose stages exist."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch_geometric")

from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from hadoppler.scripts import train  # noqa: F401  (the schema of its settings)
from hadoppler.scripts.application import instantiate

FOLDER = Path(__file__).resolve().parents[1] / "conf" / "experiment"
ROWS = sorted(f"{path.parent.name}/{path.stem}" for path in FOLDER.glob("*/*.yaml"))


@pytest.mark.parametrize("row", ROWS)
def test_rows_make_plans(row: str) -> None:
    start = ["agent.start=policy.pt"] if row.startswith(("transfer/fine", "generalist/g")) else []
    with initialize_config_module("hadoppler.conf", version_base="1.3"):
        config = compose("train", [f"experiment={row}", *start])
    assert not OmegaConf.missing_keys(config)
    plan = instantiate(config.agent, _convert_="all")
    assert plan.made_stages()
    assert plan.execution == ("priority" if row.endswith("priority") else "fifo")


def test_every_published_table_has_rows() -> None:
    families = {row.partition("/")[0] for row in ROWS}
    published = {"main", "message_passing", "policy_ablation", "scaling", "stage_ablation", "transfer"}
    assert families == published | {"generalist", "real", "recipe", "regimes", "rivals"}
