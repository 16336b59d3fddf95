"""Frozen suites: their content and hashes, and methods and schedulers that are judged on them."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from hadoppler import make_scheduler, place
from hadoppler.envs import cluster, placement
from hadoppler.envs.cluster import simulate, ttd_bounds
from hadoppler.envs.cluster.suites import ClusterSuite
from hadoppler.envs.content_hash import canonical, content_hash
from hadoppler.envs.errors import SuiteError, UnknownNameError
from hadoppler.envs.placement import lower_bounds
from hadoppler.envs.placement.suites import PlacementSuite, content
from hadoppler.scripts.cli import main
from hadoppler.scripts.report import fallen_back
from hadoppler.scripts.suite_runs import geometric_mean

CONF = Path(__file__).resolve().parents[1] / "conf"
NAMES = sorted(path.stem for path in (CONF / "suite").glob("*.yaml"))
OWN = "suite.sha256=null"
SMALL = ["evaluate", "suite=placement_test", "suite.count=2", "suite.most_operations=60", OWN]
WORLD = "[{workload: headline, jobs: 5, seed: 7, cluster: headline}]"
WORLDS = ["evaluate", "suite=cluster_test", f"suite.worlds={WORLD}", OWN]


def suite(name: str) -> Any:
    """A suite as its file tells it."""
    values = yaml.safe_load((CONF / "suite" / f"{name}.yaml").read_text())
    kind = {"PlacementSuite": PlacementSuite, "ClusterSuite": ClusterSuite}[values.pop("_target_").rpartition(".")[2]]
    return kind(**values)


pytestmark = pytest.mark.usefixtures("own_folder")


def results() -> dict[str, Any]:
    (path,) = Path("runs").glob("evaluate/*/results.json")
    return json.loads(path.read_text())


# --- content ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_content_is_the_frozen_one(name: str) -> None:
    made = suite(name)
    assert made.name == name
    assert made.sha256
    assert made.check(made.make()) == made.sha256


def test_the_hash_is_the_same_in_any_process() -> None:
    """Whatever PYTHONHASHSEED is, and with other work done before."""
    code = (
        "from hadoppler.envs.placement.suites import PlacementSuite as P\n"
        "from hadoppler.envs.cluster.suites import ClusterSuite as C\n"
        "p, c = P('p', 3, 2), C('c', [dict(workload='gavel', jobs=9, per_hour=2.0, seed=1, cluster='headline')])\n"
        "print(p.check(p.make()), c.check(c.make()))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True,
            check=True, timeout=60,
        ).stdout
        for seed in ("0", "4711")
    }  # fmt: skip
    problems = PlacementSuite("other", 3, 2)
    assert len(told) == 1
    assert told.pop().split()[0] == problems.check(problems.make())


def test_test_suites_share_nothing_with_what_the_shipped_policy_saw() -> None:
    """Other seeds than its training and validation, and other content than all that its first stage and choice saw."""
    recipes = [yaml.safe_load((CONF / "experiment" / "generalist" / f"{name}.yaml").read_text()) for name in
               ("imitation", "gradient")]  # fmt: skip
    trained = {recipe["problems"]["seed"] for recipe in recipes}
    chosen = {recipe["agent"]["validation"]["seed"] for recipe in recipes}
    train, validation, test = (suite(f"placement_{part}") for part in ("train", "validation", "test"))
    assert train.seed in trained
    assert {validation.seed} == chosen
    assert test.seed not in trained | chosen
    assert (train.count, validation.count) == (recipes[0]["agent"]["count"], recipes[0]["agent"]["validations"])
    seen = [canonical(content(problem)) for made in (replace(train, count=60), validation) for problem in made.make()]
    mine = [canonical(content(problem)) for problem in test.make()]
    assert len(set(mine)) == len(mine)
    assert not set(mine) & set(seen)


def test_cluster_suites_split_seeds_as_the_shipped_scheduler_did() -> None:
    seeds = {name: {world["seed"] for world in suite(f"cluster_{name}").worlds} for name in
                  ("train", "validation", "test")}  # fmt: skip
    assert min(seeds["train"]) >= 1000 > max(seeds["test"])
    assert seeds["validation"] == {0, 1}
    assert not seeds["test"] & (seeds["validation"] | {10, 11, 12, 13, 20, 21, 22, 23, 24})


def test_the_validation_suite_is_the_plans() -> None:
    pytest.importorskip("torch")
    from hadoppler.agents.cluster.training import FIRST_SEED, TrainingPlan

    worlds = suite("cluster_validation").worlds
    assert [(item["jobs"], item.get("per_hour"), item["seed"]) for item in worlds] == list(TrainingPlan().validation)
    assert FIRST_SEED == 1000


def test_every_number_counts_and_names_do_not() -> None:
    (problem,) = PlacementSuite("mine", 3, 1).make()
    graph, topology = problem.graph, problem.topology
    base = content_hash([content(problem)])
    assert content_hash([content(replace(problem, graph=replace(graph, title="other")))]) == base
    assert content_hash([content(replace(problem, topology=replace(topology, name="other")))]) == base
    flops = graph.flops.copy()
    flops[-1] *= 1 + 1e-12
    assert content_hash([content(replace(problem, graph=replace(graph, flops=flops)))]) == base, "a last bit"
    flops[-1] *= 1.001
    slower = topology.with_links(latency=2e-5)
    others = [
        replace(problem, graph=replace(graph, flops=flops)),
        replace(problem, graph=replace(graph, kind=("other", *graph.kind[1:]))),
        replace(problem, topology=slower),
        replace(problem, memory="error"),
    ]
    assert len({base, *(content_hash([content(other)]) for other in others)}) == 5


def test_canonical_texts() -> None:
    assert canonical({"b": np.float32(0.5), "a": [np.int64(3), True, None, -0.0]}) == (
        "{'a':[3,True,None,0.0000000e+00],'b':5.0000000e-01}"
    )
    assert canonical(np.array([[1.0, np.inf]])) == "[[1.0000000e+00,inf]]"
    assert content_hash([[1, 2], 3]) != content_hash([1, [2, 3]])
    with pytest.raises(TypeError):
        canonical(object())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"seed": -1}, "suite mine: seed is -1; expected a whole number from 0 up."),
        ({"count": 0}, "suite mine: count is 0; expected a whole number from 1 up."),
    ],
)
def test_placement_suites_refuse(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SuiteError, match=sentence):
        PlacementSuite(**{"name": "mine", "seed": 1, "count": 2, **values})


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        ({"workload": "headline", "jobs": 3, "seed": 1}, "suite mine, world 0: cluster is missing; give workload"),
        ({"workloads": "headline"}, "suite mine, world 0: unknown key 'workloads'; did you mean workload?"),
    ],
)
def test_cluster_suites_refuse(world: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SuiteError) as refused:
        ClusterSuite("mine", [world])
    assert sentence in str(refused.value)


@pytest.mark.parametrize("name", NAMES)
def test_suites_are_made_by_name(name: str) -> None:
    """As the command's file tells them; the other level says which are its own."""
    mine, other = (placement, cluster) if name.startswith("placement") else (cluster, placement)
    assert mine.make_suite(name) == suite(name)
    with pytest.raises(UnknownNameError) as refused:
        other.make_suite(name)
    own = [item for item in NAMES if not item.startswith(name.partition("_")[0])]
    assert f"no suite is called '{name}'" in str(refused.value)
    assert str(refused.value).endswith(f"choose one of {', '.join(own)}.")


