"""One value where several belong: every setting that is a list takes it, or says in a sentence what to give."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import DictConfig, ListConfig, OmegaConf

from hadoppler.scripts import cli

pytest.importorskip("torch", reason="torch is not installed")
CONF = Path(__file__).parents[1] / "conf"
PLACE = "graph=chain topology=uniform pictures=false"
TRAIN = f"train {PLACE} agent.samples=2"
CLUSTER = "train agent=cluster agent.imitation_rounds=1 agent.ppo_rounds=0 pictures=false"
PROFILE = "profile model=to_measure:training repeats=1 seconds=0.01 warm_up=1"
ONLINE = "executor=emulated executor.bound_s=0.005 stage.online.updates=1 stage.online.batch=2"

GIVEN: dict[str, tuple[str, str | None]] = {
    "agent/cluster jobs": (f"{CLUSTER} agent.jobs=4", "jobs is 4; expected two whole numbers from 1 up"),
    "agent/cluster ppo_jobs": (f"{CLUSTER} agent.ppo_jobs=4", "ppo_jobs is 4; expected two whole numbers from 1 up"),
    "agent/cluster per_hour": (f"{CLUSTER} agent.per_hour=1", "per_hour is 1; expected two numbers from 0 up"),
    "agent/cluster clusters": (f"{CLUSTER} agent.clusters=headline", "clusters is 'headline'; expected a list"),
    "agent/cluster teachers": (f"{CLUSTER} agent.teachers=hadar", "teachers is 'hadar'; expected a list"),
    "agent/cluster validation": (f"{CLUSTER} agent.validation=3", "validation is 3; expected a list"),
    "one teacher": (f"{CLUSTER} agent.teachers=[hadar]", "teachers holds 'hadar'; expected a name and options"),
    "one validation": (f"{CLUSTER} agent.validation=[3,null,0]", "validation holds 3; expected [jobs, arrivals"),
    "evaluate fine_tune.learning_rate": (
        f"evaluate {PLACE} problems=one count=1 samples=1 fine_tune.updates=1 fine_tune.learning_rate=0.001 "
        "fine_tune.search_calls=10",
        None,
    ),
    "executor/emulated slow_links": (
        f"place {PLACE} method=[heft] executor=emulated executor.slow_links=3",
        "slow_links is 3",
    ),
    "problems/several graphs": (
        "evaluate problems=several problems.graphs=chain topology=uniform method=[heft] count=1 pictures=false",
        None,
    ),
    "problems/several graphs of nothing": (
        "evaluate problems=several problems.graphs=3 topology=uniform method=[heft] count=1 pictures=false",
        "problems.graphs holds 3; expected a workload's name",
    ),
    "profile batch_sizes": (f"{PROFILE} batch_sizes=8 devices=[cpu]", None),
    "profile workers": (f"{PROFILE} workers=1 devices=[cpu]", None),
    "profile devices": (f"{PROFILE} devices=cpu", None),
    "no batch size": (f"{PROFILE} batch_sizes=many devices=cpu", "batch_sizes is many; expected whole numbers"),
    "stage/imitation": (
        f"{TRAIN} stage=imitation stage.imitation.updates=1 stage.imitation.learning_rate=0.001 "
        "stage.imitation.epsilon=0.5",
        None,
    ),
    "stage/simulation": (
        f"{TRAIN} stage=simulation stage.simulation.updates=1 stage.simulation.learning_rate=0.001 "
        "stage.simulation.epsilon=0.5 stage.simulation.entropy=0.01 stage.simulation.search_heat=0.01",
        None,
    ),
    "stage/reinforce": (
        f"{TRAIN} stage=reinforce stage.simulation.updates=1 stage.simulation.learning_rate=0.001 "
        "stage.simulation.epsilon=0.5 stage.simulation.entropy=0.01 stage.simulation.search_heat=0.01",
        None,
    ),
    "stage/online": (
        f"{TRAIN} stage=online {ONLINE} stage.online.learning_rate=0.001 stage.online.epsilon=0.5 "
        "stage.online.entropy=0.01",
        None,
    ),
    "suite/cluster_test worlds": (
        "evaluate suite=cluster_test scheduler=srtf suite.worlds=headline",
        "worlds is 'headline'; expected a list",
    ),
    "one world": (
        "evaluate suite=cluster_test scheduler=srtf suite.worlds=[headline]",
        "world 0 is 'headline'; expected keys and values",
    ),
    "topology/p100s speeds": (f"place {PLACE} method=[heft] topology=p100s topology.speeds=2", None),
    "topology/uniform speeds": (f"place {PLACE} method=[heft] topology.speeds=2", None),
    "tracking/wandb tags": (
        f"place {PLACE} method=heft tracking=wandb tracking.mode=disabled tracking.tags=mine",
        None,
    ),
    "workload/physical hours": (
        "simulate scheduler=srtf workload=physical workload.hours=2",
        "hours is 2; expected two numbers from 0 up",
    ),
    "workload/tasks tasks": (
        "simulate scheduler=srtf workload=tasks cluster=equal5 workload.tasks=digits pictures=false",
        None,
    ),
    "workload/tasks workers": (
        "simulate scheduler=srtf workload=tasks cluster=equal5 workload.workers=1 pictures=false",
        None,
    ),
    "workload/tasks steps": ("run scheduler=srtf workload.steps=20", "steps is 20; expected two whole numbers from 1"),
    "place method": (f"place {PLACE} method=heft", None),
    "simulate seeds": ("simulate scheduler=srtf workload.jobs=3 seeds=3 pictures=false", None),
    "simulate no seeds": ("simulate scheduler=srtf workload.jobs=3 seeds=x", "seeds is x; expected whole numbers"),
    "evaluate scheduler": (
        "evaluate suite=cluster_test scheduler=srtf suite.sha256=null pictures=false "
        "suite.worlds=[{workload:headline,jobs:3,seed:0,cluster:headline}]",
        None,
    ),
    "reproduce tables": ("reproduce tables=headline run=false folder=report", None),
}
"""Setting, or what is given for it -> a command line, and what it says; None where it is carried out."""


def lists(values: DictConfig, prefix: str = "") -> Iterator[str]:
    """Keys of a file of settings whose values are lists."""
    for key in map(str, values):
        node = values._get_node(key)
        if isinstance(node, ListConfig) and not node._is_none() and key not in ("defaults",):
            yield f"{prefix}{key}"
        elif isinstance(node, DictConfig) and key != "hydra" and not node._is_none() and not node._is_missing():
            yield from lists(node, f"{prefix}{key}.")


def test_every_list_is_looked_at() -> None:
    """Stages and suites have the same settings in several files."""
    covered = " ".join(f"{name} {words}" for name, (words, _) in GIVEN.items())
    for path in sorted(CONF.rglob("*.yaml")):
        where = path.relative_to(CONF).with_suffix("").as_posix()
        values = OmegaConf.load(path)
        if where.startswith(("experiment/", "table/")) or not isinstance(values, DictConfig):
            continue
        for key in lists(values):
            last = key.rpartition(".")[2]
            assert f"{where} {key}" in covered or (
                where.startswith(("stage/", "suite/", "profile")) and f"{last}=" in covered
            ), f"{where}: {key}"


@pytest.mark.parametrize("name", GIVEN)
def test_one_value_where_several_belong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("to_measure.py").write_text(
        "import torch\n\ndef training(size):\n    return torch.nn.Linear(4, 2), (torch.zeros(size, 4),)\n"
    )
    words, told = GIVEN[name]
    code, err = cli.main(words.split()), capsys.readouterr().err
    if told is None:
        assert code == 0, err
        return
    assert code == 2
    assert told in err
    assert err.count("\n") == 1
