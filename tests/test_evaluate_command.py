"""``hadoppler evaluate``: every figure of a row is what the methods themselves give, and mistakes are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch_geometric")

from hadoppler import place
from hadoppler.agents.placement.checkpoint import load_policy
from hadoppler.agents.placement.tasks import GeneratedProblems
from hadoppler.agents.placement.training import PlacementPlan
from hadoppler.envs.errors import PlacementError
from hadoppler.envs.placement import PlacementProblem, Topology, lower_bounds, make_graph
from hadoppler.scripts import cli, evaluate as command
from hadoppler.scripts.evaluation_report import evaluation, summarise
from hadoppler.scripts.evaluation_runs import METHODS, trained_on

ON = ["topology=4xP100-slow", "samples=8"]
FORK = ["graph=fork_join", *ON]
TUNE = ["fine_tune.updates=3", "fine_tune.batch=4", "fine_tune.search_calls=200"]


def fork() -> PlacementProblem:
    """What ``FORK`` stands for."""
    graph = make_graph("fork_join", branches=4, length=2, stages=2, seed=0)
    return PlacementProblem(graph, Topology.preset("4xP100-slow"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny policy that was trained on ``fork()`` for a moment."""
    small = {"width": 16, "second": 8, "layers": 1, "random": 4}
    plan = PlacementPlan([fork()], options=small, stages={"imitation": {"updates": 4, "batch": 4}}, samples=4)
    return str(plan.train(tmp_path_factory.mktemp("policy")))


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def run(checkpoint: str, *words: str) -> dict[str, Any]:
    """``results.json`` of one more run."""
    before = set(Path("runs/evaluate").glob("*"))
    assert cli.main(["evaluate", f"checkpoint={checkpoint}", *words]) == 0
    (folder,) = set(Path("runs/evaluate").glob("*")) - before
    return json.loads((folder / "results.json").read_text()) | {"folder": folder}


