"""The learned cluster policy: any window and types, masks, imitation, checkpoints, training, and that it is good."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hadoppler import make_scheduler  # noqa: E402
from hadoppler.agents.checkpoint_files import write_file  # noqa: E402
from hadoppler.agents.cluster import checkpoint, scheduler as deciding  # noqa: E402
from hadoppler.agents.cluster.imitation import (  # noqa: E402
    Example,
    collate,
    demonstrate,
    imitate,
    imitation_loss,
    read_examples,
    write_examples,
)
from hadoppler.agents.cluster.network import ClusterNetwork, split  # noqa: E402
from hadoppler.agents.cluster.scheduler import LearnedScheduler, best_decision  # noqa: E402
from hadoppler.agents.cluster.training import FIRST_SEED, TrainingPlan, draw_workload  # noqa: E402
from hadoppler.envs.cluster import (  # noqa: E402
    Cluster,
    ClusterSchedulingEnv,
    SequentialAllocation,
    Workload,
    make_workload,
    simulate,
)
from hadoppler.envs.errors import CheckpointError, TrainingError  # noqa: E402

HEADLINE = Cluster.built_in("headline")
QUICK: dict[str, Any] = {
    "imitation_rounds": 2,
    "ppo_rounds": 1,
    "jobs": (3, 5),
    "clusters": ("v100:8 k80:4",),
    "episodes": 2,
    "learner_from": 1,
    "steps": 4,
    "width": 8,
    "ppo": {"n_steps": 16, "batch_size": 32},
    "ppo_jobs": (3, 6),
    "ppo_envs": 2,
    "validate_every": 1,
    "validation": ((3, None, 0),),
}
"""A plan of a few seconds."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def new_network(width: int = 16, seed: int = 0) -> ClusterNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ClusterNetwork(width)


def sequential(workload: Any, cluster: Any = HEADLINE, **options: Any) -> SequentialAllocation:
    env = ClusterSchedulingEnv(workload, cluster, nodes=False, **options)
    return SequentialAllocation(env, every_round=False)


def scores(network: ClusterNetwork, observation: dict[str, Any]) -> tuple[Any, float]:
    """Scores and value of one observation."""
    seen = {name: torch.from_numpy(observation[name])[None] for name in ("job_features", "global_features")}
    with torch.no_grad():
        answer, value = network(seen, len(observation["action_mask"]))
    return answer[0].numpy(), float(value)


@cache
def demonstrations(episodes: int = 2) -> tuple[Example, ...]:
    """SRTF's decisions for a few jobs."""
    rng, found = np.random.default_rng(0), []
    for seed in range(episodes):
        workload = make_workload("headline", jobs=20, seed=FIRST_SEED + seed)
        found += demonstrate(workload, Cluster.parse("v100:4 k80:4"), make_scheduler("srtf"), rng, density=100.0)
    return tuple(found)


# --- the network --------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [5, 12, 40])
@pytest.mark.parametrize("cluster", ["v100:4x2", "v100:4 k80:2", "v100:4 p100:4x2 k80:8"])
@pytest.mark.parametrize("mixing", [True, False])
def test_shapes_follow_the_window_and_the_types(window: int, cluster: str, mixing: bool) -> None:
    network = new_network()
    env = sequential(make_workload("headline", jobs=10, seed=0), cluster, window=window, mixing=mixing)
    observation, info = env.reset(seed=0)
    answer, value = scores(network, observation)
    assert answer.shape == info["action_mask"].shape
    assert np.isfinite(answer).all()
    assert math.isfinite(value)


def test_it_is_small() -> None:
    assert 10_000 < sum(weight.numel() for weight in ClusterNetwork().parameters()) < 50_000


