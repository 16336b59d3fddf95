"""``hadoppler profile``: a user's model x batch sizes x devices of this machine -> throughputs for simulations."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hadoppler.envs.arguments import as_list, is_whole
from hadoppler.envs.processors import processors
from hadoppler.scripts.application import CommandError, launch
from hadoppler.scripts.report import say, write_results, write_run_record


@dataclass
class ProfileConfig:
    """Schema of ``hadoppler profile``."""

    model: str = MISSING
    name: str | None = None
    batch_sizes: Any = 32
    workers: Any = 1
    devices: Any = None
    gpu_type: str | None = None
    optimizer: str = "sgd"
    warm_up: int = 3
    repeats: int = 5
    seconds: float = 1.0
    seed: int = 0
    output: str = "throughputs.json"


NOISY = 0.3
"""Range of the repeats as a share of their median above which a reader is warned (our choice)."""

ConfigStore.instance().store(name="profile_schema", node=ProfileConfig, provider="hadoppler")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    return launch("profile", run, sys.argv[1:] if arguments is None else arguments)


def run(config: DictConfig) -> list[dict[str, Any]]:
    """Measure everything that was asked for, and extend the file; returns the rows of ``results.json``."""
    from hadoppler.real_system.cluster import check_target, extend

    folder = Path(HydraConfig.get().runtime.output_dir)
    console = Console()
    check_numbers(config)
    devices = chosen_devices(config)
    check_target(config.output)
    write_run_record(folder, config)
    rows, left_out = [], {}
    for gpu_type, names, batch_size, workers in runs(config, devices):
        label = f"{gpu_type}, batch size {batch_size}, workers {workers}"
        reason = why_not(names, workers)
        if reason:
            left_out[label] = reason
            continue
        console.print(f"measuring {label}", highlight=False, markup=False)  # a spinner's thread would take part
        chosen = names * workers if names == ["cpu"] else names[:workers]
        rows.append(measured_row(config, gpu_type, chosen, batch_size))
    if not rows:
        raise CommandError("nothing could be measured: " + " ".join(dict.fromkeys(left_out.values())))
    entries = ((kind_of(row), row["workers"], row["gpu_type"], row["steps_per_s"]) for row in rows)
    added, replaced = extend(config.output, entries)
    write_results(folder, config, rows, left_out)
    print_measurements(console, rows)
    for label, reason in left_out.items():
        console.print(f"{label}: not measured. {reason}", highlight=False, markup=False, soft_wrap=True)
    path = Path(config.output).resolve()
    console.print(f"{path}: {added} added, {replaced} replaced.", highlight=False, markup=False, soft_wrap=True)
    return rows


def check_numbers(config: DictConfig) -> None:
    """Refuse what no other part would refuse with a name that the user gave."""
    for name in ("batch_sizes", "workers"):
        given = as_list(config[name])
        if not given or not all(is_whole(value) and value >= 1 for value in given):
            raise CommandError(f"{name} is {config[name]}; expected whole numbers from 1 up, such as [1,2].")
    if not -(2**63) <= config.seed < 2**63:
        raise CommandError(f"seed is {config.seed}; expected a number of at most 63 bits.")


def chosen_devices(config: DictConfig) -> dict[str, list[str]]:
    """Type -> devices, under the name that was given to them."""
    from hadoppler.real_system.cluster import find_devices

    devices = find_devices(None if config.devices is None else list(map(str, as_list(config.devices))))
    if config.gpu_type is None:
        return devices
    if len(devices) != 1:
        raise CommandError(
            f"gpu_type={config.gpu_type} names one type, and {', '.join(devices)} are there; choose with devices=[...]."
        )
    return {config.gpu_type: next(iter(devices.values()))}


def runs(config: DictConfig, devices: dict[str, list[str]]) -> Iterator[tuple[str, list[str], int, int]]:
    """(type, its devices, batch size, workers) of everything that was asked for."""
    for gpu_type, names in devices.items():
        for batch_size in dict.fromkeys(as_list(config.batch_sizes)):
            for workers in dict.fromkeys(as_list(config.workers)):
                yield gpu_type, names, batch_size, workers


def why_not(names: Sequence[str], workers: int) -> str:
    """Why so many workers cannot be measured here; empty if they can."""
    have, what = (processors(), "processor cores") if names == ["cpu"] else (len(names), "devices of this type")
    return "" if workers <= max(1, have) else f"{workers} workers need as many {what}, and {have} can be used."


def measured_row(config: DictConfig, gpu_type: str, devices: list[str], batch_size: int) -> dict[str, Any]:
    """One line of the table, in full precision."""
    from hadoppler.real_system.cluster import Timing, measure

    timing = Timing(config.warm_up, config.repeats, config.seconds)
    found = measure(config.model, batch_size, devices, optimizer=config.optimizer, timing=timing, seed=config.seed)
    workers = len(devices)
    return {
        "model": config.name or config.model.rpartition(":")[2],
        "batch_size": batch_size,
        "workers": workers,
        "gpu_type": gpu_type,
        "devices": list(dict.fromkeys(devices)),
        "fits": found.steps_per_s > 0,
        "steps_per_s": found.steps_per_s,
        "variation": found.variation,
        "samples_per_s": found.steps_per_s * batch_size,
        "step_s": workers / found.steps_per_s if found.steps_per_s > 0 else math.inf,
        "steps_a_repeat": found.steps,
    }


def kind_of(row: dict[str, Any]) -> str:
    """The model with its batch size, as tables of throughputs call it."""
    from hadoppler.envs.cluster.job import join_kind

    return join_kind(row["model"], row["batch_size"])


def print_measurements(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """One line per model, batch size, number of workers and type."""
    table = Table(title="Training steps per second of all workers together: the median of the repeats")
    for name in ("model", "batch size", "workers", "GPU type", "steps/s", "range", "step [ms]"):
        table.add_column(escape(name), justify="left" if name in ("model", "GPU type") else "right")
    for row in rows:
        who = (escape(row["model"]), str(row["batch_size"]), str(row["workers"]), escape(row["gpu_type"]))
        if row["fits"]:
            figures = (f"{100 * row['variation']:.1f} %", f"{1e3 * row['step_s']:.4g}")
            table.add_row(*who, f"{row['steps_per_s']:.4g}", *figures)
        else:
            table.add_row(*who, "does not fit in memory", "-", "-")
    console.print(table)
    console.print("range: (largest - smallest) / median.", highlight=False)
    noisy = [f"{kind_of(row)} on {row['gpu_type']}" for row in rows if row["fits"] and row["variation"] > NOISY]
    if noisy:
        say(
            console,
            f"The repeats of {', '.join(noisy)} differ by more than {NOISY:.0%} of their median: other work took part; "
            "measure again on a quiet machine, or with more seconds and repeats.",
        )


if __name__ == "__main__":
    sys.exit(main())