def test_a_row_holds_what_the_methods_give(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(checkpoint, *FORK, "seed=3")
    (row,) = found["rows"]
    problem = fork()
    ours = place("doppler", problem, seed=3, checkpoint=checkpoint, samples=8)
    rivals = {name: place(name, problem, seed=3) for name in ("portfolio", "single_device")}
    rivals["annealing"] = place("annealing", problem, seed=3, calls=9)
    bound = lower_bounds(problem).best
    assert row["makespan"] == row["sampled"] == ours.makespan <= row["greedy"] == ours.notes["greedy"]
    assert {name: row[name] for name in rivals} == {name: item.makespan for name, item in rivals.items()}
    assert (row["refined"], row["annealing_trained"], row["fine_tune_calls"], row["calls"]) == (None, None, 0, 9)
    assert row["ratio_bound"] == pytest.approx(row["makespan"] / bound)
    assert row["ratio_portfolio"] == pytest.approx(row["makespan"] / row["portfolio"])
    least = min(ours.makespan, *(item.makespan for item in rivals.values()))
    assert row["ratio_best"] == pytest.approx(row["makespan"] / least)
    for prefix, placement in (("", ours), ("portfolio_", rivals["portfolio"])):
        times = np.sort(placement.spread(problem, 100, 0.05, seed=3))
        assert row[f"{prefix}random_mean"] == pytest.approx(times.mean())
        assert times[89] <= row[f"{prefix}random_p90"] <= times[90]
    assert row["sampled_fifo"] == row["sampled"]
    assert row["sampled_priority"] == ours.simulate(problem, order="priority", priority=ours.order).makespan
    keys = {"graph", "topology", "method", "seed", "bound", "decision_s", "peak_memory_bytes", "bytes_moved"}
    assert keys <= set(row)
    assert (row["method"], row["graph"], row["topology"]) == ("doppler", "fork_join", "4xP100-slow")
    assert (found["folder"] / "evaluation.png").read_bytes().startswith(b"\x89PNG")
    out = capsys.readouterr().out
    assert "Annealing searched with as many simulator calls as the policy's placement took, 9, " in out
    assert "geometric mean" not in out, "of one problem"


def test_the_same_seed_gives_the_same_row_and_the_order_counts(checkpoint: str) -> None:
    rows = [run(checkpoint, *FORK, "pictures=false", "order=priority")["rows"][0] for _ in range(2)]
    first, second = ({key: value for key, value in row.items() if not key.endswith("_s")} for row in rows)
    assert first == second
    assert first["sampled"] == first["sampled_priority"]
    assert first["trained_on"]
    assert not list(Path("runs").glob("**/*.png"))


def test_refined_and_fine_tuned(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(checkpoint, *FORK, *TUNE, "refine=300", "pictures=false")
    (row,) = found["rows"]
    folder = found["folder"] / "fine_tuned" / "0"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert row["fine_tune_calls"] == lines[-1]["calls"] > 3 * 4
    assert {line["stage"] for line in lines} == {"start", "simulation"}
    tuned, told = load_policy(folder / "policy.pt")
    assert told["plan"]["start"] == checkpoint
    start, _ = load_policy(checkpoint)
    assert any(not (a == b).all() for a, b in zip(tuned.parameters(), start.parameters(), strict=True))
    ours = place("doppler", fork(), checkpoint=str(folder / "policy.pt"), samples=8, refine=300)
    assert row["makespan"] == row["refined"] == ours.makespan <= row["sampled"] <= row["greedy"]
    assert row["calls"] == ours.calls >= 309
    spent = ours.calls + row["fine_tune_calls"]
    assert row["annealing"] == place("annealing", fork(), calls=ours.calls).makespan
    assert row["annealing_trained"] == place("annealing", fork(), calls=spent).makespan
    out = capsys.readouterr().out
    assert "refined" in out
    assert "+ the policy was trained on this problem." in out


def test_several_problems_and_one_that_fails(
    checkpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = "[chain,{name: fork_join, branches: 3},ladder]"
    evaluate = command.evaluate

    def fails_on_ladders(problem: PlacementProblem, *rest: Any) -> Any:
        if problem.graph.title == "ladder":
            raise PlacementError("no way.")
        return evaluate(problem, *rest)

    monkeypatch.setattr(command, "evaluate", fails_on_ladders)
    found = run(checkpoint, "problems=several", f"problems.graphs={graphs}", *ON)
    assert [row["graph"] for row in found["rows"]] == ["chain", "fork_join"]
    assert found["failed"] == {"2: ladder on 4xP100-slow": "no way."}
    ratios = [row["ratio_bound"] for row in found["rows"]]
    assert found["summary"]["sampled"]["ratio_bound_mean"] == pytest.approx(np.sqrt(np.prod(ratios)))
    assert found["summary"]["sampled"]["ratio_bound_worst"] == max(ratios)
    out = capsys.readouterr().out
    assert "Ratios over 2 problems: geometric mean and worst" in out
    assert "2: ladder on 4xP100-slow: no placement. no way.\n" in out
    monkeypatch.setattr(command, "evaluate", lambda *_: (_ for _ in ()).throw(PlacementError("no way.")))
    assert cli.main(["evaluate", f"checkpoint={checkpoint}", *FORK]) == 2
    assert "the policy placed nothing: no way." in capsys.readouterr().err


def test_generated_problems_are_drawn_alike(checkpoint: str) -> None:
    words = ["problems=generated", "problems.seed=5", "problems.most_operations=40", "count=2", "samples=2"]
    rows = run(checkpoint, *words, "pictures=false")["rows"]
    made = [GeneratedProblems(5, 40)(number) for number in range(2)]
    assert [row["topology"] for row in rows] == [problem.topology.name for problem in made]
    assert [row["bound"] for row in rows] == [lower_bounds(problem).best for problem in made]
    assert not any(row["trained_on"] for row in rows)


def test_what_a_policy_was_trained_on() -> None:
    problem = fork()
    name = f"{problem.graph.summary()} on {problem.topology.name}"
    assert trained_on({"problems": [name], "count": 1}, [problem], 0, problem)
    assert not trained_on({"problems": ["another"], "count": 1}, [problem], 0, problem)
    assert not trained_on({}, [problem], 0, problem)
    made = GeneratedProblems(0, 40)
    plan = {"problems": repr(made), "count": 3}
    assert [trained_on(plan, made, number, problem) for number in (2, 3)] == [True, False]
    assert not trained_on(plan, GeneratedProblems(1, 40), 0, problem)


def test_what_does_not_fit_has_no_figure(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """CHAINMM at a small size holds 12 bytes x size^2 in inputs alone: too much for one device, not for four."""
    words = ["graph=chainmm", "graph.size=256", "topology=uniform", "topology.memory_bytes=1.6e6", "samples=4"]
    found = run(checkpoint, *words)
    (row,) = found["rows"]
    assert row["single_device"] is None
    assert max(row["peak_memory_bytes"]) <= 1.6e6
    assert "single_device" not in found["summary"]
    assert "one device" not in capsys.readouterr().out


def test_summaries_are_geometric_means_of_what_is_known() -> None:
    unknown = dict.fromkeys(METHODS)
    rows = [
        unknown | {"bound": 2.0, "portfolio": 4.0, "greedy": 8.0},
        unknown | {"bound": 3.0, "portfolio": None, "greedy": 3.0},
        unknown | {"bound": 0.0, "portfolio": 1.0, "greedy": 4.0},
    ]
    found = summarise(rows)
    assert list(found) == ["greedy", "portfolio"]
    assert list(found["greedy"].values()) == pytest.approx([2.0, 4.0, 8**0.5, 4.0])
    assert list(found["portfolio"].values()) == pytest.approx([2.0, 2.0, 1.0, 1.0])


def test_narrow_terminals_get_more_tables_and_lose_nothing(
    checkpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    (row,) = run(checkpoint, *FORK, "pictures=false")["rows"]
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith(("┏", "│", "┃"))]
    assert all(len(line.rstrip()) <= 70 for line in lines)
    assert sum(line.startswith("┏") for line in lines) > 2
    assert "…" not in out
    for key in ("bound", "greedy", "annealing", "portfolio_random_p90", "sampled_priority"):
        unit = next(unit for unit in (1.0, 1e-3, 1e-6) if row["makespan"] >= unit)
        assert f" {row[key] / unit:.4g} " in out


def test_bars_are_ratios_to_the_bound() -> None:
    unknown = dict.fromkeys(METHODS) | {"graph": "a_b", "topology": "$"}
    rows = [unknown | {"bound": 2.0, "greedy": 3.0, "annealing": 2.0}, unknown | {"bound": 1.0, "greedy": 4.0}]
    (panel,) = evaluation(rows).axes
    heights: Any = [[bar.get_height() for bar in group] for group in panel.containers]
    assert heights[0] == [1.5, 4.0]
    assert heights[1][0] == 1.0
    assert np.isnan(heights[1][1])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["checkpoint=none.pt"], "none.pt: cannot be read (No such file or directory); give the path of a policy."),
        (["seed=-1"], "seed is -1; expected a whole number from 0 up."),
        (["samples=-1"], "samples is -1; expected a whole number from 0 up."),
        (["refine_seconds=0"], "refine_seconds is 0.0; expected a number above 0, or null."),
        (["order=random"], "order is 'random'; expected fifo or priority."),
        (["problems=generated", "count=0"], "count is 0; expected a whole number from 1 up."),
        (["problems=several", "problems.graphs=[]"], "there is no problem to evaluate on; give problems.graphs at"),
        (["model=mine:factory"], "model=mine:factory is given, but the graph is another one; add graph=module."),
        (["fine_tune.updates=-1"], "fine_tune.updates is -1; expected a whole number from 0 up."),
        (["fine_tune.updates=1", "fine_tune.algorithm=best"], "algorithm is 'best'; expected expert, reinforce, ppo."),
        (["fine_tune.updates=1", "+fine_tune.size=1"], "the stage simulation has no setting 'size'; it has updates,"),
        (["sample=3"], "there is no setting 'sample'; did you mean samples?"),
    ],
)
def test_mistakes_are_one_sentence(
    words: list[str], sentence: str, checkpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [] if words[0].startswith("checkpoint=") else [f"checkpoint={checkpoint}"]
    assert cli.main(["evaluate", *given, *FORK, *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"hadoppler evaluate: {sentence}")
    assert err.count("\n") == 1
