"""Training of placement policies: it learns, it can be resumed bit for bit, and it counts every simulator call."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from hadoppler import place  # noqa: E402
from hadoppler.agents.placement import checkpoint, decoding  # noqa: E402
from hadoppler.agents.placement.doppler import DopplerPolicy  # noqa: E402
from hadoppler.agents.placement.elites import Elites  # noqa: E402
from hadoppler.agents.placement.losses import Advantage, best_of  # noqa: E402
from hadoppler.agents.placement.rewards import SimulatedTime  # noqa: E402
from hadoppler.agents.placement.tasks import GeneratedProblems  # noqa: E402
from hadoppler.agents.placement.training import PlacementPlan  # noqa: E402
from hadoppler.envs.errors import CheckpointError, PlacementError, TrainingError  # noqa: E402
from hadoppler.envs.placement import DataflowGraph, PlacementProblem, Topology, makespans  # noqa: E402
from hadoppler.envs.placement.workloads import fork_join  # noqa: E402

SMALL = {"width": 16, "second": 8, "layers": 1, "random": 4}
QUICK: dict[str, Any] = {
    "imitation": {"updates": 4, "batch": 4},
    "simulation": {"updates": 6, "batch": 8, "search_calls": 400, "search_every": 2, "search_starts": 4, "followed": 4},
}
STEEP = (1e-2, 1e-3)


def two_chains() -> PlacementProblem:
    """0 -> 2 -> 4 and 1 -> 3 -> 5, transfers dear: the optimum, 6, keeps each chain on a device of its own."""
    edges = [(0, 2), (2, 4), (1, 3), (3, 5)]
    return PlacementProblem.raw(DataflowGraph.build(flops=[2] * 6, edges=edges, edge_bytes=[5] * 4), 2)


def fork() -> PlacementProblem:
    return PlacementProblem(fork_join(3, 2, 1), Topology.preset("4xP100-slow"))


def quick(problem: PlacementProblem | None = None, **options: Any) -> PlacementPlan:
    settings = {"options": SMALL, "stages": QUICK, "validate_every": 2, "samples": 4} | options
    return PlacementPlan([problem or fork()], **settings)


def weights(path: Path) -> bytes:
    """All tensors of a policy as bytes."""
    policy, _ = checkpoint.load_policy(path)
    return b"".join(value.numpy().tobytes() for value in policy.state_dict().values())


def lines(folder: Path) -> list[dict[str, Any]]:
    """``metrics.jsonl`` without what a clock told."""
    told = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in ("seconds", "cpu_s")} for line in told]


class Stop(Exception):
    """Raised by a report to interrupt a training."""


def stop_after(count: int) -> Any:
    told: list[Mapping[str, Any]] = []

    def report(line: Mapping[str, Any]) -> None:
        told.append(line)
        if len(told) == count:
            raise Stop

    return report


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# --- it learns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stages",
    [
        {"simulation": {"algorithm": "expert", "updates": 40, "search_calls": 200, "search_starts": 2}},
        {"simulation": {"algorithm": "ppo", "updates": 60, "epochs": 3, "learning_rate": STEEP}},
        {
            "simulation": {
                "algorithm": "reinforce",
                "updates": 120,
                "learning_rate": (1e-2, 1e-3),
                "baseline": "running",
            }
        },
        {"simulation": {"algorithm": "reinforce", "updates": 120, "learning_rate": (1e-2, 1e-3), "baseline": "greedy"}},
        {
            "imitation": {
                "teacher": "annealing",
                "options": {"calls": 500},
                "updates": 60,
                "learning_rate": (1e-2, 1e-3),
            }
        },
    ],
    ids=["expert", "ppo", "reinforce", "greedy baseline", "annealing's placements"],
)
def test_a_known_optimum_is_learned_in_seconds(stages: dict[str, Any], tmp_path: Path) -> None:
    """4 of 64 assignments are optimal (two by symmetry, and the mean of random ones is twice as long)."""
    problem = two_chains()
    every = np.array(np.meshgrid(*[range(2)] * 6)).reshape(6, -1).T
    assert makespans(problem, every).min() == 6
    plan = PlacementPlan([problem], options=SMALL, stages=stages, samples=0, validate_every=20)
    policy, _ = checkpoint.load_policy(plan.train(tmp_path))
    prepared = policy.prepare(problem, np.random.default_rng(0))
    played = policy.roll_out(prepared, 64, np.random.default_rng(9))
    times = makespans(problem, played.assignment)
    assert times.mean() < 7, "random assignments have a mean of 11.4"
    assert lines(tmp_path)[-1]["ratio_greedy"] == 1.0


@pytest.mark.parametrize("halves", ["select", "place"])
@pytest.mark.parametrize("algorithm", ["expert", "ppo", "reinforce"])
def test_either_half_can_be_trained_alone(halves: str, algorithm: str, tmp_path: Path) -> None:
    stages = {"imitation": QUICK["imitation"], "simulation": QUICK["simulation"] | {"algorithm": algorithm}}
    plan = quick(options=SMALL | {"halves": halves}, stages=stages)
    policy, _ = checkpoint.load_policy(plan.train(tmp_path))
    assert policy.options["halves"] == halves


def test_training_on_many_drawn_problems(tmp_path: Path) -> None:
    plan = PlacementPlan(
        GeneratedProblems(3, most_operations=60),
        count=3,
        validation=GeneratedProblems(4, most_operations=60),
        validations=2,
        options=SMALL,
        samples=4,
        stages={"imitation": QUICK["imitation"], "simulation": QUICK["simulation"] | {"problems": 2}},
    )
    plan.train(tmp_path)
    assert lines(tmp_path)[-1]["ratio"] >= 1.0


def test_learning_from_noisy_times(tmp_path: Path) -> None:
    quick(runs=5, noise=0.1).train(tmp_path / "fifo")
    quick(runs=5, noise=0.1, execution="priority").train(tmp_path / "priority")
    source, rng = SimulatedTime("fifo", runs=200, noise=0.3), np.random.default_rng(0)
    rows = np.zeros((2, 6), np.int32)
    told = source.times(two_chains(), rows, np.tile(np.arange(6), (2, 1)), rng)
    assert source.calls == 400
    assert told == pytest.approx([12, 12], rel=0.05)  # noise of mean 1
    assert told[0] != told[1]


# --- it goes on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stopped", "validation"), [(1, None), (2, None), (3, None), (5, None), (1, 1), (3, 1), (3, 2), (5, 2)]
)
def test_a_resumed_training_ends_as_an_unbroken_one(stopped: int, validation: int | None, tmp_path: Path) -> None:
    """In weights and in all figures, of ``validation`` problems of its own, too."""
    of_its_own = None if validation is None else [two_chains(), fork()][:validation]
    plan = quick(validation=of_its_own)
    plan.train(tmp_path / "whole")
    with pytest.raises(Stop):
        plan.train(tmp_path / "broken", stop_after(stopped))
    plan.train(tmp_path / "broken", resume=True)
    for name in ("policy.pt", "last.pt"):
        assert weights(tmp_path / "broken" / name) == weights(tmp_path / "whole" / name)
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")


@pytest.mark.parametrize("left", [0, 1000])
def test_a_cut_checkpoint_falls_back_to_the_one_before(left: int, tmp_path: Path) -> None:
    quick().train(tmp_path / "whole")
    with pytest.raises(Stop):
        quick().train(tmp_path / "broken", stop_after(3))
    newest = tmp_path / "broken" / "last.pt"
    newest.write_bytes(newest.read_bytes()[:left])
    with pytest.warns(UserWarning, match=r"last\.previous\.pt"):
        quick().train(tmp_path / "broken", resume=True)
    assert weights(tmp_path / "broken" / "last.pt") == weights(tmp_path / "whole" / "last.pt")
    assert lines(tmp_path / "broken") == lines(tmp_path / "whole")


def test_the_same_bytes_in_any_process(tmp_path: Path) -> None:
    quick().train(tmp_path / "here")
    script = (
        "import sys, torch; torch.set_num_threads(1); sys.path.insert(0, sys.argv[2]);"
        "from test_placement_training import quick; quick().train(sys.argv[1])"
    )
    for seed in ("1", "77"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", script, str(tmp_path / seed), str(Path(__file__).parent)]
        subprocess.run(command, check=True, env=environment, timeout=120)
    digests = {hashlib.sha256(weights(tmp_path / name / "last.pt")).hexdigest() for name in ("here", "1", "77")}
    assert len(digests) == 1


def test_resuming_refuses_other_plans_and_empty_folders(tmp_path: Path) -> None:
    quick().train(tmp_path)
    with pytest.raises(CheckpointError, match="seed differs"):
        quick(seed=1).train(tmp_path, resume=True)
    with pytest.raises(CheckpointError, match="holds no checkpoint to go on from"):
        quick().train(tmp_path / "nothing", resume=True)


def test_a_gradient_that_is_not_finite_stops_the_training(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        quick().train(tmp_path, stop_after(2))
    before = weights(tmp_path / "last.pt")

    broken = {"imitation": {"updates": 4, "learning_rate": 1e6}, "simulation": {"updates": 4, "learning_rate": 1e6}}
    with pytest.raises(TrainingError, match="not finite"):
        quick(stages=broken, options=SMALL | {"width": 64}).train(tmp_path / "other")
    assert weights(tmp_path / "last.pt") == before


def test_every_call_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes, validations and searches; a search counts at least what it was asked for."""
    quick().train(tmp_path / "expert")
    last = lines(tmp_path / "expert")[-1]
    searches = 3 - 1  # visits 0, 2, 4 of 6, the last after search_until
    assert last["calls"] >= last["episodes"] - 4 * 4 + searches * 400
    stages = {"simulation": {"algorithm": "ppo", "updates": 4, "batch": 8}}
    quick(stages=stages).train(tmp_path / "ppo")
    last = lines(tmp_path / "ppo")[-1]
    assert last["calls"] == last["episodes"] == 4 * 8 + 2 * 5