# --- the command --------------------------------------------------------------------------------------


def test_methods_on_a_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "method=[heft,random]", "seed=3"]) == 0
    found, made = results(), PlacementSuite("placement_test", 1000, 2, 60)
    problems = made.make()
    assert found["suite"] == {"name": "placement_test", "count": 2, "sha256": made.check(problems)}
    assert [(row["problem"], row["method"]) for row in found["rows"]] == [
        (number, method) for number in range(2) for method in ("heft", "random")
    ]
    for row in found["rows"]:
        problem = problems[row["problem"]]
        assert row["makespan"] == place(row["method"], problem, seed=3).makespan
        assert row["ratio_bound"] == pytest.approx(row["makespan"] / lower_bounds(problem).best)
    ratios = [row["ratio_bound"] for row in found["rows"] if row["method"] == "random"]
    told = found["summary"]["random"]
    assert told["ratio_bound_mean"] == pytest.approx(math.sqrt(ratios[0] * ratios[1]))
    assert (told["ratio_bound_worst"], told["problems"]) == (max(ratios), 2)
    out = capsys.readouterr().out
    assert f"suite placement_test: 2 problems, SHA-256 {found['suite']['sha256']}" in out
    assert f"{told['ratio_bound_mean']:.3f}" in out
    (picture,) = Path("runs").glob("evaluate/*/evaluation.png")
    assert str(picture) in out


