"""What a trained policy makes of one problem, beside those that learned nothing, at equal simulator calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hadoppler import place
from hadoppler.envs.errors import MemoryLimitError
from hadoppler.scripts.application import CommandError
from hadoppler.scripts.place import compile_kernels, result_row, tiny_problem

if TYPE_CHECKING:
    from hadoppler.envs.placement import Placement, PlacementProblem

METHODS = ("greedy", "sampled", "refined", "portfolio", "single_device", "annealing", "annealing_trained")
"""Keys of a row that hold a makespan; ``annealing_trained`` may spend the calls of our fine-tuning too."""
RUNS, NOISE = 100, 0.05
"""Of a placement in random order, as in the paper's tables."""
Tell = Callable[[str, float], None]
"""Told what is being done, and which share of it is done."""
Ask = Callable[..., "Placement"]
"""``place`` on the problem at hand: (method, options)."""


@dataclass(frozen=True)
class Decoding:
    """How placements are drawn from a policy and run.

    Attributes:
        samples: sampled placements beside the greedy one.
        refine: simulator calls of local search from the best of them.
        refine_seconds: a budget in seconds for it instead.
        order: ``fifo`` or ``priority``: whether the policy's order counts when a placement is run.
        seed: of all draws.

    Raises:
        CommandError: one of them is impossible.
    """

    samples: int = 64
    refine: int = 0
    refine_seconds: float | None = None
    order: Literal["fifo", "priority"] = "fifo"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "refine", "seed"):
            if getattr(self, name) < 0:
                raise CommandError(f"{name} is {getattr(self, name)}; expected a whole number from 0 up.")
        if self.refine_seconds is not None and not self.refine_seconds > 0:
            raise CommandError(f"refine_seconds is {self.refine_seconds}; expected a number above 0, or null.")
        if self.order not in ("fifo", "priority"):
            raise CommandError(f"order is {self.order!r}; expected fifo or priority.")


@dataclass(frozen=True)
class Candidate:
    """A policy that is evaluated.

    Attributes:
        path: of its checkpoint.
        told: all that the checkpoint tells.
        calls, seconds: what fine-tuning it on the problem at hand took.
    """

    path: str
    told: Mapping[str, Any]
    calls: int = 0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """Of its kind, such as ``doppler``."""
        return str(self.told["policy"])


def warm_up(problem: PlacementProblem, candidate: Candidate, order: str) -> None:
    """Run all compiled code once, so that no decision's time holds its compilation."""
    compile_kernels(problem, order)
    place("doppler", tiny_problem(problem), order=order, checkpoint=candidate.path, samples=1)


def fine_tune(
    candidate: Candidate,
    problem: PlacementProblem,
    stage: Mapping[str, Any],
    decoding: Decoding,
    folder: Path,
    tell: Tell,
) -> Candidate:
    """The policy after one more ``simulation`` stage on one problem, in a folder of its own.

    Raises:
        TrainingError: the stage has no such setting, or a gradient is not finite.
    """
    from hadoppler.agents.placement.training import PlacementPlan

    plan = PlacementPlan(
        problems=[problem],
        policy=candidate.name,
        options=candidate.told["options"],
        stages={"simulation": stage},
        seed=decoding.seed,
        execution=decoding.order,
        start=candidate.path,
        samples=decoding.samples,
    )
    told: dict[str, Any] = {}

    def report(line: Mapping[str, Any]) -> None:
        told.update(line)
        tell(f"fine-tuning, {line['ratio']:.3f} of the bound", line["done"])

    path = plan.train(folder, report)
    return replace(candidate, path=str(path), calls=told["calls"], seconds=told["seconds"])