def test_limits_end_a_training(tmp_path: Path) -> None:
    quick(max_calls=100).train(tmp_path / "calls")
    assert lines(tmp_path / "calls")[-1]["done"] == 1.0
    assert lines(tmp_path / "calls")[-1]["calls"] < 200
    quick(seconds=0.3, stages=QUICK | {"simulation": QUICK["simulation"] | {"updates": 10**6}}).train(
        tmp_path / "clock"
    )
    assert lines(tmp_path / "clock")[-1]["done"] == 1.0
    stages = {"imitation": {"updates": 400, "batch": 2, "learning_rate": (0.0, 0.0)}}
    quick(patience=2, stages=stages).train(tmp_path / "patience")
    assert len(lines(tmp_path / "patience")) == 3


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"stages": {"dreaming": {}}}, "no stage 'dreaming'"),
        ({"stages": {"imitation": {"updats": 3}}}, "no setting 'updats'"),
        ({"stages": {"simulation": {"algorithm": "sarsa"}}}, "algorithm is 'sarsa'"),
        ({"stages": {"imitation": {"updates": 0}}}, "no updates"),
        ({"execution": "random"}, "execution is 'random'"),
        ({"stages": {"imitation": {"updates": -1}}}, r"stage\.imitation\.updates is -1"),
        ({"stages": {"imitation": {"updates": 2.5}}}, "whole number"),
        ({"stages": {"imitation": {"updates": "many"}}}, "whole number"),
        ({"stages": {"simulation": {"batch": 0}}}, r"simulation\.batch is 0"),
        ({"stages": {"simulation": {"search_every": 0}}}, "search_every is 0"),
        ({"stages": {"simulation": {"learning_rate": [1, 2, 3]}}}, "two numbers"),
        ({"stages": {"simulation": {"learning_rate": -1}}}, "two numbers"),
        ({"stages": {"simulation": {"epsilon": [2, 0]}}}, "from 0 to 1"),
        ({"stages": {"simulation": {"clip": -1.0}}}, "clip is -1"),
        ({"seed": 10**20}, "seed is 1"),
        ({"seed": -1}, "seed is -1"),
        ({"samples": -1}, "samples is -1"),
        ({"device": "foo"}, "expected cpu or cuda"),
        ({"validate_every": 0}, "validate_every is 0"),
        ({"seconds": 0.0}, "seconds is 0"),
        ({"device": "cuda"}, "sees no GPU"),
    ],
)
def test_plans_are_checked(options: dict[str, Any], told: str) -> None:
    if options.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(TrainingError, match=told):
        PlacementPlan([fork()], **options)