def test_agents_in_environments_reach_the_tables_figures() -> None:
    """The recipe of docs/sweeps.md, with heuristics in the agent's place."""
    assert main([*SMALL, "method=[heft]", "pictures=false"]) == 0
    told = results()["rows"]
    for row, problem in zip(told, PlacementSuite("placement_test", 1000, 2, 60).make(), strict=True):
        (*_, last) = placement.replay(placement.DevicePlacementEnv(problem), place("heft", problem))
        assert last.info["makespan"] / last.info["bound"] == pytest.approx(row["ratio_bound"], rel=1e-12)
    shutil.rmtree("runs")
    assert main([*WORLDS, "scheduler=[srtf]", "pictures=false"]) == 0
    (row,) = results()["rows"]
    made = ClusterSuite("mine", yaml.safe_load(WORLD))
    (world,) = made.make()
    env = cluster.ClusterSchedulingEnv(
        world.workload, world.cluster, window=len(world.workload), round_s=made.round_s, restart_s=made.restart_s
    )
    (*_, last) = cluster.replay(env, make_scheduler("srtf"), seed=world.seed)
    bound = ttd_bounds(world.workload, world.cluster)["mixing"]
    assert last.info["ttd_s"] / bound == pytest.approx(row["ratio_bound"], rel=1e-12)


def test_methods_need_no_suite() -> None:
    assert main(["evaluate", "graph=chain", "method=[heft]", "pictures=false"]) == 0
    assert "suite" not in results()
    assert results()["rows"][0]["graph"] == "chain"


def test_schedulers_on_a_suite(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORLDS, "scheduler=[srtf,gavel_max_min,hadare]", "pictures=false"]) == 0
    found = results()
    (world,) = ClusterSuite("mine", yaml.safe_load(WORLD)).make()
    row = found["rows"][0]
    truth = simulate(world.workload, world.cluster, make_scheduler("srtf"), seed=7, round_s=360, restart_s=10)
    assert row["ttd_s"] == truth.metrics["ttd_s"]
    assert row["mean_jct_s"] == truth.metrics["mean_jct_s"]
    assert found["config"]["scheduler"]["hadare"]["consolidation_s"] == 15.0
    bound = ttd_bounds(world.workload, world.cluster)["mixing"]
    assert {row["ttd_bound_s"] for row in found["rows"]} == {bound}, "one yardstick for all"
    assert found["summary"]["srtf"]["ratio_bound_mean"] == pytest.approx(row["ttd_s"] / bound)
    out = capsys.readouterr().out
    assert "mean JCT [h]" in out
    assert f"SHA-256 {found['suite']['sha256']}" in out


def test_every_world_of_a_suite_is_told_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    two = f"[{WORLD[1:-1]}, {{workload: gavel, jobs: 4, seed: 8, cluster: 'v100:4 k80:4'}}]"
    assert main([*WORLDS[:2], f"suite.worlds={two}", OWN, "scheduler=[srtf,hadar]", "pictures=false"]) == 0
    rows = results()["rows"]
    assert [(row["world"], row["scheduler"]) for row in rows] == [
        (i, name) for i in (0, 1) for name in ("srtf", "hadar")
    ]
    assert [(row["workload"], row["cluster"], row["jobs"]) for row in rows[::2]] == [
        ("headline-5-s7", "headline", 5), ("gavel-4-s8", "v100:4 k80:4", 4)
    ]  # fmt: skip
    text = " ".join(capsys.readouterr().out.split())
    for world, label in enumerate(("0: headline-5-s7", "1: gavel-4-s8")):
        assert label in text
        for row in rows[2 * world : 2 * world + 2]:
            assert f"│ {row['ratio_bound']:.3f}, {row['mean_jct_s'] / 3600:.4g} │" in text


