"""DOPPLER's two policies: the compiled loop against torch, probabilities against enumeration, and the teacher."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from hadoppler.agents.placement import doppler, rollout_kernels as kernels  # noqa: E402
from hadoppler.agents.placement.critical_path import tied_candidates  # noqa: E402
from hadoppler.agents.placement.doppler import DopplerPolicy, select_scores  # noqa: E402
from hadoppler.agents.placement.inputs import path_jumps, path_sums  # noqa: E402
from hadoppler.agents.placement.policy import Exploration, Trajectories  # noqa: E402
from hadoppler.envs.errors import PlacementError, TrainingError  # noqa: E402
from hadoppler.envs.placement import (  # noqa: E402
    DataflowGraph,
    EpisodeBatch,
    PlacementProblem,
    Topology,
    make_graph,
    makespans,
)
from hadoppler.envs.placement.random_problems import draw_problem  # noqa: E402
from hadoppler.envs.placement.workloads import chain, fork_join, ladder, layered_random  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make(**options: object) -> DopplerPolicy:
    torch.manual_seed(0)
    return DopplerPolicy(**options)  # type: ignore[arg-type]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def pinned() -> PlacementProblem:
    graph = layered_random(layers=4, width=5, seed=1)
    allowed = rng(3).random((graph.n, 4)) < 0.5
    allowed[np.arange(graph.n), rng(4).integers(4, size=graph.n)] = True
    return PlacementProblem(graph.with_pins(allowed), Topology.preset("mixed"), memory="penalty")


CASES = {
    "fork and join": PlacementProblem(fork_join(4, 2, 2), Topology.preset("4xP100-slow")),
    "pinned": pinned(),
    "raw": PlacementProblem.raw(make_graph("chainmm", costs="published")),
    "one device": PlacementProblem.raw(ladder(4), 1),
    "no memory": PlacementProblem(fork_join(2, 2, 1), Topology.uniform(2, memory_bytes=0), memory="penalty"),
    "one operation": PlacementProblem.raw(DataflowGraph.build(flops=[1.0]), 3),
    "no edges, no costs": PlacementProblem.raw(DataflowGraph.build(flops=np.zeros(5)), 2),
}


@pytest.mark.parametrize("case", CASES)
def test_ties_of_the_rule_do_not_depend_on_the_unit_of_time(case: str) -> None:
    """Seconds, nanoseconds or units of 1e12 of them: the same operations are equally urgent."""
    problem, policy = CASES[case], make(halves="place")
    graph, links = problem.graph, problem.topology.bandwidth
    ranks = policy.prepare(problem, rng()).ranks
    for unit in (1e-12, 1e-9, 3e-4, 7.0, 1e12):
        topology = replace(problem.topology, bandwidth=links / unit, latency=problem.latency * unit)
        other = replace(problem, topology=topology).with_seconds(problem.compute_s * unit)
        assert policy.prepare(other, rng()).ranks.tolist() == ranks.tolist(), unit
    shards = graph.group[graph.group >= 0]
    assert len(np.unique(ranks)) < graph.n or not shards.size, "shards of one operation tie"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("halves", ["both", "select", "place"])
@pytest.mark.parametrize(
    "exploration",
    [None, Exploration.greedy(), Exploration(0.5, 2.0, epsilon=0.5)],
    ids=["sampled", "greedy", "explored"],
)
def test_episodes_are_legal_and_repeatable(case: str, halves: str, exploration: Exploration | None) -> None:
    problem, policy = CASES[case], make(halves=halves)
    prepared = policy.prepare(problem, rng())
    played = policy.roll_out(prepared, 7, rng(1), exploration)
    problem.check_assignment(played.assignment)
    when = np.argsort(played.order, axis=1)
    assert (np.sort(played.order, axis=1) == np.arange(problem.n)).all()
    assert (when[:, problem.graph.edge_source] < when[:, problem.graph.edge_target]).all()
    scores = policy.score(prepared, played)
    assert scores.select.shape == scores.place.shape == (7, problem.n)
    for part in (scores.select, scores.place, scores.select_entropy, scores.place_entropy):
        assert torch.isfinite(part).all()
    assert (scores.episode <= 1e-4).all()
    again = policy.roll_out(policy.prepare(problem, rng()), 7, rng(1), exploration, threads=2)
    assert again.order.tobytes() == played.order.tobytes()
    assert again.devices.tobytes() == played.devices.tobytes()
    assert again.records["features"].tobytes() == played.records["features"].tobytes()


@pytest.mark.parametrize("case", ["fork and join", "pinned", "raw"])
def test_the_compiled_policy_equals_the_network(case: str) -> None:
    """Greedy episodes take the best logit and the best score of the network at every step."""
    problem, policy = CASES[case], make()
    prepared = policy.prepare(problem, rng())
    played = policy.roll_out(prepared, 1, rng(), Exploration.greedy())
    with torch.no_grad():
        found = policy.embeddings(prepared.inputs)
        seen = played.tensors(policy.device)
        logits = policy.place_logits(found, seen["order"].long(), seen["devices"].long(), seen["features"])[0]
    best = logits.max(dim=1).values
    taken = logits.gather(1, seen["devices"].long()[0][:, None])[:, 0]
    assert (taken >= best - 1e-5).all()
    waiting, score = problem.graph.in_degree.copy(), found.score.numpy()
    for v in played.order[0]:
        assert score[v] >= score[np.flatnonzero(waiting == 0)].max() - 1e-6
        waiting[v] = -1
        targets = problem.graph.edge_target[problem.graph.out_ptr[v] : problem.graph.out_ptr[v + 1]]
        np.subtract.at(waiting, targets, 1)


def test_the_compiled_logits_equal_the_network_after_every_step() -> None:
    problem, policy = CASES["raw"], make()
    prepared = policy.prepare(problem, rng())
    played = policy.roll_out(prepared, 2, rng(2))
    arrays = policy.arrays(prepared)
    with torch.no_grad():
        seen = played.tensors(policy.device)
        found = policy.embeddings(prepared.inputs)
        expected = policy.place_logits(found, seen["order"].long(), seen["devices"].long(), seen["features"]).numpy()
    for b in range(2):
        total = np.zeros((problem.d, 64), np.float32)
        for step in range(problem.n):
            logit, v = np.zeros(problem.d), played.order[b, step]
            features = played.records["features"][b, step]
            scratch = np.zeros(64, np.float32), np.zeros(32, np.float32)
            kernels.place_logits(arrays, v, total, features, *scratch, logit)
            np.testing.assert_allclose(logit, expected[b, step], atol=2e-5)
            total[played.devices[b, step]] += arrays.placed[v]


@pytest.mark.parametrize("case", ["pinned", "raw", "one operation"])
def test_scores_and_gradients_do_not_depend_on_chunks(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step, some steps with a shorter rest, and all of them at once."""
    problem, policy = CASES[case], make(width=16, second=8)
    prepared = policy.prepare(problem, rng())
    played = policy.roll_out(prepared, 3, rng(1))
    weights, answers = torch.randn(3, problem.n, generator=torch.Generator().manual_seed(0)), []
    for numbers in (1, 7 * 3 * problem.d * 16, 1 << 30):
        monkeypatch.setattr(doppler, "SCORED_AT_ONCE", numbers)
        policy.zero_grad()
        scores = policy.score(prepared, played)
        (weights * (scores.place + scores.place_entropy)).sum().backward()
        grads = [torch.zeros(()) if weight.grad is None else weight.grad.clone() for weight in policy.parameters()]
        answers.append((scores.place.detach(), grads))
    for place, grads in answers[:-1]:
        torch.testing.assert_close(place, answers[-1][0], rtol=1e-5, atol=1e-5)
        for here, there in zip(grads, answers[-1][1], strict=True):
            torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-4)