def test_one_number_serves_as_start_and_end() -> None:
    plan = quick(stages={"imitation": {"learning_rate": 0.5}})
    assert plan.made_stages()[0].learning_rate == (0.5, 0.5)
    for wrong in (fork(), [fork().graph]):
        with pytest.raises(TrainingError, match="no list of PlacementProblem"):
            PlacementPlan(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("times", "told"),
    [
        (lambda n: np.ones((n, 2)), "gave shape"),
        (lambda n: 1.0, "gave shape"),
        (lambda n: None, "gave shape|failed"),
        (lambda n: np.full(n, np.nan), "gave nan"),
        (lambda n: np.full(n, -1.0), "gave -1"),
        (lambda n: ["slow"] * n, "failed"),
    ],
)
def test_rewards_of_ones_own_are_checked(times: Any, told: str, tmp_path: Path) -> None:
    class Mine:
        execution, calls = "fifo", 0

        def times(self, problem: Any, assignments: Any, orders: Any, rng: Any) -> Any:
            return times(len(assignments))

    with pytest.raises(TrainingError, match=f"Mine.times ({told})"):
        quick(stages={"simulation": {"algorithm": "ppo", "updates": 1}}).train(tmp_path, reward=Mine())  # type: ignore[arg-type]
    Mine.execution = "bogus"
    with pytest.raises(TrainingError, match=r"Mine\.execution is 'bogus'"):
        quick().train(tmp_path, reward=Mine())  # type: ignore[arg-type]