def evaluate(problem: PlacementProblem, candidate: Candidate, decoding: Decoding, tell: Tell) -> dict[str, Any]:
    """One row of the table; times in seconds (or raw units), None where a method had no answer that fits the memory.

    Raises:
        PlacementError: the policy's placement does not fit, or cannot be made.
    """
    from hadoppler.envs.placement import lower_bounds

    def ask(method: str, **options: Any) -> Placement:
        tell(method, 0.0)
        return place(method, problem, seed=decoding.seed, order=decoding.order, **options)

    sampled, ours = ask_policy(ask, candidate, decoding)
    rivals = ask_rivals(ask, ours.calls, candidate.calls)
    tell("runs in random order", 0.0)
    makespans = {name: None if placement is None else placement.makespan for name, placement in rivals.items()}
    best = min(value for value in (ours.makespan, *makespans.values()) if value is not None)
    portfolio = rivals["portfolio"]
    return {
        **result_row(problem, ours, lower_bounds(problem).best),
        "ratio_best": ratio(ours.makespan, best),
        "ratio_portfolio": ratio(ours.makespan, makespans["portfolio"]),
        "order": decoding.order,
        "time_unit": problem.time_unit,
        "greedy": ours.notes["greedy"],
        "sampled": sampled.makespan,
        "sampled_s": sampled.seconds,
        "refined": None if ours is sampled else ours.makespan,
        **makespans,
        "portfolio_method": None if portfolio is None else portfolio.notes["winner"],
        "fine_tune_calls": candidate.calls,
        "fine_tune_s": candidate.seconds,
        **in_random_order(problem, {"": ours, "portfolio_": portfolio}, decoding.seed),
        **in_both_orders(problem, sampled),
    }


def ask_policy(ask: Ask, candidate: Candidate, decoding: Decoding) -> tuple[Placement, Placement]:
    """The best of the greedy and the sampled placements, and what it becomes where it shall be refined."""
    options = {"checkpoint": candidate.path, "samples": decoding.samples}
    sampled = replace(ask("doppler", **options), method=candidate.name)
    if not decoding.refine and decoding.refine_seconds is None:
        return sampled, sampled
    refined = ask("doppler", **options, refine=decoding.refine, refine_seconds=decoding.refine_seconds)
    return sampled, replace(refined, method=candidate.name)


def ask_rivals(ask: Ask, calls: int, training_calls: int) -> dict[str, Placement | None]:
    """Placements by key of the row; annealing has as many simulator calls as the policy."""
    asked: dict[str, tuple[str, dict[str, Any]] | None] = {
        "portfolio": ("portfolio", {}),
        "single_device": ("single_device", {}),
        "annealing": ("annealing", {"calls": calls}),
        "annealing_trained": ("annealing", {"calls": calls + training_calls}) if training_calls else None,
    }
    found: dict[str, Placement | None] = dict.fromkeys(asked)
    for key, question in asked.items():
        with suppress(MemoryLimitError):
            found[key] = ask(question[0], **question[1]) if question is not None else None
    alone = found["single_device"]
    if alone is not None and alone.notes.get("repaired"):  # it took more than one
        found["single_device"] = None
    return found


def ratio(above: float | None, below: float | None) -> float | None:
    """Their ratio; None if one is missing, 1 if both are nothing."""
    if above is None or below is None:
        return None
    return above / below if below > 0 else 1.0


def in_random_order(
    problem: PlacementProblem, placements: Mapping[str, Placement | None], seed: int
) -> dict[str, float | None]:
    """``*random_mean`` and ``*random_p90`` of ``RUNS`` runs with ``NOISE`` each, by a prefix per placement."""
    import numpy as np

    told: dict[str, float | None] = {}
    problem = _relaxed(problem)
    for prefix, placement in placements.items():
        times = placement.spread(problem, RUNS, NOISE, seed) if placement is not None else None
        told[f"{prefix}random_mean"] = None if times is None else float(times.mean())
        told[f"{prefix}random_p90"] = None if times is None else float(np.quantile(times, 0.9))
    return told


def in_both_orders(problem: PlacementProblem, placement: Placement) -> dict[str, float]:
    """``sampled_fifo`` and ``sampled_priority``: one placement, run first come first served, and in its own order."""
    problem = _relaxed(problem)
    fifo, priority = replace(placement, execution="fifo"), replace(placement, execution="priority")
    return {
        "sampled_fifo": fifo.simulate(problem).makespan,
        "sampled_priority": priority.simulate(problem).makespan,
    }


def _relaxed(problem: PlacementProblem) -> PlacementProblem:
    """Another order may need more memory; that then costs the simulator's penalty."""
    return problem.with_options(memory="penalty") if problem.memory == "error" else problem


def trained_on(plan: Mapping[str, Any], problems: Any, number: int, problem: PlacementProblem) -> bool:
    """Whether a policy's plan of training holds this problem; ``problems`` made it, if it is generated."""
    known = plan.get("problems")
    if callable(problems):
        return repr(problems) == known and number < plan["count"]
    return isinstance(known, list) and f"{problem.graph.summary()} on {problem.topology.name}" in known
