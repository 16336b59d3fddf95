"""The command ``hadoppler``: finds the command by name and hands it the other arguments."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

MODULES = {"profile": "profile_model"}
"""Commands whose module has another name: a ``profile.py`` beside a script that runs as a file would hide Python's."""
COMMANDS = {
    "place": "place the operations of a graph on devices and compare methods",
    "calibrate": "execute a graph on real devices, and predict with what it costs there",
    "simulate": "run jobs on a cluster of unequal GPUs and compare schedulers",
    "run": "train real jobs on real workers under a scheduler, on this machine or on Ray",
    "submit": "give one more job to a run that is going on",
    "cancel": "take a job out of a run that is going on",
    "profile": "measure how fast your own model trains on this machine, for simulations",
    "train": "train a policy that places graphs, or one that schedules a cluster",
    "evaluate": "judge a policy, methods or schedulers, on any problems or on frozen suites",
    "info": "tell versions, devices, what is installed and what extras would add",
    "reproduce": "run the published tables and figures again, and report ours beside them",
    "demo": "see both levels and a real run, in under three minutes, with a report",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    if words[0] == "--version":
        from hadoppler import __version__

        print(f"hadoppler {__version__}")
        return 0
    if words[0] not in COMMANDS:
        near = get_close_matches(words[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(COMMANDS)}."
        print(f"hadoppler: there is no command {words[0]!r}; {hint}", file=sys.stderr)
        return 2
    try:
        return int(import_module(f"hadoppler.scripts.{MODULES.get(words[0], words[0])}").main(words[1:]))
    except KeyboardInterrupt:
        print(f"hadoppler {words[0]}: stopped.", file=sys.stderr)
        return 130


def _help() -> str:
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items()]
    return "\n".join(
        [
            "hadoppler COMMAND [name=value ...]",
            "",
            "Schedule deep-learning work on unequal hardware.",
            "",
            *lines,
            "",
            "hadoppler COMMAND --help tells a command's choices and values; -m sweeps over comma-separated values.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
