"""Training of the cluster policy: imitation of schedulers, then MaskablePPO; the best by validation is kept."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...baselines.cluster.registry import find_scheduler
from ...envs.arguments import check_list, is_listed, read_range
from ...envs.cluster import Cluster, ClusterSchedulingEnv, Scheduler, SequentialAllocation, Workload, simulate
from ...envs.cluster.generators import make_workload
from ...envs.errors import CheckpointError, TrainingError
from ..metrics import append_line, cut_lines
from .checkpoint import load_policy, save_policy
from .imitation import best_teacher, demonstrate, imitate, read_examples, write_examples
from .network import ClusterNetwork
from .scheduler import LearnedScheduler

FIRST_SEED = 1000
"""Training draws workload seeds from here up; those below are for validation and for tests on held-out ones."""
Report = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class TrainingPlan:
    """What is trained on, how long, and with which settings (our choices).

    Attributes:
        seed: of all draws; the same plan gives the same policy on the same machine.
        imitation_rounds, ppo_rounds: how often new episodes are played and learned from.
        jobs: least and most jobs of a workload of the headline kind; half are there from the start.
        per_hour: least and most mean arrivals an hour of the others.
        clusters: one is drawn per episode; all of as many GPU types. ``headline`` or texts for ``Cluster.parse``.
        teachers: schedulers as name and options; the one with the least mean completion time teaches.
        episodes: of imitation, per round; from ``learner_from`` on every second one is led by the network.
        steps: gradient steps per round of imitation.
        learning_rate: of imitation at first; it falls to a twentieth along a cosine.
        width: of the network.
        ppo: settings of MaskablePPO that differ from ``make_ppo``'s.
        ppo_jobs, ppo_envs: as ``jobs``; environments side by side.
        validate_every: rounds between two validations.
        validation: (jobs, arrivals an hour or None, seed) of the workloads of a validation, on the first cluster.
    """

    seed: int = 0
    imitation_rounds: int = 30
    ppo_rounds: int = 10
    jobs: Sequence[int] = (40, 200)
    per_hour: Sequence[float] = (1.0, 4.0)
    clusters: Sequence[str] = ("headline", "headline", "v100:4x2 p100:4x4 k80:8x3", "v100:8x3 p100:4x2 k80:4x2")
    teachers: Sequence[Mapping[str, Any]] = (
        {"name": "hadar", "mode": "horizon"},
        {"name": "hadar", "price": "none"},
    )
    episodes: int = 4
    learner_from: int = 4
    steps: int = 100
    learning_rate: float = 1e-3
    width: int = 40
    ppo: Mapping[str, Any] = field(default_factory=dict)
    ppo_jobs: Sequence[int] = (30, 80)
    ppo_envs: int = 4
    validate_every: int = 5
    validation: Sequence[Sequence[Any]] = tuple(
        (jobs, per_hour, seed) for seed in (0, 1) for jobs, per_hour in ((160, None), (60, None), (120, 2.0))
    )

    def __post_init__(self) -> None:
        self._check_lists()
        if len({len(cluster.types) for cluster in map(Cluster.parse, self.clusters)}) != 1:
            raise TrainingError(
                "clusters have different numbers of GPU types; give such with equally many, at least one."
            )
        for name in ("episodes", "steps", "width", "validate_every", "ppo_envs"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} is {getattr(self, name)}; expected a whole number from 1 up.")
        if self.imitation_rounds < 0 or self.ppo_rounds < 0 or self.imitation_rounds + self.ppo_rounds < 1:
            raise TrainingError(
                f"imitation_rounds is {self.imitation_rounds} and ppo_rounds {self.ppo_rounds}; expected numbers "
                "from 0 up, one of them above 0."
            )
        if any(seed >= FIRST_SEED for _, _, seed in self.validation) or not self.validation:
            raise TrainingError(f"validation needs workloads with seeds below {FIRST_SEED}; give at least one.")
        for scheduler in self.teachers:
            if make_teacher(scheduler).forks:
                raise TrainingError(f"teachers has {scheduler}, which forks jobs; the network cannot, so give another.")

    def _check_lists(self) -> None:
        """Refuse one value where several belong."""
        for name in ("jobs", "ppo_jobs"):
            read_range(name, getattr(self, name), TrainingError, least=1, whole=True)
        read_range("per_hour", self.per_hour, TrainingError)
        check_list("clusters", self.clusters, TrainingError, "[headline]")
        check_list("teachers", self.teachers, TrainingError, "[{name: hadar}]")
        check_list("validation", self.validation, TrainingError, "[[60, null, 0]]")
        for scheduler in self.teachers:
            if not isinstance(scheduler, Mapping) or "name" not in scheduler:
                raise TrainingError(
                    f"teachers holds {scheduler!r}; expected a name and options, such as {{name: hadar}}."
                )
        for workload in self.validation:
            if not is_listed(workload) or len(workload) != 3:
                raise TrainingError(
                    f"validation holds {workload!r}; expected [jobs, arrivals an hour or null, seed], such as "
                    "[60, null, 0]."
                )

    def train(self, folder: str | Path, report: Report = lambda told: None, resume: bool = False) -> Path:
        """Train into a folder; returns the file of the best policy.

        Writes ``policy.pt`` (the best so far), ``last.pt`` (to resume from: exactly what an unbroken run would have
        given) and ``metrics.jsonl`` (a line per round).

        Args:
            report: called with each line of ``metrics.jsonl``, once its round is in ``last.pt``.
            resume: go on from ``last.pt``.

        Raises:
            CheckpointError: there is nothing to resume from, or it was trained by another plan.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # networks this small are slower on several
        try:
            return _Run(self, folder, report, resume).finish()
        finally:
            torch.set_num_threads(threads)