@pytest.mark.parametrize("window", [12, 30])
def test_padding_changes_nothing(window: int) -> None:
    network, workload = new_network(), make_workload("headline", jobs=12, seed=0)
    exact, _ = sequential(workload, window=12).reset(seed=0)
    padded, _ = sequential(workload, window=window).reset(seed=0)
    (first, value), (second, other) = scores(network, exact), scores(network, padded)
    np.testing.assert_allclose(second[: len(first) - 1], first[:-1], atol=1e-5)
    assert second[-1] == pytest.approx(first[-1], abs=1e-5)
    assert other == pytest.approx(value, abs=1e-5)


def test_jobs_and_types_may_stand_in_any_order() -> None:
    """Permuted jobs give permuted scores, permuted types permuted columns; closing and value stay."""
    network, rng = new_network(), np.random.default_rng(0)
    env = sequential(make_workload("headline", jobs=12, seed=0), window=12)
    observation, info = env.reset(seed=0)
    for _ in range(3):
        legal = np.flatnonzero(info["action_mask"])
        observation, *_, info = env.step(legal[rng.integers(len(legal))])
    before, value = scores(network, observation)
    seen = split(*(torch.from_numpy(observation[name])[None] for name in ("job_features", "global_features")))
    jobs, types = torch.from_numpy(rng.permutation(12)), torch.tensor([2, 0, 1])
    columns = torch.cat([torch.arange(17), *(17 + 3 * k + types for k in range(3)), torch.tensor([26, 27])])
    wide = torch.cat([torch.arange(7), *(7 + 3 * k + types for k in range(4))])
    rows = torch.cat((seen.rows, seen.state), dim=-1)[:, jobs][..., columns]
    whole = torch.cat((seen.whole, seen.left), dim=-1)[..., wide]
    with torch.no_grad():
        after, again = network({"job_features": rows, "global_features": whole}, len(before))
    table = before[:-1].reshape(12, 6)[jobs.numpy()][:, [0, *(1 + types.numpy()), 4, 5]]
    np.testing.assert_allclose(after[0, :-1].reshape(12, 6).numpy(), table, atol=1e-5)
    assert float(after[0, -1]) == pytest.approx(before[-1], abs=1e-5)
    assert float(again) == pytest.approx(value, abs=1e-5)


# --- the scheduler ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_it_decides_as_the_network_does_in_the_environment(seed: int) -> None:
    """Greedy decisions under the mask through ``SequentialAllocation`` end every job at the same second."""
    network = checkpoint.load_policy()[0]
    workload = make_workload("headline", jobs=15, seed=seed, per_hour=3)
    env = sequential(workload, "v100:4 p100:2 k80:4", window=15, illegal_action="raise")
    observation, info = env.reset(seed=0)
    done = False
    while not done:
        answer, _ = scores(network, observation)
        action = best_decision(answer, info["action_mask"] > 0, len(env.options))
        observation, _, done, _, info = env.step(action)
    result = simulate(workload, Cluster.parse("v100:4 p100:2 k80:4"), LearnedScheduler())
    assert info["mean_jct_s"] == result.metrics["mean_jct_s"]
    assert info["ttd_s"] == result.metrics["ttd_s"]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("refill", [True, False])
def test_any_weights_finish_every_job(seed: int, refill: bool) -> None:
    """Untrained weights decide badly and legally; the simulator refuses anything else."""
    workload = make_workload("headline", jobs=12, seed=seed, per_hour=2)
    scheduler = LearnedScheduler.of(new_network(8, seed), mixing=bool(seed % 2))
    result = simulate(workload, Cluster.parse("v100:4 p100:4x2 k80:8"), scheduler, early_refill=refill)
    assert result.jobs.finished.all()


def test_same_decisions_every_time() -> None:
    workload = make_workload("headline", jobs=30, seed=7)
    first, second = (simulate(workload, HEADLINE, make_scheduler("learned")) for _ in range(2))
    assert first.jobs.finish.tobytes() == second.jobs.finish.tobytes()
    assert list(first.rounds.rows(workload, HEADLINE)) == list(second.rounds.rows(workload, HEADLINE))


