"""A plan of training: a policy, its problems, stages, budgets; with checkpoints to go on from."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...envs.errors import CheckpointError, TrainingError
from ...envs.placement import PlacementProblem, load_problem, save_problem
from ..metrics import append_line, cut_lines
from . import losses
from .checkpoint import keep_last, load_newest, load_policy, policy_class, save_policy
from .decoding import decode
from .online import Online, Phase, RealSource
from .policy import PlacementPolicy
from .rewards import RewardSource, SimulatedTime
from .stages import PAIRS, Imitation, Learner, Simulation
from .tasks import MakeProblem, Tasks

Report = Callable[[Mapping[str, Any]], None]
Stage = Imitation | Simulation | Online
STAGES: dict[str, type[Stage]] = {"imitation": Imitation, "simulation": Simulation, "online": Online}
"""Name -> class."""


@dataclass(frozen=True)
class PlacementPlan:
    """What is trained on, how long, and with which settings.

    Attributes:
        problems: to train on, or a function that makes problem number i.
        count: how many are made, if it is a function.
        policy: name in ``checkpoint.POLICIES``, and ``options`` of its constructor.
        stages: name (``imitation``, ``simulation``, ``online``) -> the stage's settings, in order.
        seed: of all draws; the same plan gives the same bytes on the same machine.
        execution: ``fifo`` or ``priority``: whether the policy's order counts when a placement is run.
        runs, noise: learn from the mean over so many runs in random order and with noise; 0 for exact times.
        start: a checkpoint to begin from, for fine-tuning.
        device: of the networks, ``cpu`` or ``cuda``.
        threads: of torch.
        validation: problems to validate on; by default the first ``validations`` of those that are trained on.
        validate_every: updates between two validations; each plays the greedy and ``samples`` sampled placements.
        patience: validations without a better one after which a stage ends; None for never.
        seconds: a limit for all updates; a stage's share is its share of the updates. Learning rates then follow
            the clock, and the result is not repeatable.
        max_calls: a limit of simulator calls, of teachers and searches too; the update under way and the validation
            that follows are finished.
    """

    problems: Sequence[PlacementProblem] | MakeProblem
    count: int = 1
    policy: str = "doppler"
    options: Mapping[str, Any] = field(default_factory=dict)
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {"imitation": {}, "simulation": {}})
    seed: int = 0
    execution: str = "fifo"
    runs: int = 0
    noise: float = 0.05
    start: str | None = None
    device: str = "cpu"
    threads: int = 1
    validation: Sequence[PlacementProblem] | MakeProblem | None = None
    validate_every: int = 25
    samples: int = 64
    validations: int = 8
    patience: int | None = None
    seconds: float | None = None
    max_calls: int | None = None

    def __post_init__(self) -> None:
        least = {"count": 1, "threads": 1, "validate_every": 1, "validations": 1, "samples": 0, "seed": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value < 2**63:
                raise TrainingError(f"{name} is {value!r}; expected a whole number from {low} up, below 2^63.")
        for name in ("seconds", "max_calls", "patience"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise TrainingError(f"{name} is {value}; expected a number above 0, or null for no limit.")
        if isinstance(self.problems, PlacementProblem) or (
            not callable(self.problems) and not all(isinstance(item, PlacementProblem) for item in self.problems)
        ):
            raise TrainingError(
                "problems is no list of PlacementProblem; give [PlacementProblem(graph, topology), ...]."
            )
        if not callable(self.problems) and not self.problems:
            raise TrainingError("there is no problem to train on; give at least one graph.")
        if str(self.device).partition(":")[0] not in ("cpu", "cuda"):
            raise TrainingError(f"device is {self.device!r}; expected cpu or cuda.")
        if self.device != "cpu" and not torch.cuda.is_available():
            raise TrainingError(f"device is {self.device}, but torch sees no GPU here; use device=cpu.")
        if sum(stage.updates for stage in self.made_stages()) < 1:
            raise TrainingError("the stages have no updates; give at least one.")
        SimulatedTime(self.execution, self.runs, self.noise)  # type: ignore[arg-type]

    def made_stages(self) -> list[Stage]:
        """The stages as objects.

        Raises:
            TrainingError: a stage or a setting does not exist.
        """
        made: list[Stage] = []
        for name, settings in self.stages.items():
            if name not in STAGES:
                raise TrainingError(f"there is no stage {name!r}; use one of {', '.join(STAGES)}.")
            known = [item.name for item in fields(STAGES[name]) if item.name != "name"]
            for key in settings or {}:
                if key not in known:
                    raise TrainingError(f"the stage {name} has no setting {key!r}; it has {', '.join(known)}.")
            made.append(STAGES[name](**{key: _setting(key, value) for key, value in (settings or {}).items()}))
        return made

    def train(
        self,
        folder: str | Path,
        report: Report = lambda told: None,
        resume: bool = False,
        reward: RewardSource | None = None,
        real: RealSource | None = None,
    ) -> Path:
        """Train into a folder; returns the file of the best policy.

        Writes ``policy.pt`` (the best by validation), ``last.pt`` (to resume from: exactly what an unbroken run would
        have given; the one before it is kept too) and ``metrics.jsonl`` (a line per validation). The stage ``online``
        also writes the placement that its runs have shown to be the fastest (``placement.json``, see
        ``Phase.fastest``), and the problem as its policy then sees it (``policy_graph.json``, ``policy_topology.yaml``
        and ``policy_problem.yaml``). Real runs do not repeat: a resumed ``online`` goes on with all times of its
        placements and what the policy saw, but corrects the simulator by new runs only, and does not learn from the
        samples of the last batch before it was stopped.

        Args:
            report: called with each line of ``metrics.jsonl``, once it is in ``last.pt``.
            resume: go on from ``last.pt``.
            reward: where times come from; the simulator by default.
            real: what runs placements, for the stage ``online``.

        Raises:
            CheckpointError: there is nothing to resume from, or it was trained by another plan.
            TrainingError: a gradient is not finite.
            GraphError, TopologyError, PlacementError: the files of the problem as the policy saw it are gone, or are
                none.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        threads = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            return _Run(self, folder, report, resume, reward, real).finish()
        finally:
            torch.set_num_threads(threads)


