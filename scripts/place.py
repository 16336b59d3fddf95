"""``hadoppler place``: graph x devices x methods -> a table, a picture, placements, on demand executed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape

from hadoppler import PLACEMENTS, place
from hadoppler.envs.errors import CheckpointError, MissingExtraError, PlacementError
from hadoppler.scripts.application import CommandError, instantiate, launch
from hadoppler.scripts.execution import Devices, Measured, check_execution, execute_all, open_devices
from hadoppler.scripts.execution_report import measured_row, print_executions, write_measured
from hadoppler.scripts.placement_files import write_placements
from hadoppler.scripts.progress import PlainProgress
from hadoppler.scripts.report import print_placements, write_results, write_run_record
from hadoppler.scripts.sweep_figures import row_figures
from hadoppler.scripts.tracking import is_tracked, tracked_job

if TYPE_CHECKING:
    from hadoppler.envs.placement import DataflowGraph, Placement, PlacementProblem


@dataclass
class PlaceConfig:
    """Schema of ``hadoppler place``."""

    graph: dict[str, Any] = MISSING
    topology: dict[str, Any] = MISSING
    method: dict[str, Any] = field(default_factory=dict)
    tracking: dict[str, Any] = MISSING
    model: str | None = None
    seed: int = 0
    order: str = "fifo"
    contention: str | None = None
    memory: str = "error"
    pictures: bool = True
    executor: dict[str, Any] | None = None
    runs: int = 5
    mode: str = "work_conserving"


SHOWN = ("makespan", "ratio_bound", "ratio_best", "decision_s", "bytes_moved", "measured_s", "measured_ratio")
"""Figures of a row that are looked at over seeds."""

ConfigStore.instance().store(name="place_schema", node=PlaceConfig, provider="hadoppler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    return launch("place", tracked_job(run), words, figures=row_figures("method", SHOWN))


def run(config: DictConfig) -> list[dict[str, Any]]:
    """Place one graph with every chosen method, and execute the placements; returns the rows of the table."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    console = Console()
    methods = chosen_methods(config)
    check_execution(config)
    problem = build_problem(config)
    with open_devices(config, problem) if config.executor else nullcontext() as devices:
        write_run_record(folder, config)
        answers, failures, defects = decide(config, problem, methods, folder, console)
        if not answers:
            raise CommandError("no method gave a placement: " + " ".join(failures.values()))
        rows = simulated(problem, answers, failures, console)
        measured, mishaps = dict[str, Measured](), dict[str, str]()
        if devices:
            measured, mishaps = execute_all(devices, answers, console, config)
    report(config, problem, answers, rows, failures, devices, measured, mishaps, console)
    if mishaps:
        raise CommandError("executed, these failed: " + " ".join(f"{name} ({why})" for name, why in mishaps.items()))
    if defects:
        raise CommandError(f"the methods that failed: {', '.join(defects)}; the others' results are complete.")
    return rows


def decide(
    config: DictConfig, problem: PlacementProblem, methods: dict[str, dict[str, Any]], folder: Path, console: Console
) -> tuple[dict[str, Placement], dict[str, str], list[str]]:
    """The placements of all methods, why there are no others, and which methods are defective."""
    answers: dict[str, Placement] = {}
    failures: dict[str, str] = {}
    defects: list[str] = []
    with console.status("compiling (takes a while after installation only)") as status, PlainProgress(console) as plain:
        compile_kernels(problem, config.order, learned="doppler" in methods)
        for name, options in methods.items():
            doing = f"{name} ({len(answers) + len(failures) + 1} of {len(methods)})"
            status.update(escape(doing))
            plain.at(f"placing with {doing}")
            try:
                answers[name] = place(name, problem, seed=config.seed, order=config.order, **options)
            except (PlacementError, CheckpointError, MissingExtraError) as error:
                failures[name] = str(error)
            except Exception as error:  # a defect, perhaps another package's: the other methods' work is kept
                path = folder / f"{name}.traceback.txt"
                path.write_text(traceback.format_exc(), encoding="utf-8")
                failures[name] = f"It failed with {type(error).__name__}: {error}; the traceback is in {path}."
                defects.append(name)
    return answers, failures, defects


def simulated(
    problem: PlacementProblem, answers: dict[str, Placement], failures: dict[str, str], console: Console
) -> list[dict[str, Any]]:
    """Print the table of simulated times; returns its rows."""
    from hadoppler.envs.placement import lower_bounds

    bounds = lower_bounds(problem)
    rows = [result_row(problem, placement, bounds.best) for placement in answers.values()]
    best = min(row["makespan"] for row in rows)
    for row in rows:
        row["ratio_best"] = row["makespan"] / best if best > 0 else 1.0
    print_placements(console, problem, bounds, rows, failures)
    return rows


