"""``hadoppler demo``: what the package does, in a minute or two."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from hadoppler.scripts import place

METHODS = (
    "method=[single_device,round_robin,tensor_parallel,pipeline,critical_path,heft,peft,etf,enumerative,annealing]"
)
STEPS = (
    (
        "One sharded layer of LLaMA-7B on four P100, 12 GB/s links",
        ["graph=llama_layer", "topology=4xP100", METHODS],
    ),
    (
        "A PyTorch transformer block, captured and tiled, 3 GB/s links",
        [
            "graph=module",
            "model=hadoppler.scripts.example_model:transformer_block",
            "graph.cuts=4",
            "topology=4xP100-slow",
            METHODS,
        ],
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps one after the other; returns the first exit code that is not 0."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words:
        print("hadoppler demo takes no arguments: it places two graphs with ten methods and draws the best.")
        return 0 if words[0] in ("-h", "--help") else 2
    console = Console()
    for title, overrides in STEPS:
        console.rule(title)
        code = place.main(overrides)
        if code:
            return code
    console.print("\nOpen gantt.png for the picture, trace.json in https://ui.perfetto.dev for every operation.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