class _Run:
    """One training under way; all that it needs to go on is in ``last.pt``."""

    def __init__(
        self,
        plan: PlacementPlan,
        folder: Path,
        report: Report,
        resume: bool,
        reward: RewardSource | None,
        real: RealSource | None,
    ) -> None:
        self.plan, self.folder, self.report, self.resumed = plan, folder, report, resume
        self.kept = resume
        self.stages = plan.made_stages()
        self.updates = sum(stage.updates for stage in self.stages)
        self.state: dict[str, Any] = {
            "update": 0,
            "best": math.inf,
            "waited": 0,
            "seconds": 0.0,
            "cpu_s": 0.0,
            "ended": 0,
        }
        told: dict[str, Any] | None = None
        policy = new_policy(plan)
        if resume:
            policy, told = load_newest(folder / "last.pt")
            self._check_same_plan(told)
        policy = policy.to(plan.device).train()
        if reward is not None and reward.execution not in ("fifo", "priority"):
            raise TrainingError(
                f"{type(reward).__name__}.execution is {reward.execution!r}; expected fifo or priority."
            )
        source = reward or SimulatedTime(plan.execution, plan.runs, plan.noise)  # type: ignore[arg-type]
        self.learner = Learner(
            policy=policy,
            tasks=Tasks(policy, plan.problems, plan.count),
            reward=source,
            optimizer=torch.optim.Adam(policy.parameters(), 1e-3),
            advantage=losses.Advantage("batch"),
            max_calls=plan.max_calls,
            real=real,
        )
        if real is None and any(isinstance(stage, Online) for stage in self.stages):
            raise TrainingError(
                "the stage online runs placements on devices; give what runs them (train(..., real=), on the command "
                "line executor=emulated, cpu or cuda)."
            )
        self.validation = (
            Tasks(policy, plan.validation, plan.validations) if plan.validation is not None else self.learner.tasks
        )
        if told is not None:
            self._load(told)
        else:
            (folder / "metrics.jsonl").unlink(missing_ok=True)
        self.clock, self.cpu = time.perf_counter(), time.process_time()

    def finish(self) -> Path:
        """All updates that are left; a policy to begin from is validated first, and may stay the best."""
        if self.plan.start is not None and not self.resumed:
            self._write(self._validate("start", 0))
        for number, stage in enumerate(self.stages):
            if number < self.state["ended"]:
                continue
            self._train(stage, number)
        return self.folder / "policy.pt"

    def _train(self, stage: Stage, number: int) -> None:
        """The updates of one stage that are left, a validation every so often and at the end."""
        plan, learner = self.plan, self.learner
        begun = sum(item.updates for item in self.stages[:number])
        if isinstance(stage, Simulation) and learner.advantage.baseline != stage.baseline:
            learner.advantage = losses.Advantage(stage.baseline)
        told: dict[str, list[float]] = {}
        done = max(self.state["update"] - begun, 0)
        if isinstance(stage, Online) and done == 0:
            self.state["best"] = math.inf  # measured from now on
        while done < stage.updates:
            rng = np.random.default_rng((plan.seed, number, done))
            tasks = learner.tasks.draw(stage.problems, rng)
            progress = max(done / max(stage.updates - 1, 1), self._spent(number))
            for group in learner.optimizer.param_groups:
                low, high = stage.learning_rate
                group["lr"] = low + (high - low) * min(progress, 1.0)
            for key, value in stage.update(learner, tasks, done, rng, min(progress, 1.0)).items():
                told.setdefault(key, []).append(value)
            done += 1
            over = done == stage.updates or self._spent(number) >= 1.0 or self._out_of_calls()
            if over or done % plan.validate_every == 0:
                line = self._look(stage, begun + done)
                over = over or (plan.patience is not None and self.state["waited"] >= plan.patience)
                if over:
                    self.state |= {"ended": number + 1, "waited": 0, "update": begun + stage.updates}
                self._write(line | {key: float(np.mean(values)) for key, values in told.items()})
                told = {}
            if over:
                return

    def _spent(self, stage: int) -> float:
        """Share of the clock's limit that is used up, in the stage's own part of it; 0 without a limit."""
        if self.plan.seconds is None:
            return 0.0
        before = sum(item.updates for item in self.stages[:stage]) / self.updates * self.plan.seconds
        mine = self.stages[stage].updates / self.updates * self.plan.seconds
        now = self.state["seconds"] + time.perf_counter() - self.clock
        return max(now - before, 0.0) / max(mine, 1e-9)

    def _out_of_calls(self) -> bool:
        return self.plan.max_calls is not None and self.learner.reward.calls >= self.plan.max_calls

    def _validate(self, stage: str, update: int) -> dict[str, Any]:
        """Decode, and keep the policy if it is the best so far; returns the line's figures."""
        plan, learner, state = self.plan, self.learner, self.state
        ratios, times = [], []
        for number in range(min(len(self.validation), plan.validations)):
            task = self.validation[number]
            rng = np.random.default_rng((plan.seed, 10**6, number))
            found = decode(learner.policy, task.prepared, task.problem, learner.reward, rng, plan.samples)
            learner.episodes += len(found)
            task.elites.add(found[0].assignment, found[0].order, found[0].makespan)
            ratios.append((found[0].makespan / task.bound, found[0].notes["greedy"] / task.bound))
            times.append((found[0].makespan / task.problem.time_unit, task.elites.best / task.problem.time_unit))
        best, greedy = np.exp(np.log(np.maximum(ratios, 1e-300)).mean(axis=0)).tolist()
        state["update"] = update
        line = {"stage": stage, "update": update, "ratio": best, "ratio_greedy": greedy}
        if len(times) == 1:
            line |= {"makespan": times[0][0], "best_found": times[0][1]}
        self._keep(stage, update, best, best + 1e-3 * greedy)
        return line

    def _keep(self, stage: str, update: int, ratio: float, score: float) -> None:
        """Write ``policy.pt`` if the policy is the best so far, or the first."""
        state, plan = self.state, self.plan
        state["waited"] += 1
        if score < state["best"] or not self.kept:
            state["best"], state["waited"], self.kept = score, 0, True
            kept = {"stage": stage, "update": update, "ratio": ratio, "execution": plan.execution}
            save_policy(self.folder / "policy.pt", self.learner.policy, **kept, plan=_plain(plan))

    def _look(self, stage: Stage, update: int) -> dict[str, Any]:
        """``_validate``; in stage III by what runs have shown of the policy's answer: nothing is run for it.

        The line has no figures of answers of which the runs have shown nothing.
        """
        if not isinstance(stage, Online):
            return self._validate(stage.name, update)
        phase = self.learner.phase
        assert phase is not None, "the stage has begun"
        answer, greedy = stage.answer(self.learner, phase, np.random.default_rng((self.plan.seed, 10**6)))
        self.state["update"], usual = update, phase.tried.incumbent_s
        ratio = answer.expected / usual
        shown = {"ratio": ratio, "ratio_greedy": greedy / usual, "makespan": answer.expected}
        line = {"stage": stage.name, "update": update} | {k: value for k, value in shown.items() if value < math.inf}
        line["runs"] = phase.tried.runs
        phase.fastest().save(self.folder / "placement.json", phase.given)
        if phase.settled:
            save_problem(self.folder, phase.task.problem, "policy")
        self._keep(stage.name, update, ratio, ratio)
        return line

    def _write(self, line: dict[str, Any]) -> None:
        """A line of ``metrics.jsonl``, and all that is needed to go on from here."""
        state, learner = self.state, self.learner
        now, cpu = time.perf_counter(), time.process_time()
        state["seconds"] += now - self.clock
        state["cpu_s"] += cpu - self.cpu
        self.clock, self.cpu = now, cpu
        line |= {"episodes": learner.episodes, "calls": learner.reward.calls}
        line |= {"seconds": round(state["seconds"], 2), "cpu_s": round(state["cpu_s"], 2)}
        line["done"] = state["update"] / self.updates
        append_line(self.folder / "metrics.jsonl", line)
        self._save()
        self.report(line)

    def _save(self) -> None:
        learner = self.learner
        keep_last(self.folder / "last.pt")
        save_policy(
            self.folder / "last.pt",
            learner.policy,
            state=self.state,
            optimizer=learner.optimizer.state_dict(),
            elites=learner.tasks.state(),
            advantage=vars(learner.advantage),
            calls=learner.reward.calls,
            episodes=learner.episodes,
            plan=_plain(self.plan),
            **({} if self.validation is learner.tasks else {"validated": self.validation.state()}),
            **({"phase": learner.phase.state()} if learner.phase else {}),
        )

    def _load(self, told: dict[str, Any]) -> None:
        learner = self.learner
        self.state = dict(told["state"])
        learner.optimizer.load_state_dict(told["optimizer"])
        learner.tasks.load(told["elites"])
        if self.validation is not learner.tasks:
            self.validation.load(told.get("validated", {}))
        learner.advantage = losses.Advantage(told["advantage"]["baseline"])
        vars(learner.advantage).update(told["advantage"])
        learner.reward.calls, learner.episodes = told["calls"], told["episodes"]
        if "tried" in told:
            raise CheckpointError(
                f"{self.folder / 'last.pt'} was written in the stage online by an earlier version, which kept too "
                "little to go on; begin anew from its policy with start=policy.pt."
            )
        if "phase" in told and learner.real is not None:
            given, state = learner.tasks[0], told["phase"]
            seen = load_problem(self.folder, "policy") if state["settled"] else given.problem
            learner.phase = Phase.resumed(learner.real, state, given, learner.policy, seen)
        cut_lines(self.folder / "metrics.jsonl", "update", self.state["update"])

    def _check_same_plan(self, told: Mapping[str, Any]) -> None:
        now, then = _plain(self.plan), told.get("plan")
        if now != then:
            differs = next((key for key in now if not isinstance(then, dict) or now[key] != then.get(key)), "plan")
            raise CheckpointError(
                f"{self.folder / 'last.pt'} is of another plan, {differs} differs; give the settings it began with."
            )


