"""A stand-in for ``hadoppler``: writes what its words say at once, and fails or hangs where files ask for it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> int:
    """Note the call in ``calls.jsonl``, and do as the files ``fail`` and ``hang`` say; they hold names of rows."""
    command, *words = sys.argv[1:]
    given = dict(word.split("=", 1) for word in words)
    folder, row, begun = Path(given.get("hydra.run.dir") or given["resume"]), given["experiment"], time.time()
    asked = {name: (Path(name).read_text() if Path(name).exists() else "") for name in ("fail", "hang")}
    if command == "train":
        (folder / "run.json").write_text("{}")
        (folder / "last.pt").write_text("")
    with Path("calls.jsonl").open("a") as file:
        file.write(json.dumps({"command": command, "row": row, "words": given, "begun": begun}) + "\n")
    if row in asked["hang"]:
        time.sleep(60)
    if row in asked["fail"]:
        print(f"hadoppler {command}: the row {row} is broken; mend it.")
        return 2
    time.sleep(0.2)
    rows = [{"makespan": float(given.get("seed", 0)) + len(row), "method": row}]
    (folder / "placement.json").write_text("{}")
    (folder / "results.json").write_text(json.dumps({"rows": rows, "ended": time.time(), "begun": begun}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
