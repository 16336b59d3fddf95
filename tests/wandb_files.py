"""What wandb wrote offline, read without a server."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

PATIENCE_S = 10.0


def stored(folder: Path) -> list[list[Any]]:
    """Records of every file that wandb wrote offline in a folder, oldest file first.

    Its own process writes them, and may do so a moment after the run has ended.
    """
    until = time.monotonic() + PATIENCE_S
    while True:
        found = [records_of(path.read_bytes()) for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]
        whole = all(any(record.WhichOneof("record_type") == "exit" for record in records) for records in found)
        if whole or time.monotonic() > until:
            return found
        time.sleep(0.1)


def records_of(data: bytes) -> list[Any]:
    """Records of a file in LevelDB's log format."""
    from wandb.proto import wandb_internal_pb2

    make: Any = vars(wandb_internal_pb2)["Record"]
    place, whole, records = 7, b"", []
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        if place + 7 + length > len(data):
            break  # still being written
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(make.FromString(whole))
            whole = b""
    return records


def history(records: list[Any]) -> list[dict[str, Any]]:
    """Logged lines with their step as ``_step``; a table is a mapping of what wandb keeps of it."""
    lines = [record.history for record in records if record.WhichOneof("record_type") == "history"]
    return [values(line.item) for line in lines]


def values(items: Any) -> dict[str, Any]:
    """Values by name, those with several names as mappings in mappings."""
    found: dict[str, Any] = {}
    for item in items:
        *parents, last = list(item.nested_key) or [item.key]
        place = found
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = json.loads(item.value_json)
    return found


def exit_codes(files: list[list[Any]]) -> list[int]:
    return [r.exit.exit_code for records in files for r in records if r.WhichOneof("record_type") == "exit"]


def the_run(records: list[Any]) -> Any:
    return next(record.run for record in records if record.WhichOneof("record_type") == "run")


def artifacts(records: list[Any]) -> dict[str, str]:
    """Name -> kind of every artifact that was logged, tables of wandb's own left out."""
    found = [record.artifact for record in records if record.WhichOneof("record_type") == "artifact"]
    return {item.name: item.type for item in found if item.type != "run_table"}


def summary(records: list[Any]) -> dict[str, Any]:
    """Figures that stand for the whole run."""
    found: dict[str, Any] = {}
    for record in records:
        if record.WhichOneof("record_type") == "summary":
            found |= values(record.summary.update)
    return found