@pytest.mark.parametrize(("jobs", "per_hour"), [(60, None), (80, 2.0)])
def test_the_shipped_policy_beats_hadar_on_workloads_that_it_has_not_seen(jobs: int, per_hour: float | None) -> None:
    """Mean completion time below that of Hadar's round mode, and at most 8 % above its horizon mode's."""
    workload = make_workload("headline", jobs=jobs, seed=100, per_hour=per_hour)
    learned, published, horizon = (
        simulate(workload, HEADLINE, made, log=False).metrics["mean_jct_s"]
        for made in (make_scheduler("learned"), make_scheduler("hadar"), make_scheduler("hadar", mode="horizon"))
    )
    assert learned < published
    assert learned < 1.08 * horizon


def test_other_clusters_than_those_of_its_training() -> None:
    """Two types, one type, and types by other names: in the same league as SRTF."""
    for text in ("v100:4x2 k80:8x2", "p100:4x4"):
        workload, cluster = make_workload("headline", jobs=40, seed=100), Cluster.parse(text)
        ours, srtf = (
            simulate(workload, cluster, make_scheduler(name), log=False).metrics["mean_jct_s"]
            for name in ("learned", "srtf")
        )
        assert ours < 1.1 * srtf, text


# --- checkpoints --------------------------------------------------------------------------------------