def test_a_policy_on_a_suite(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch_geometric")
    assert main([*SMALL, "samples=2", "pictures=false"]) == 0
    found = results()
    assert len(found["rows"]) == 2
    assert found["suite"]["name"] == "placement_test"
    assert f"SHA-256 {found['suite']['sha256']}" in capsys.readouterr().out


FALLEN = {"heft": 2, "etf": 1, None: 1}


def test_who_answered_with_whose_placements() -> None:
    rows = [{"method": "doppler", "notes": {"fall_back": name}} for name, count in FALLEN.items() for _ in range(count)]
    others = [{"method": "random", "notes": {}}] * 4
    assert fallen_back([*rows, *others]) == [
        "doppler answered with other methods' placements on 3 of 4 problems, where its own were worse: "
        "heft's on 2, etf's on 1 (method.doppler.fall_back=false: never)."
    ]
    assert fallen_back([*rows[:1], *others]) == [
        "doppler answered with heft's placement, for its own was worse (method.doppler.fall_back=false: never)."
    ]
    assert fallen_back([*rows[-1:], *others]) == []


@pytest.mark.parametrize(
    "words", [[*SMALL, "method=[doppler,random]"], ["place", "graph=ffnn", "topology=4xP100-ideal", "method=[doppler]"]]
)
def test_the_table_says_where_the_policy_fell_back(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch_geometric")
    import torch

    from hadoppler.agents.placement import doppler, learned

    torch.manual_seed(0)
    monkeypatch.setattr(learned, "_loaded", lambda path: doppler.DopplerPolicy(width=8, second=4, random=0))
    short = ["method.doppler.samples=1", "memory=off"] if words[0] == "place" else ["method.doppler.samples=1"]
    assert main([*words, *short, "pictures=false"]) == 0
    (path,) = Path("runs").glob("*/*/results.json")
    (sentence,) = fallen_back(json.loads(path.read_text())["rows"])
    assert sentence in capsys.readouterr().out
    assert main([*words, *short, "method.doppler.fall_back=false", "pictures=false"]) == 0
    assert "answered with" not in capsys.readouterr().out


def test_over_seeds_there_is_a_line_per_method() -> None:
    assert main([SMALL[0], "-m", *SMALL[1:], "method=[random]", "seed=0,1", "pictures=false"]) == 0
    (path,) = Path("runs").glob("evaluate/*/sweep.json")
    (line,) = json.loads(path.read_text())["over_seeds"]
    assert line["name"] == "random"
    assert line["figures"]["ratio_bound_mean"]["seeds"] == 2


def test_what_fails_is_told_and_marked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "method=[heft,file]", "method.file.path=none.json", "pictures=false"]) == 0
    found = results()
    assert {row["method"] for row in found["rows"]} == {"heft"}
    assert len(found["failed"]) == 2
    assert "none.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["suite=placement_test", "suite.count=2", "method=[heft]"], "suite placement_test: its content has the SHA-"),
        (
            ["suite=cluster_test", "suite.round_s=60", "scheduler=[srtf]"],
            "suite cluster_test: its content has",
        ),
        (["suite=cluster_test"], "no scheduler is chosen; give scheduler=[...]"),
        (["suite=cluster_test", "method=[heft]"], "method is for suites of placement problems; give scheduler=[...]"),
        (["suite=placement_test", "scheduler=[srtf]"], "scheduler is for suites of clusters, such as"),
        (["suite=placement_test", "graph=ffnn"], "graph does not go with a suite, whose problems are frozen; leave it"),
        (
            ["suite=placement_test", "method=[heft]", "samples=3"],
            "samples is for a policy beside its",
        ),
        (["suite=placement_tests"], "there is no suite called 'placement_tests'; choose one of cluster_test, "),
        ([*SMALL[1:], "method=[file]", "method.file.path=none.json"], "no method gave a result: none.json"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"hadoppler evaluate: {sentence}")
    assert err.count("\n") == 1


def test_geometric_means() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert math.isnan(geometric_mean([1.0, math.nan]))
    assert math.isnan(geometric_mean([]))