def test_samples_follow_the_probabilities() -> None:
    """All episodes of a tiny problem, enumerated: their probabilities sum to 1 and are the shares of the samples."""
    graph = DataflowGraph.build(flops=[1, 2, 3, 1], edges=[(0, 2), (1, 3)], edge_bytes=[1, 2])
    problem, policy = PlacementProblem.raw(graph, 2), make(width=8, second=4)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(2.0)
    prepared = policy.prepare(problem, rng())
    orders = [o for o in itertools.permutations(range(4)) if o.index(0) < o.index(2) and o.index(1) < o.index(3)]
    episodes = [(order, devices) for order in orders for devices in itertools.product((0, 1), repeat=4)]
    assignments = np.array([devices for _, devices in episodes])
    followed = policy.follow(prepared, assignments, np.array([order for order, _ in episodes]))
    probability = policy.score(prepared, followed).episode.exp().detach().numpy()
    assert probability.sum() == pytest.approx(1.0, abs=1e-5)
    played = policy.roll_out(prepared, 60_000, rng(5))
    counts = Counter(
        (tuple(order), tuple(row)) for order, row in zip(played.order.tolist(), played.assignment.tolist(), strict=True)
    )
    share = np.array([counts[(order, devices)] for order, devices in episodes]) / 60_000
    np.testing.assert_allclose(share, probability, atol=5 * np.sqrt(probability.max() / 60_000))