def new_policy(plan: PlacementPlan) -> PlacementPolicy:
    """The plan's policy before training: of its checkpoint, or with weights drawn from its seed.

    Raises:
        TrainingError: an option does not exist, or the checkpoint holds another policy.
    """
    if plan.start is not None:
        policy, told = load_policy(plan.start)
        if told["policy"] != plan.policy or any(policy.options.get(k) != v for k, v in plan.options.items()):
            raise TrainingError(
                f"start={plan.start} holds {told['policy']} with {policy.options}; the plan wants {plan.policy} with "
                f"{dict(plan.options)}; make them equal."
            )
        return policy
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(plan.seed)
        try:
            for key, value in plan.options.items():
                if isinstance(value, int) and value < (0 if key in ("random", "layers", "rounds") else 1):
                    raise TrainingError(f"options.{key} is {value}; expected a larger number.")
            return policy_class(plan.policy)(**plan.options)
        except TypeError as error:
            raise TrainingError(
                f"options are {dict(plan.options)}; {plan.policy} does not take them ({error})."
            ) from error


def _setting(key: str, value: Any) -> Any:
    """Lists as tuples; one number for the start and the end where two are expected."""
    if key in PAIRS and isinstance(value, int | float):
        return (value, value)
    return tuple(value) if isinstance(value, list) else value


def _plain(plan: PlacementPlan) -> Any:
    """The plan in JSON's own types; problems by their titles and sizes."""
    told = {key: value for key, value in vars(plan).items() if key not in ("threads", "device")}
    told |= {"problems": _titles(plan.problems), "validation": _titles(plan.validation)}
    return json.loads(json.dumps(told, default=dict))


def _titles(problems: Sequence[PlacementProblem] | MakeProblem | None) -> Any:
    """What tells problems apart for people and in checkpoints."""
    if problems is None or callable(problems):
        return None if problems is None else repr(problems)
    return [f"{item.graph.summary()} on {item.topology.name}" for item in problems]
