"""``hadoppler info``: versions, devices, what is installed and what extras would add, who can decide."""

from __future__ import annotations

import json
import platform
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hadoppler import __version__
from hadoppler.baselines.registry import package_of
from hadoppler.envs.errors import MissingExtraError
from hadoppler.envs.processors import processors
from hadoppler.scripts.offers import FAMILIES, check_offer, clashes, others
from hadoppler.scripts.report import installed, say

HELD = "\N{NO-BREAK SPACE}"
"""A space at which no line breaks."""

EXTRAS = {
    "torch": "graphs of PyTorch modules, placements executed on CPUs and GPUs",
    "solver": "placements by CP-SAT",
    "learn": "training and running policies",
    "cluster": "real training jobs",
    "ray": "real training jobs on Ray",
    "wandb": "tracking=wandb",
    "sweep": "sweeps with several processes (hydra/launcher=joblib)",
}
"""What each extra is for; ``all`` is all of them."""
PACKAGES = ("numpy", "numba", "scipy", "networkx", "gymnasium", "hydra-core")
"""Installed always; their versions matter for results."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print it, or with ``--json`` the same for programs; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if any(word in ("-h", "--help") for word in words):
        print("hadoppler info [--json]\n\nTells versions, devices, what is installed, and who can decide.")
        return 0
    if words not in ([], ["--json"]):
        print(f"hadoppler info: it takes --json or nothing, not {' '.join(words)}.", file=sys.stderr)
        return 2
    told = gather()
    if words:
        print(json.dumps(told, indent=1))
    else:
        print_info(Console(), told)
    return 0


def gather() -> dict[str, Any]:
    """All that is told, in JSON's own types."""
    return {
        "versions": {
            "hadoppler": __version__,
            "python": platform.python_version(),
            **{name: installed(name) for name in PACKAGES},
        },
        "devices": devices(),
        "extras": extras(),
        **{f"{group}s": deciders(group) for group in FAMILIES},
    }


def devices() -> dict[str, Any]:
    """Processors that this process may use, and GPUs as torch sees them (None where it is not installed)."""
    return {"system": platform.platform(), "cpus": processors(), "gpus": gpus()}


def gpus() -> list[str] | None:
    """Name and memory of each; None where torch is not there to look, or cannot be loaded."""
    if installed("torch") is None:
        return None
    try:
        import torch
    except (ImportError, OSError):
        return None
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return [f"{item.name}, {item.total_memory / 1e9:.0f} GB" for item in found]


def extras() -> dict[str, dict[str, str | None]]:
    """Extra -> its packages with their versions, None for those that are missing."""
    try:
        lines = requires("hadoppler") or []
    except PackageNotFoundError:  # run from a folder, without an installation
        lines = []
    found: dict[str, dict[str, str | None]] = {name: {} for name in EXTRAS}
    for line in lines:
        extra = re.search(r"extra\s*==\s*['\"]([\w-]+)['\"]", line)
        package = re.match(r"[\w.-]+", line)
        if extra and package and extra[1] in EXTRAS:
            found[extra[1]][package[0]] = installed(package[0])
    return found


def deciders(group: str) -> list[dict[str, str | None]]:
    """Schedulers or methods: name, package, and why one of another package cannot be used (None if it can)."""
    told: list[dict[str, str | None]] = [
        {"name": name, "package": "hadoppler", "trouble": None} for name in FAMILIES[group].own
    ]
    for name, entry in others(group).items():
        trouble = None
        try:
            check_offer(entry, group)
        except MissingExtraError as error:
            trouble = str(error)
        told.append({"name": name, "package": package_of(entry), "trouble": trouble})
    return [*told, *({"name": name, "package": None, "trouble": why} for name, why in clashes(group).items())]


def print_info(console: Console, told: Mapping[str, Any]) -> None:
    """Versions and devices, a table of extras, who can decide, and what is wrong with other packages' offers."""
    say(console, fill([f"{name} {number or 'missing'}" for name, number in told["versions"].items()], console.width))
    seen = told["devices"]
    none = "unknown without torch" if seen["gpus"] is None else "none that torch sees"
    cards = "; ".join(seen["gpus"] or []) or none
    say(console, fill([seen["system"], f"CPUs: {seen['cpus']}", f"GPUs: {cards}"], console.width))
    print_extras(console, told["extras"])
    for group, title in (("scheduler", "Schedulers"), ("method", "Placement methods")):
        usable = [item for item in told[f"{group}s"] if item["trouble"] is None]
        names = [
            item["name"] if item["package"] == "hadoppler" else f"{item['name']} ({item['package']})" for item in usable
        ]
        first, *rest = names or ["none"]
        say(console, fill([f"{title}: {first}", *rest], console.width, ", "))
        for item in told[f"{group}s"]:
            if item["trouble"]:
                say(console, f"  {item['trouble']}")


def print_extras(console: Console, found: Mapping[str, Mapping[str, str | None]]) -> None:
    """What each extra is for, its packages line by line, and how to install those that are missing."""
    table = Table()
    for name in ("extra", "for", "packages", "installed"):
        table.add_column(name, overflow="fold", no_wrap=name != "for")
    missing = [extra for extra, packages in found.items() if None in packages.values() or not packages]
    for extra, packages in found.items():
        versions = "\n".join(f"{name} {number or '(missing)'}" for name, number in packages.items())
        table.add_row(extra, EXTRAS[extra], escape(versions), "no" if extra in missing else "yes")
    console.print(table)
    if missing:
        say(console, f"To install what is missing: pip install 'hadoppler[{','.join(missing)}]'")


def fill(items: Sequence[str], width: int, between: str = "  ") -> str:
    """Items one after the other, in lines that break between two of them only."""
    held = between.join(item.replace(" ", HELD) for item in items)
    lines = textwrap.wrap(held, width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace(HELD, " ")


if __name__ == "__main__":
    sys.exit(main())