def test_select_scores_by_hand() -> None:
    """0 and 1 at first; 2 joins after 0: log-probabilities and entropies of the order 0 2 1."""
    score = torch.tensor([0.5, -1.0, 2.0])
    order, ready = torch.tensor([[0, 2, 1]]), torch.tensor([[0, 1, 2]])
    logs, entropy = select_scores(score, order, ready, torch.tensor([[0, 2, 3, 3, 3]]))
    first = torch.log_softmax(score[:2], 0)
    second = torch.log_softmax(score[[2, 1]], 0)
    np.testing.assert_allclose(logs[0], [first[0], second[0], 0.0], atol=1e-6)
    expected = [-(first.exp() * first).sum(), -(second.exp() * second).sum(), 0.0]
    np.testing.assert_allclose(entropy[0], expected, atol=1e-6)


def test_path_sums_by_hand() -> None:
    """0 -> 1 -> 3 and 2 -> 3."""
    jumps = path_jumps(np.array([1, 3, 3, -1], np.int32), 3)
    values = torch.tensor([[1.0], [10.0], [100.0], [1000.0]])
    assert path_sums(values, jumps)[:, 0].tolist() == [1011, 1010, 1100, 1000]


@pytest.mark.parametrize("length", [1, 2, 5, 64, 65])
def test_path_sums_of_chains(length: int) -> None:
    following = np.append(np.arange(1, length), -1).astype(np.int32)
    sums = path_sums(torch.ones(length, 1), path_jumps(following, length))
    assert sums[:, 0].tolist() == list(range(length, 0, -1))


def test_ties_are_those_of_a_scan() -> None:
    graph = layered_random(layers=5, width=6, seed=2)
    problem, policy = PlacementProblem.raw(graph), make()
    prepared = policy.prepare(problem, rng())
    ranks = rng(1).integers(3, size=problem.n).astype(np.float64)
    played = policy.roll_out(prepared, 3, rng(2))
    step, tied = tied_candidates(played.order, played.records["ready"], played.records["ready_ptr"], ranks)
    expected = set()
    for b in range(3):
        waiting = graph.in_degree.copy()
        for t, v in enumerate(played.order[b]):
            candidates = np.flatnonzero(waiting == 0)
            best = ranks[candidates].max()
            expected |= {(b * problem.n + t, int(w)) for w in candidates if ranks[w] == best}
            waiting[v] = -1
            np.subtract.at(waiting, graph.edge_target[graph.out_ptr[v] : graph.out_ptr[v + 1]], 1)
    assert set(zip(step.tolist(), tied.tolist(), strict=True)) == expected


def test_the_rule_of_critical_path_replaces_either_half() -> None:
    """``place`` takes candidates of the largest b-level, ``select`` devices of the earliest start; ties at random."""
    problem = CASES["raw"]
    policy = make(halves="place")
    prepared = policy.prepare(problem, rng())
    played = policy.roll_out(prepared, 16, rng(1))
    step, tied = tied_candidates(played.order, played.records["ready"], played.records["ready_ptr"], prepared.ranks)
    pairs = set(zip(step.tolist(), tied.tolist(), strict=True))
    assert all((b * problem.n + t, int(v)) in pairs for b, row in enumerate(played.order) for t, v in enumerate(row))
    assert len({row.tobytes() for row in played.order}) > 1
    policy = make(halves="select")
    played = policy.roll_out(policy.prepare(problem, rng()), 16, rng(1), Exploration.greedy())
    flags = played.records["features"][..., kernels.COLUMNS.index("earliest_start")]
    assert (np.take_along_axis(flags, played.devices[..., None].astype(np.int64), 2) == 1).all()
    assert len({row.tobytes() for row in played.devices}) > 1