def test_fine_tuning_begins_from_a_checkpoint(tmp_path: Path) -> None:
    first = quick().train(tmp_path / "first")
    stages = {"imitation": {"updates": 1, "learning_rate": (0.0, 0.0)}}
    tuned = quick(two_chains(), start=str(first), stages=stages).train(tmp_path / "second")
    assert weights(tuned) == weights(first)
    assert [line["stage"] for line in lines(tmp_path / "second")] == ["start", "imitation"]
    ruined = {"imitation": {"updates": 8, "learning_rate": (10.0, 10.0)}}
    assert weights(quick(start=str(first), stages=ruined).train(tmp_path / "ruined")) == weights(first)
    with pytest.raises(TrainingError, match="make them equal"):
        quick(start=str(first), policy="gdp", options={}).train(tmp_path / "third")


# --- parts ----------------------------------------------------------------------------------------------


def test_elites_by_hand() -> None:
    elites = Elites(2, 3)
    assert elites.best == np.inf
    assert elites.add([[0, 1]], [[0, 1]], [5.0])
    assert not elites.add([[1, 0]], [[1, 0]], [5.0])  # the same time: the first one stays
    assert elites.assignments.tolist() == [[0, 1]]
    assert elites.add([[1, 1]], [[1, 0]], [5.0 - 1e-4])  # better, but not worth another target
    assert elites.times[elites.target] == 5.0
    elites.add([[0, 0]] * 3, [[0, 1]] * 3, [4.9990, 4.9991, 4.9992])
    assert len(elites) == 3
    assert elites.times[elites.target] == 5.0
    elites.add([[0, 0]], [[0, 1]], [4.0])
    assert elites.target == 0
    other = Elites(2, 3)
    other.load(elites.state())
    assert other.times.tolist() == elites.times.tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_best_of_is_the_mean_over_all_choices(count: int) -> None:
    rewards = np.array([3.0, -1.0, 2.0, 2.0, 7.0])
    expected = []
    for i in range(5):
        others = [j for j in range(5) if j != i]
        sets = list(itertools.combinations(others, min(count, 5) - 1))
        expected.append(np.mean([max(rewards[[i, *chosen]]) for chosen in sets]))
    np.testing.assert_allclose(best_of(rewards, count), expected)


def test_advantages_by_hand() -> None:
    running = Advantage("running")
    assert running(np.array([1.0, 3.0])).tolist() == [-1, 1]
    assert running(np.array([5.0])).tolist() == [3]
    assert running(np.array([3.0])).tolist() == [0]
    assert Advantage("batch")(np.array([1.0, 3.0])).tolist() == [-1, 1]
    assert Advantage("batch")(np.array([1.0, 1.0 + 2e-9])).abs().max() < 1e-5
    assert Advantage("greedy")(np.array([1.0, 3.0]), 3.0).tolist() == [-2, 0]