def make_teacher(options: Mapping[str, Any]) -> Scheduler:
    """A scheduler from its name and options in one mapping."""
    rest = {str(key): value for key, value in options.items() if key != "name"}
    return find_scheduler(str(options["name"]), rest)


def draw_workload(
    rng: np.random.Generator, jobs: Sequence[int] = (40, 200), per_hour: Sequence[float] = (1.0, 4.0)
) -> Workload:
    """A workload of the headline kind, half of them with all jobs at the start; seeds from ``FIRST_SEED`` up."""
    count, rate = int(rng.integers(jobs[0], jobs[1] + 1)), float(rng.uniform(per_hour[0], per_hour[1]))
    seed = int(rng.integers(FIRST_SEED, 2**31))
    return make_workload("headline", jobs=count, seed=seed, per_hour=None if rng.random() < 0.5 else rate)


def validate(scheduler: Scheduler, plan: TrainingPlan) -> list[float]:
    """Mean completion time [s] of each workload of the plan's validation."""
    cluster, times = Cluster.parse(plan.clusters[0]), []
    for jobs, per_hour, seed in plan.validation:
        workload = make_workload("headline", jobs=int(jobs), seed=int(seed), per_hour=per_hour)
        times.append(float(simulate(workload, cluster, scheduler, log=False).metrics["mean_jct_s"]))
    return times