def test_following_gives_the_features_of_the_environment() -> None:
    problem, policy = CASES["fork and join"], make()
    prepared = policy.prepare(problem, rng())
    played = policy.roll_out(prepared, 5, rng(1))
    followed = policy.follow(prepared, played.assignment, played.order)
    for name, values in played.records.items():
        np.testing.assert_array_equal(followed.records[name], values)
    batch = EpisodeBatch(problem, 5)
    raw = batch.device_features(played.order[:, 0])
    assert raw.shape[2] == kernels.RAW_COLUMNS
    unit = prepared.inputs.unit / prepared.inputs.scale
    start = np.log1p((raw[..., 4] - raw[..., 4].min(axis=1, keepdims=True)) / unit)
    np.testing.assert_allclose(followed.records["features"][:, 0, :, 0], start, atol=1e-6)
    backwards = np.flip(played.order, axis=1)
    with pytest.raises(PlacementError, match="cannot be followed"):
        policy.follow(prepared, played.assignment, backwards)


def test_equal_devices_are_treated_alike() -> None:
    problem, policy = CASES["raw"], make()
    prepared = policy.prepare(problem, rng())
    played = policy.roll_out(prepared, 4, rng(1))
    renamed = policy.follow(prepared, np.array([2, 0, 3, 1])[played.assignment], played.order)
    expected = policy.score(prepared, played).episode.detach()
    np.testing.assert_allclose(policy.score(prepared, renamed).episode.detach(), expected, rtol=1e-4)


def test_gradients_reach_every_weight() -> None:
    problem, policy = CASES["fork and join"], make(width=16, second=8)
    prepared = policy.prepare(problem, rng())
    played = policy.roll_out(prepared, 8, rng(1))
    (
        policy.score(prepared, played).episode * torch.randn(8, generator=torch.Generator().manual_seed(0))
    ).sum().backward()
    assert [name for name, weight in policy.named_parameters() if weight.grad is None] == []
    assert sum(float(weight.grad.abs().sum()) > 0 for weight in policy.parameters()) == len(list(policy.parameters()))


def test_the_teacher_is_learned() -> None:
    """After imitation the greedy episode decides as CRITICAL PATH does."""
    problem, policy = PlacementProblem(fork_join(4, 2, 2), Topology.preset("mixed-slow")), make()
    prepared = policy.prepare(problem, rng())
    optimizer = torch.optim.Adam(policy.parameters(), 3e-3)
    for number in range(80):
        played = policy.roll_out(prepared, 8, rng(number), Exploration(epsilon=0.3))
        optimizer.zero_grad()
        policy.rule_loss(prepared, played).backward()
        optimizer.step()
    played = policy.roll_out(prepared, 1, rng(), Exploration.greedy())
    step, tied = tied_candidates(played.order, played.records["ready"], played.records["ready_ptr"], prepared.ranks)
    pairs = set(zip(step.tolist(), tied.tolist(), strict=True))
    assert np.mean([(t, int(v)) in pairs for t, v in enumerate(played.order[0])]) > 0.95
    flags = played.records["features"][0, :, :, kernels.COLUMNS.index("earliest_start")]
    assert flags[np.arange(problem.n), played.devices[0]].mean() > 0.95


def test_sizes_do_not_depend_on_the_graph() -> None:
    policy = make()
    for number in range(4):
        problem = draw_problem(rng(number))
        played = policy.roll_out(policy.prepare(problem, rng()), 2, rng(1))
        assert np.isfinite(makespans(problem, played.assignment)).all()
        assert torch.isfinite(policy.score(policy.prepare(problem, rng()), played).episode).all()


def test_long_chains() -> None:
    problem, policy = PlacementProblem.raw(chain(20_000)), make(width=8, second=4, layers=1)
    prepared = policy.prepare(problem, rng())
    played = policy.roll_out(prepared, 1, rng(1))
    policy.score(prepared, played).episode.sum().backward()


def test_options_are_checked() -> None:
    with pytest.raises(TrainingError, match="halves"):
        DopplerPolicy(halves="neither")  # type: ignore[arg-type]


def test_trajectories_by_hand() -> None:
    episodes = Trajectories(np.array([[2, 0, 1]], np.int32), np.array([[1, 0, 3]], np.int32), {"x": np.arange(3)[None]})
    assert episodes.assignment.tolist() == [[0, 3, 1]]
    assert len(episodes.take([0, 0])) == 2