def test_checkpoints_are_plain_and_checked(tmp_path: Path) -> None:
    policy = DopplerPolicy(**SMALL)
    told = {"rate": np.float64(0.5), "count": np.int64(3), "rows": np.arange(3), "list": [np.float32(1)], "none": None}
    checkpoint.save_policy(tmp_path / "a.pt", policy, **told)
    plain = torch.load(tmp_path / "a.pt", weights_only=True)
    assert plain["rate"] == 0.5
    assert plain["rows"].tolist() == [0, 1, 2]
    loaded, _ = checkpoint.load_policy(tmp_path / "a.pt")
    checkpoint.save_policy(tmp_path / "folder" / "policy.pt", policy)
    assert checkpoint.load_policy(tmp_path / "folder")[1]["policy"] == "doppler"
    assert loaded.options == policy.options
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoint.load_policy(tmp_path / "b.pt")
    torch.save({"kind": "something else"}, tmp_path / "c.pt")
    with pytest.raises(CheckpointError, match="no placement policy"):
        checkpoint.load_policy(tmp_path / "c.pt")
    (tmp_path / "d.pt").write_text("no checkpoint")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoint.load_policy(tmp_path / "d.pt")
    plain["options"]["width"] = 8
    torch.save(plain, tmp_path / "e.pt")
    with pytest.raises(CheckpointError, match="another version"):
        checkpoint.load_policy(tmp_path / "e.pt")


def test_decoding_and_refinement(tmp_path: Path) -> None:
    problem, policy, reward = fork(), DopplerPolicy(**SMALL), SimulatedTime()
    prepared = policy.prepare(problem, np.random.default_rng(0))
    found = decoding.decode(policy, prepared, problem, reward, np.random.default_rng(1), samples=10)
    assert len(found) == reward.calls == 11
    times = [placement.makespan for placement in found]
    assert times == sorted(times)
    assert makespans(problem, [placement.assignment for placement in found]).tolist() == times
    refined = decoding.refine(problem, found, reward, np.random.default_rng(2), calls=400)
    assert refined.makespan <= times[0]
    assert refined.makespan == pytest.approx(refined.simulate(problem).makespan)
    assert reward.calls == refined.calls >= 11 + 400


def test_fewer_devices_are_tried_too() -> None:
    """With transfers this dear one device is best; an untrained policy does not find that operation by operation."""
    graph = fork_join(6, 3, 2, seed=1, out_bytes=1e10)
    topology = Topology.at_speeds("4xP100", [0.5, 1, 0.25, 1, 0.5], bandwidth=3e9)
    torch.manual_seed(0)
    problem, policy, reward = PlacementProblem(graph, topology, memory="off"), DopplerPolicy(**SMALL), SimulatedTime()
    assert decoding.fastest_devices(problem).tolist() == [1, 3, 0, 4, 2]
    found = decoding.decode_on_fewer(policy, problem, reward, np.random.default_rng(0), samples=12)
    assert set(found[0].assignment.tolist()) == {1}
    assert {placement.notes["devices"] for placement in found} == {5, 1, 2, 4}
    assert found[0].calls == reward.calls == len(found) == 12 + 4  # a greedy one of each number
    times = makespans(problem, [placement.assignment for placement in found])
    np.testing.assert_allclose(times, [placement.makespan for placement in found])
    pinned = PlacementProblem(graph.with_pins(np.eye(5)[np.arange(graph.n) % 5]), topology, memory="off")
    only = decoding.decode_on_fewer(policy, pinned, SimulatedTime(), np.random.default_rng(0), samples=8)
    assert {placement.notes["devices"] for placement in only} == {5}


def test_place_with_a_checkpoint_of_ones_own(tmp_path: Path) -> None:
    problem = fork()
    path = str(quick().train(tmp_path))
    alone = place("doppler", problem, checkpoint=path, samples=8)
    assert alone.makespan == place("doppler", problem, checkpoint=path, samples=8).makespan
    assert alone.calls == 9
    best = place("doppler", problem, checkpoint=path, samples=8, refine=2000)
    assert best.makespan <= alone.makespan
    timed = place("doppler", problem, checkpoint=path, refine_seconds=0.2)
    assert not timed.repeatable
    ordered = place("doppler", problem, checkpoint=path, order="priority")
    assert ordered.execution == "priority"
    with pytest.raises(PlacementError, match="samples=-1"):
        place("doppler", problem, checkpoint=path, samples=-1)
