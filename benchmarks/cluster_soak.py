"""A long run under faults: workers and the run itself are killed, checkpoints are cut, jobs come and go.

The run is ``hadoppler run`` in a process of its own. At the end every job that was not cancelled must have exactly its
steps, and memory and handles of the run are told for its first and its last minute.

    python benchmarks/cluster_soak.py [--quick] [--minutes 10] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from hadoppler.envs.errors import HadopplerError
from hadoppler.real_system.cluster.job_source import cancel, submit
from hadoppler.real_system.cluster.store import FILE, FINISHED, RunStore
from hadoppler.real_system.cluster.workloads import OWN_TASKS

FAULTS = ("worker killed",) * 6 + ("job submitted",) * 5 + ("job cancelled", "run killed", "checkpoint cut")
EVERY_S = 8.0
START_S = 60.0


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def use_of(pid: int) -> tuple[float, int, int]:
    """Megabytes, open files and threads of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) / 1024, len(os.listdir(f"/proc/{pid}/fd")), int(fields["Threads"])


class Soak:
    """The run, and what is done to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng, self.faults = folder, np.random.default_rng(seed), Counter[str]()
        self.submitted = 0
        self.uses: list[tuple[float, int, int]] = []
        self.begin()

    def begin(self, resume: bool = False) -> None:
        """Start the run, or go on with it."""
        words = [f"resume={self.folder}"] if resume else [f"hydra.run.dir={self.folder}", "workload.jobs=4"]
        settings = ["linger_s=120", "round_s=3", "save_every=50", "pictures=false", "scheduler=[hadare]"]
        program = "import sys; from hadoppler.scripts.cli import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", program, "run", *words, *settings]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + START_S
        while not (self.folder / FILE).exists() and time.monotonic() < until:
            time.sleep(0.5)

    def hurt(self) -> None:
        """One fault at random."""
        fault = str(self.rng.choice(FAULTS))
        with suppress(HadopplerError, ProcessLookupError):
            getattr(self, f"_{fault.replace(' ', '_')}")()
            self.faults[fault] += 1

    def _worker_killed(self) -> None:
        found = children(self.process.pid)
        if not found:
            raise ProcessLookupError("workers have not been started yet")
        os.kill(found[int(self.rng.integers(len(found)))], signal.SIGKILL)

    def _job_submitted(self) -> None:
        task = str(self.rng.choice(OWN_TASKS))
        submit(self.folder, {"task": task, "steps": int(self.rng.integers(200, 900)), "id": f"soak-{self.submitted}"})
        self.submitted += 1

    def _job_cancelled(self) -> None:
        cancel(self.folder, f"soak-{int(self.rng.integers(max(1, self.submitted)))}")

    def _run_killed(self) -> None:
        self.process.kill()
        self.process.wait()
        self.begin(resume=True)

    def _checkpoint_cut(self) -> None:
        """Cut the latest state of a job, then kill the run, which would not look at it otherwise."""
        if not list(self.folder.glob("checkpoints/*.pt")):
            raise ProcessLookupError("nothing was saved yet")
        self.process.kill()
        self.process.wait()
        files = sorted(self.folder.glob("checkpoints/*.pt"), key=lambda path: path.stat().st_mtime)
        files[-1].write_bytes(files[-1].read_bytes()[:1000])
        self.begin(resume=True)

    def note(self) -> None:
        """Remember what the run uses."""
        with suppress(OSError, KeyError):
            self.uses.append(use_of(self.process.pid))


def soak(folder: Path, minutes: float, seed: int) -> dict[str, Any]:
    """Hurt the run for so long, let it end, and look at what it did."""
    shutil.rmtree(folder, ignore_errors=True)
    console, run = Console(stderr=True), Soak(folder, seed)
    until = time.monotonic() + 60 * minutes
    while time.monotonic() < until:
        time.sleep(EVERY_S * float(run.rng.uniform(0.5, 1.5)))
        if run.process.poll() is not None:
            raise SystemExit(f"the run in {folder} ended before its time (exit code {run.process.returncode}).")
        run.note()
        run.hurt()
        console.print(f"{(until - time.monotonic()) / 60:.1f} minutes left: {dict(run.faults)}")
    while run.process.poll() is None:
        run.note()
        time.sleep(2.0)
    store = RunStore(folder)
    jobs = store.jobs()
    wrong = [
        stored.job.id
        for row, stored in enumerate(jobs)
        if stored.status == FINISHED and store.checkpoints(row)[0].done != stored.spec.steps
    ]
    first, last = (np.mean(part, axis=0).tolist() for part in (run.uses[:5], run.uses[-5:]))
    return {
        "minutes": minutes,
        "exit_code": run.process.returncode,
        "jobs": len(jobs),
        "statuses": dict(Counter("failed" if s.status.startswith("failed") else s.status for s in jobs)),
        "wrong_steps": wrong,
        "faults": dict(run.faults),
        "megabytes": [first[0], last[0]],
        "files": [first[1], last[1]],
        "threads": [first[2], last[2]],
        "left_running": len(children(os.getpid())),
    }


def main() -> None:
    """Soak, and print what came of it, as JSON on the last line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="half a minute")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/cluster_soak"))
    options = parser.parse_args()
    row = soak(options.folder, 0.5 if options.quick else options.minutes, options.seed)
    Console().print(row)
    print(json.dumps({"rows": [row]}))


if __name__ == "__main__":
    main()
