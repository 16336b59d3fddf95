"""``hadoppler train`` for placement: every agent, stage and kind of problems trains, and so do a user's own files."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch_geometric")

from hadoppler.agents.placement.checkpoint import load_policy
from hadoppler.scripts import evaluate, train


def choices(group: str) -> list[str]:
    """Names of a group's files."""
    return sorted(
        path.name.removesuffix(".yaml") for path in resources.files("hadoppler.conf").joinpath(group).iterdir()
    )


AGENTS = [name for name in choices("agent") if name != "cluster"]
SMALL = ["graph=fork_join", "graph.branches=2", "topology=4xP100-slow", "agent.samples=2", "pictures=false"]
BRIEF = {
    "imitation": ["stage.imitation.updates=2", "stage.imitation.batch=2"],
    "simulation": ["stage.simulation.updates=2", "stage.simulation.batch=4", "stage.simulation.search_calls=40"],
}
OWN = {
    "stage/mine.yaml": "simulation: {updates: 2, batch: 4, algorithm: ppo, self_imitation: 0.5}\n",
    "agent/mine.yaml": "defaults: [doppler, _self_]\noptions: {width: 8, layers: 1}\nsamples: 2\n",
    "problems/mine.yaml": (
        "_target_: hadoppler.scripts.problems.several_problems\n_recursive_: false\n"
        "graphs: [chain, {name: ladder, rungs: 3}]\ntopology: ${topology}\n"
    ),
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in OWN.items():
        path = tmp_path / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(*words: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The lines of a training, and what its policy's file tells."""
    assert train.main([*words, *SMALL]) == 0
    (folder,) = Path("runs/train").glob("*")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return lines, load_policy(folder / "policy.pt")[1]


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_trains_and_is_evaluated(agent: str) -> None:
    lines, told = run(f"agent={agent}", *BRIEF["imitation"], *BRIEF["simulation"])
    assert [(line["stage"], line["update"]) for line in lines] == [("imitation", 2), ("simulation", 4)]
    assert told["policy"] == agent
    (checkpoint,) = Path("runs/train").glob("*/policy.pt")
    assert evaluate.main([f"checkpoint={checkpoint}", "graph=ladder", "samples=2", "pictures=false"]) == 0
    (results,) = Path("runs/evaluate").glob("*/results.json")
    assert [row["method"] for row in json.loads(results.read_text())["rows"]] == [agent]


@pytest.mark.parametrize(
    ("stages", "names"),
    [
        ("imitation", ["imitation"]),
        ("simulation", ["simulation"]),
        ("reinforce", ["simulation"]),
        ("imitation,reinforce", ["imitation", "simulation"]),
        ("imitation,simulation", ["imitation", "simulation"]),
    ],
)
def test_every_stage_trains(stages: str, names: list[str]) -> None:
    brief = [word for name in names for word in BRIEF[name]]
    lines, told = run(f"stage=[{stages}]", *brief)
    assert [line["stage"] for line in lines] == names
    wanted = "reinforce" if "reinforce" in stages else "expert"
    settings = told["plan"]["stages"]
    assert list(settings) == names
    assert settings.get("simulation", {"algorithm": wanted})["algorithm"] == wanted


def test_real_runs_teach_after_the_other_stages() -> None:
    stage = ["stage.online.updates=3", "stage.online.batch=2", "stage.online.search_calls=40"]
    words = [*BRIEF["imitation"], *BRIEF["simulation"], *stage, "executor=emulated", "executor.bound_s=0.005"]
    lines, told = run("agent=doppler", "stage=[imitation,simulation,online]", *words)
    assert told["stage"] == "online"
    assert lines[-1]["runs"] == 6
    assert 0 < lines[-1]["makespan"] < 1.0


def test_every_stage_is_among_these() -> None:
    assert choices("stage") == ["imitation", "online", "reinforce", "simulation"]
    assert choices("problems") == ["generated", "one", "several"]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["problems=one"], 1),
        (["problems=several", "problems.graphs=[chain,{name: ladder, rungs: 3}]"], 2),
        (["problems=generated", "problems.most_operations=30", "agent.count=3", "agent.validations=3"], 3),
    ],
)
def test_every_kind_of_problems_is_trained_on(words: list[str], count: int) -> None:
    lines, told = run(*words, "stage=[simulation]", *BRIEF["simulation"], "agent.validate_every=1")
    assert len(lines) == 2
    assert ("makespan" in lines[0]) == (count == 1), "several have no one makespan"
    assert told["plan"]["count"] == (3 if count == 3 else 1)


def test_files_of_ones_own_are_choices_too() -> None:
    words = ["agent=mine", "stage=[imitation,mine]", "problems=mine", *BRIEF["imitation"]]
    lines, told = run("--config-dir", "conf", *words)
    assert [line["stage"] for line in lines] == ["imitation", "simulation"]
    assert (told["options"]["width"], told["options"]["second"]) == (8, 32)
    assert told["plan"]["stages"]["simulation"] == {"updates": 2, "batch": 4, "algorithm": "ppo", "self_imitation": 0.5}
    assert len(told["plan"]["problems"]) == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["agent=cluster", "graph=ffnn"],
            "graph does not go with agent=cluster; leave it out, or choose another agent.\n",
        ),
        (["agent=cluster", "graph.size=5"], "graph does not go with agent=cluster; leave it out, or choose another"),
        (["agent=cluster", "stage=[imitation]"], "stage does not go with agent=cluster; leave it out, or choose"),
        (["-m", "agent=doppler,cluster", "graph=ffnn"], "graph does not go with agent=cluster; leave it out, or"),
        (["tracking.mode=offline"], "there is no setting 'tracking.mode'; there are none in tracking."),
        (["stage=online"], "the stage online runs placements on devices; give what runs them"),
        (["executor=emulated"], "executor is for the stage online, which is not among the stages"),
        (["stage=online", "executor=emulated", "executor.jitter=-1"], "jitter is -1; expected a number from 0 up"),
        (
            ["graph=chainmm", "graph.size=10000000", "topology=this_machine", "stage=online", "executor=cpu"],
            "chainmm: its inputs take 2e+15 bytes",
        ),
        (["stage=nix"], "there is no stage called 'nix'; choose one of imitation, online, reinforce, simulation."),
        (["agent=placeto", "graph.nix=3"], "there is no setting 'graph.nix'; valid ones are graph.name, graph.costs"),
    ],
)
def test_what_does_not_go_together_is_told(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main(words) == 2
    assert capsys.readouterr().err.startswith(f"hadoppler train: {sentence}")