def report(
    config: DictConfig,
    problem: PlacementProblem,
    answers: dict[str, Placement],
    rows: list[dict[str, Any]],
    failures: dict[str, str],
    devices: Devices | None,
    measured: dict[str, Measured],
    mishaps: dict[str, str],
    console: Console,
) -> None:
    """Add to ``rows`` what was measured, print that, and write everything."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    more: dict[str, Any] = {}
    if devices:
        more["mishaps"] = mishaps
        for row in rows:
            row |= measured_row(devices, row["makespan"], measured.get(row["method"]))
    write_results(folder, config, rows, failures, **more)
    paths = write_placements(folder, problem, answers, pictures=config.pictures, each=is_tracked(config))
    if devices:
        print_executions(console, devices, rows)
        paths += write_measured(folder, problem, answers, devices, measured, pictures=config.pictures)
    for path in dict.fromkeys(paths):
        console.print(f"  {path}", highlight=False, markup=False, soft_wrap=True)


def compile_kernels(problem: PlacementProblem, order: str, learned: bool = False) -> None:
    """Run the compiled code once on a tiny graph, so that no method's decision time holds its compilation."""
    tiny = tiny_problem(problem)
    place("portfolio", tiny, order=order)
    place("annealing", tiny, order=order, calls=2)
    if learned:
        with suppress(MissingExtraError):
            place("doppler", tiny, order=order)


def tiny_problem(problem: PlacementProblem) -> PlacementProblem:
    """Two operations on the same devices."""
    from hadoppler.envs.placement import DataflowGraph

    graph = DataflowGraph.build(flops=[1.0, 1.0], edges=[(0, 1)], out_bytes=[1.0, 1.0])
    return replace(problem, graph=graph)


def chosen_methods(config: DictConfig) -> dict[str, dict[str, Any]]:
    """Name -> options of every chosen method, checked before any of them runs.

    Raises:
        HadopplerError: no method is chosen, or a method or an option does not exist.
    """
    from hadoppler.baselines.placement.registry import check_method

    if not config.method:
        raise CommandError(f"no method is chosen; give method=[...] with some of {', '.join(PLACEMENTS)}.")
    methods: dict[str, dict[str, Any]] = {}
    chosen: Any = OmegaConf.to_container(config.method, resolve=True)
    for name, options in chosen.items():
        if not isinstance(options, dict | None):
            raise CommandError(f"method.{name} is {options!r}; expected its options, {{}} for none.")
        methods[str(name)] = {str(key): value for key, value in (options or {}).items()}
        with suppress(MissingExtraError):  # listed with the methods that failed
            check_method(str(name), PLACEMENTS, methods[str(name)])
    return methods


def build_problem(config: DictConfig) -> PlacementProblem:
    """The graph of ``config.graph`` on the devices of ``config.topology``."""
    from hadoppler.envs.placement import PlacementProblem, Topology
    from hadoppler.envs.placement.problem import MemoryMode

    if config.seed < 0:
        raise CommandError(f"seed is {config.seed}; expected a whole number from 0 up.")
    if config.memory not in get_args(MemoryMode):
        raise CommandError(f"memory is {config.memory!r}; expected {', '.join(get_args(MemoryMode))}.")
    if config.model is not None and "model" not in config.graph:
        raise CommandError(f"model={config.model} is given, but the graph is another one; add graph=module.")
    graph = instantiate(config.graph)
    devices = instantiate(OmegaConf.masked_copy(config.topology, [k for k in config.topology if k != "costs"]))
    if not isinstance(devices, Topology):
        problem: PlacementProblem = devices(graph)
        return problem.with_options(contention=config.contention)
    return PlacementProblem(graph, devices, contention=config.contention, memory=config.memory)


def raw_problem(graph: DataflowGraph, devices: int = 4, speeds: Sequence[float] | None = None) -> PlacementProblem:
    """``PlacementProblem.raw``, for ``topology=raw``."""
    from hadoppler.envs.placement import PlacementProblem

    return PlacementProblem.raw(graph, devices, speeds=speeds)


def module_graph(model: str | None, training: bool = False, cuts: int | None = None) -> DataflowGraph:
    """The graph of a user's module, for ``graph=module model=package.module:factory``.

    Raises:
        GraphError: no model was given, it cannot be found, or it cannot be captured.
    """
    from hadoppler.envs.placement import from_module
    from hadoppler.envs.placement.readers.factory import load_factory
    from hadoppler.envs.placement.tiling import tile

    if model is None:
        raise CommandError("graph=module needs model=package.module:factory, a function that returns (module, args).")
    if not isinstance(training, bool):
        raise CommandError(f"graph.training is {training!r}; expected true or false.")
    module, args, kwargs = load_factory(model)
    graph = from_module(module, args, kwargs, training=training)
    return graph if cuts is None else tile(graph, cuts)


def result_row(problem: PlacementProblem, placement: Placement, bound: float) -> dict[str, Any]:
    """One line of the table, in full precision; times in seconds (or raw units)."""
    schedule = placement.simulate(problem)
    return {
        "graph": problem.graph.title,
        "topology": problem.topology.name,
        "method": placement.method,
        "seed": placement.seed,
        "makespan": placement.makespan,
        "bound": bound,
        "ratio_bound": placement.makespan / bound if bound > 0 else 1.0,
        "decision_s": placement.seconds,
        "peak_memory_bytes": schedule.peak_memory.tolist(),
        "bytes_moved": schedule.bytes_moved,
        "calls": placement.calls,
        "repeatable": placement.repeatable,
        "planned": placement.planned.makespan if placement.planned else None,
        "notes": dict(placement.notes),
    }


if __name__ == "__main__":
    sys.exit(main())