class _Run:
    """One training under way; all that it needs to go on is in ``last.pt``."""

    def __init__(self, plan: TrainingPlan, folder: Path, report: Report, resume: bool) -> None:
        self.plan, self.folder, self.report = plan, folder, report
        self.begun = time.perf_counter()
        self.state: dict[str, Any] = {"rounds": 0, "best": math.inf, "optimizer": None, "seconds": 0.0}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            self.network = ClusterNetwork(plan.width)
        if resume:
            self._load()
        else:
            self.state["reference"] = validate(make_teacher(plan.teachers[0]), plan)
            (folder / "metrics.jsonl").unlink(missing_ok=True)

    def finish(self) -> Path:
        """All rounds that are left."""
        whole = self.plan.imitation_rounds
        for stage, rounds, last in (("imitation", self._imitate(), whole), ("ppo", self._fine_tune(), None)):
            for told in rounds:
                self.state["rounds"] += 1
                self._note(stage, told, self.state["rounds"] == last)
        return self.folder / "policy.pt"

    def _imitate(self) -> Iterator[dict[str, float]]:
        plan = self.plan
        left = range(self.state["rounds"], plan.imitation_rounds)
        optimizer = torch.optim.Adam(self.network.parameters(), plan.learning_rate)
        if self.state["optimizer"] is not None and left:
            optimizer.load_state_dict(self.state["optimizer"])
        before = range(self.state["rounds"]) if left else ()
        seen = [example for number in before for example in read_examples(self._examples(number))]
        for number in left:
            rng = np.random.default_rng((plan.seed, number))
            for group in optimizer.param_groups:
                group["lr"] = plan.learning_rate * _cosine(number / plan.imitation_rounds)
            examples = []
            for episode in range(plan.episodes):
                cluster = Cluster.parse(plan.clusters[int(rng.integers(len(plan.clusters)))])
                workload = draw_workload(rng, plan.jobs, plan.per_hour)
                teacher = best_teacher(workload, cluster, [partial(make_teacher, one) for one in plan.teachers])
                led = number >= plan.learner_from and episode % 2
                leader = LearnedScheduler.of(self.network) if led else None
                examples += demonstrate(workload, cluster, teacher, rng, leader=leader)
            write_examples(self._examples(number), examples)
            seen += examples
            loss, accuracy = imitate(self.network, optimizer, seen, plan.steps, rng)
            self.state["optimizer"] = optimizer.state_dict()
            yield {"examples": len(seen), "loss": loss, "accuracy": accuracy}
        for number in range(plan.imitation_rounds):
            self._examples(number).unlink(missing_ok=True)

    def _examples(self, number: int) -> Path:
        return self.folder / "examples" / f"{number}.pt"

    def _fine_tune(self) -> Iterator[dict[str, float]]:
        plan = self.plan
        begin, end = plan.imitation_rounds, plan.imitation_rounds + plan.ppo_rounds
        if self.state["rounds"] >= end:
            return
        from .ppo import make_ppo, network_of, ppo_round

        if self.state["rounds"] == begin and self.state["best"] < math.inf:  # a policy.pt of this training
            self.network = load_policy(self.folder / "policy.pt")[0]  # the best one, not the last
        model = make_ppo(self.network, _ppo_environments(plan), **plan.ppo)
        if self.state["rounds"] > begin:
            model.policy.optimizer.load_state_dict(self.state["optimizer"])
        for number in range(self.state["rounds"], end):
            told = ppo_round(model, plan.seed + FIRST_SEED * (number + 1))
            self.network.load_state_dict(network_of(model).state_dict())
            self.state["optimizer"] = model.policy.optimizer.state_dict()
            yield {key: told[key] for key in ("return", "approx_kl", "explained_variance")}

    def _note(self, stage: str, told: Mapping[str, float], last: bool) -> None:
        """Validate where it is time, keep what is best, write a line."""
        plan, state = self.plan, self.state
        line = {"stage": stage, "round": state["rounds"], **told}
        every = plan.imitation_rounds + plan.ppo_rounds
        if last or state["rounds"] % plan.validate_every == 0 or state["rounds"] == every:
            times = validate(LearnedScheduler.of(self.network), plan)
            ratios = [ours / theirs for ours, theirs in zip(times, state["reference"], strict=True)]
            line["validation"] = float(np.exp(np.mean(np.log(ratios))))
            if line["validation"] < state["best"]:
                state["best"] = line["validation"]
                told_with = {"stage": stage, "round": state["rounds"], "validation": state["best"]}
                save_policy(self.folder / "policy.pt", self.network, **told_with, plan=_plain(plan))
        now = time.perf_counter()
        state["seconds"], self.begun = state["seconds"] + now - self.begun, now
        line["seconds"] = round(state["seconds"], 1)
        line["done"] = state["rounds"] / every
        append_line(self.folder / "metrics.jsonl", line)
        save_policy(self.folder / "last.pt", self.network, **state, plan=_plain(plan))
        self.report(line)

    def _load(self) -> None:
        self.network, told = load_policy(self.folder / "last.pt")
        self.network.train()
        if told["plan"] != _plain(self.plan):
            raise CheckpointError(
                f"{self.folder / 'last.pt'} is of another plan; give the settings that it began with."
            )
        self.state = {key: told[key] for key in ("rounds", "best", "optimizer", "seconds", "reference")}
        cut_lines(self.folder / "metrics.jsonl", "round", self.state["rounds"])


def _ppo_environments(plan: TrainingPlan) -> Any:
    """Environments side by side, each on one of the plan's clusters."""
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    draw = partial(draw_workload, jobs=plan.ppo_jobs, per_hour=plan.per_hour)

    def make(cluster: str) -> Monitor:
        env = ClusterSchedulingEnv(draw, Cluster.parse(cluster), window=int(plan.ppo_jobs[1]), nodes=False)
        return Monitor(SequentialAllocation(env, every_round=False))

    return DummyVecEnv([partial(make, plan.clusters[i % len(plan.clusters)]) for i in range(plan.ppo_envs)])


def _cosine(part: float) -> float:
    return 0.05 + 0.95 * 0.5 * (1.0 + math.cos(math.pi * part))


def _plain(plan: TrainingPlan) -> Any:
    """The plan in JSON's own types, for a file that holds no objects."""
    return json.loads(json.dumps(asdict(plan)))