def test_a_checkpoint_holds_plain_values_and_gives_the_same_decisions(tmp_path: Path) -> None:
    network, path = new_network(), tmp_path / "deep" / "policy.pt"
    checkpoint.save_policy(path, network, stage="imitation", round=3)
    told = torch.load(path, weights_only=True)
    assert (told["stage"], told["round"], told["width"]) == ("imitation", 3, 16)
    assert [file.name for file in path.parent.iterdir()] == ["policy.pt"]
    workload, cluster = make_workload("headline", jobs=10, seed=0), Cluster.parse("v100:4 k80:4")
    kept, read = (
        simulate(workload, cluster, made).jobs.finish
        for made in (LearnedScheduler.of(network), make_scheduler("learned", checkpoint=path))
    )
    assert kept.tobytes() == read.tobytes()


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere\.pt: cannot be read \(No such file"):
        LearnedScheduler(tmp_path / "nowhere.pt")
    (tmp_path / "text.pt").write_text("hello")
    (tmp_path / "empty.pt").write_bytes(b"")
    for name in ("text.pt", "empty.pt"):
        with pytest.raises(CheckpointError, match=name):
            LearnedScheduler(tmp_path / name)
    torch.save({"kind": "something else"}, tmp_path / "other.pt")
    with pytest.raises(CheckpointError, match="no cluster policy"):
        LearnedScheduler(tmp_path / "other.pt")
    checkpoint.save_policy(tmp_path / "old.pt", new_network())
    told = torch.load(tmp_path / "old.pt", weights_only=True)
    torch.save({**told, "features": told["features"][1:]}, tmp_path / "old.pt")
    with pytest.raises(CheckpointError, match="other features"):
        LearnedScheduler(tmp_path / "old.pt")


@pytest.mark.parametrize("spoil", ["features", "width", "weights", "kind", "shape"])
def test_what_a_policy_file_lacks_is_one_sentence(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "policy.pt"
    checkpoint.save_policy(path, new_network())
    told = torch.load(path, weights_only=True)
    if spoil == "shape":
        told["weights"] = new_network(8).state_dict()
    else:
        del told[spoil]
    write_file(path, told)
    with pytest.raises(CheckpointError, match=r"policy\.pt.*(train it again|holds no cluster policy)"):
        LearnedScheduler(path)


def test_a_file_is_there_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "examples" / "0.pt"
    examples = demonstrate(
        make_workload("physical", jobs=3, seed=1),
        Cluster.parse("v100:2"),
        make_scheduler("srtf"),
        np.random.default_rng(0),
    )
    write_examples(path, examples)
    whole = path.read_bytes()
    save = torch.save

    def torn(content: Any, target: Path) -> None:
        save(content, target)
        target.write_bytes(target.read_bytes()[:-100])
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", torn)
    with pytest.raises(OSError, match="no space"):
        write_examples(path, examples[:1])
    assert path.read_bytes() == whole
    assert [example.value for example in read_examples(path)] == [example.value for example in examples]
    path.write_bytes(whole[:-100])
    with pytest.raises(CheckpointError, match=r"0\.pt: is no checkpoint, or was cut"):
        read_examples(path)


def test_the_shipped_file_is_small() -> None:
    assert checkpoint.SHIPPED.stat().st_size < 200_000


# --- imitation ----------------------------------------------------------------------------------------


def test_everything_that_the_teacher_still_wants_is_right() -> None:
    """One job per GPU of one type: SRTF wants the two shortest of three, in either order, then nothing more."""
    workload = make_workload("physical", jobs=3, seed=1)
    found = demonstrate(
        workload, Cluster.parse("v100:2"), make_scheduler("srtf"), np.random.default_rng(0), density=100.0
    )
    rates = workload.rates(Cluster.parse("v100:2"))[0][:, 0]
    shortest = np.argsort(workload.steps / rates)[:2]
    options = (len(found[0].legal) - 1) // 3
    assert sorted(np.flatnonzero(found[0].wanted) // options) == sorted(shortest)
    assert found[1].wanted.sum() == 1
    assert all((example.wanted <= example.legal).all() and example.wanted.any() for example in found)
    mean = simulate(workload, Cluster.parse("v100:2"), make_scheduler("srtf")).metrics["mean_jct_s"]
    alone = (workload.steps / rates + 10).mean()
    assert found[0].value == pytest.approx(-mean / alone, rel=1e-6)
    assert found[-1].value >= found[0].value


def test_the_loss_is_the_probability_of_what_is_wanted() -> None:
    """Equal scores: one of four legal decisions wanted costs log 4, two of them log 2."""
    network = new_network()
    for name in ("score_pair", "score_job", "score_close"):
        torch.nn.init.zeros_(getattr(network, name).weight)
        torch.nn.init.zeros_(getattr(network, name).bias)
    (example, *_) = (one for one in demonstrations() if one.legal.sum() > 4)
    legal = np.zeros_like(example.legal)
    legal[np.flatnonzero(example.legal)[:4]] = True
    for count in (1, 2):
        wanted = np.zeros_like(legal)
        wanted[np.flatnonzero(legal)[:count]] = True
        loss, _ = imitation_loss(network, collate([example._replace(legal=legal, wanted=wanted)]), value_weight=0.0)
        assert loss.item() == pytest.approx(math.log(4 / count), rel=1e-5)


def test_imitation_learns() -> None:
    network, examples = new_network(), demonstrations()
    with torch.no_grad():
        before, _ = imitation_loss(network, collate(examples))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    imitate(network, optimizer, examples, 300, np.random.default_rng(0))
    with torch.no_grad():
        after, accuracy = imitation_loss(network, collate(examples))
    assert float(after) < 0.2 * float(before)
    assert accuracy > 0.95


def test_the_learner_leads_and_the_teacher_tells() -> None:
    """Led by an untrained network the states differ, and what is wanted is legal in them."""
    workload, cluster = make_workload("headline", jobs=8, seed=FIRST_SEED), Cluster.parse("v100:4 k80:4")
    led, own = (
        demonstrate(workload, cluster, make_scheduler("srtf"), np.random.default_rng(0), leader=leader, density=100.0)
        for leader in (LearnedScheduler.of(new_network(8)), None)
    )
    assert all((example.wanted <= example.legal).all() and example.wanted.any() for example in led)
    assert led[0].value < own[0].value


@pytest.mark.parametrize(
    ("name", "options"),
    [("srtf", {}), ("gavel", {}), ("hadar", {"mode": "admission"}), ("hadar", {"mode": "horizon"})],
)
def test_whatever_needs_to_know_the_jobs_can_teach_as_it_can_schedule(name: str, options: dict[str, Any]) -> None:
    workload, cluster = make_workload("physical", jobs=4, seed=1), Cluster.parse("v100:2 k80:1")
    for _ in range(2):
        found = demonstrate(workload, cluster, make_scheduler(name, **options), np.random.default_rng(0), density=100.0)
        assert found
        assert all(example.wanted.any() for example in found)


# --- training -----------------------------------------------------------------------------------------


def test_masked_ppo_takes_it_as_it_is() -> None:
    ppo = pytest.importorskip("sb3_contrib").MaskablePPO
    from hadoppler.agents.cluster.ppo import ClusterPolicy

    env = sequential("physical", "v100:2 k80:2", jobs=4, window=4)
    model = ppo(ClusterPolicy, env, n_steps=64, batch_size=32, policy_kwargs={"network_width": 8}, seed=0, device="cpu")
    before = {name: value.clone() for name, value in model.policy.network.state_dict().items()}
    model.learn(128)
    assert any(not torch.equal(before[name], value) for name, value in model.policy.network.state_dict().items())
    observation, info = env.reset(seed=0)
    action, _ = model.predict(observation, deterministic=True, action_masks=info["action_mask"])
    answer, value = scores(model.policy.network, observation)
    assert int(action) == int(np.where(info["action_mask"], answer, -np.inf).argmax())
    assert float(model.policy.predict_values(model.policy.obs_to_tensor(observation)[0])) == pytest.approx(
        value, abs=1e-5
    )


def test_a_saved_ppo_policy_of_another_width_is_made_again(tmp_path: Path) -> None:
    ppo = pytest.importorskip("sb3_contrib").MaskablePPO
    from hadoppler.agents.cluster.ppo import ClusterPolicy

    env = sequential("physical", "v100:2 k80:2", jobs=4, window=4)
    policy = ppo(ClusterPolicy, env, policy_kwargs={"network_width": 8}, seed=0, device="cpu").policy
    policy.save(str(tmp_path / "policy.zip"))
    again = ClusterPolicy.load(str(tmp_path / "policy.zip"), device="cpu")
    assert again.network.width == 8
    observation, _ = env.reset(seed=0)
    np.testing.assert_array_equal(scores(again.network, observation)[0], scores(policy.network, observation)[0])


def test_same_seed_same_bytes_and_a_stopped_training_goes_on_exactly(tmp_path: Path) -> None:
    pytest.importorskip("sb3_contrib")
    plan = TrainingPlan(**QUICK)
    lines: list[Any] = []
    path = plan.train(tmp_path / "whole", lines.append)
    assert [line["stage"] for line in lines] == ["imitation", "imitation", "ppo"]

    def stop(line: Any) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            plan.train(tmp_path / "parts", stop, resume=(tmp_path / "parts").exists())
    assert plan.train(tmp_path / "parts", resume=True).exists(), "nothing is left to do"
    assert not list((tmp_path / "parts").rglob("examples/*")), "examples are kept while they are needed"
    whole, parts = (torch.load(tmp_path / name / "last.pt", weights_only=True) for name in ("whole", "parts"))
    assert whole["rounds"] == parts["rounds"] == 3
    assert all(torch.equal(value, parts["weights"][name]) for name, value in whole["weights"].items())
    assert path.read_bytes() == (tmp_path / "parts" / "policy.pt").read_bytes()
    with pytest.raises(CheckpointError, match="another plan"):
        replace(plan, steps=5).train(tmp_path / "parts", resume=True)


@pytest.mark.parametrize("stale", [8, 16])
def test_a_training_begins_anew_whatever_lies_in_its_folder(tmp_path: Path, stale: int) -> None:
    pytest.importorskip("sb3_contrib")
    plan = TrainingPlan(**{**QUICK, "imitation_rounds": 0})
    checkpoint.save_policy(tmp_path / "used" / "policy.pt", new_network(stale, seed=3))
    used, fresh = (plan.train(tmp_path / folder) for folder in ("used", "fresh"))
    assert used.read_bytes() == fresh.read_bytes()


def test_plans_that_cannot_be_are_refused() -> None:
    with pytest.raises(TrainingError, match="different numbers of GPU types"):
        TrainingPlan(clusters=("v100:2", "v100:2 k80:2"))
    with pytest.raises(TrainingError, match="episodes is 0"):
        TrainingPlan(episodes=0)
    with pytest.raises(TrainingError, match="which forks jobs; the network cannot"):
        TrainingPlan(teachers=[{"name": "hadar"}, {"name": "hadare"}])
    with pytest.raises(TrainingError, match="below 1000"):
        TrainingPlan(validation=((10, None, 1000),))


def test_training_never_sees_the_seeds_of_tests() -> None:
    rng = np.random.default_rng(0)
    drawn: list[Workload] = [draw_workload(rng, (3, 5)) for _ in range(200)]
    assert all(int(workload.name.partition("-s")[2]) >= FIRST_SEED for workload in drawn)
    assert {len(workload) for workload in drawn} == {3, 4, 5}
    assert 60 < sum(bool((workload.arrival == 0).all()) for workload in drawn) < 140


def test_the_command_trains_and_simulate_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sb3_contrib")
    from hadoppler.scripts.cli import main

    monkeypatch.chdir(tmp_path)
    words = [f"agent.{key}={value}" for key, value in QUICK.items() if isinstance(value, int)]
    words += ["agent.jobs=[3,5]", "agent.ppo_jobs=[3,6]", "agent.ppo.n_steps=16", "agent.ppo.batch_size=32"]
    words += ["agent.clusters=['v100:8 k80:4']", "agent.validation=[[3,null,0]]"]
    assert main(["train", "agent=cluster", *words]) == 0
    (policy,) = tmp_path.glob("runs/train/*/policy.pt")
    assert len((policy.parent / "metrics.jsonl").read_text().splitlines()) == 3
    simulated = ["simulate", "workload.jobs=6", "scheduler=[learned]", f"scheduler.learned.checkpoint={policy}"]
    assert main([*simulated, "pictures=false"]) == 0
    assert main(["train", "agent=cluster", *words, f"resume={policy.parent}", "seed=1"]) == 2
    assert main(["train", "agent=cluster", "agent.imitation_rouns=1"]) == 2
    assert main(["train", "agent=cluster", "seed=-1"]) == 2


def test_the_yaml_holds_the_plans_own_values() -> None:
    pytest.importorskip("sb3_contrib")
    import hydra

    from hadoppler.agents.cluster.ppo import PPO_SETTINGS
    from hadoppler.scripts import train as command

    with hydra.initialize_config_module("hadoppler.conf", version_base="1.3"):
        config = hydra.compose("train", ["agent=cluster"])
    made = command.instantiate(config.agent, _convert_="all"), TrainingPlan()
    plan, own = (json.loads(json.dumps(asdict(one))) for one in made)
    for name in own.keys() - {"ppo"}:
        assert plan[name] == own[name], name
    assert plan["ppo"] == PPO_SETTINGS


def test_a_round_where_nothing_happened_is_not_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = deciding.decide_round
    monkeypatch.setattr(deciding, "decide_round", lambda *given: asked.append(1) or real(*given))
    result = simulate(make_workload("headline", jobs=5, seed=0), HEADLINE, LearnedScheduler.of(new_network()))
    assert 5 >= len(asked) < len(result.rounds)


def test_plans_that_train_nothing_are_refused() -> None:
    with pytest.raises(TrainingError, match="imitation_rounds is -1 and ppo_rounds 0; expected numbers from 0 up"):
        TrainingPlan(imitation_rounds=-1, ppo_rounds=0)
    with pytest.raises(TrainingError, match=r"jobs is \[10, 5\]; expected two whole numbers from 1 up, .least, most."):
        TrainingPlan(jobs=(10, 5))
