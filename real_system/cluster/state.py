"""What a job needs to go on, in memory and as the content of a file."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np

from ...envs.errors import CheckpointError


class State(TypedDict):
    """What a job needs to go on: plain dicts of tensors on the CPU, numbers and texts.

    Attributes:
        model: ``state_dict`` of the model.
        optimizer: ``state_dict`` of the optimiser, at the rates of ``TrainingJob.optimizer``.
        steps: batches trained on the way to it; of averaged copies the most.
    """

    model: dict[str, Any]
    optimizer: dict[Any, Any]
    steps: int


def pack(state: State) -> bytes:
    """A state as the content of a file that plain ``torch.load`` reads.

    Raises:
        CheckpointError: it holds something that cannot be saved.
    """
    import torch

    buffer = io.BytesIO()
    torch.save(plain(state), buffer)
    return buffer.getvalue()


def unpack(packed: bytes) -> State:
    """The state that was packed; nothing in it is executed.

    Raises:
        CheckpointError: it is cut, empty, or something else.
    """
    import torch

    try:
        found = torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises one of half a dozen kinds
        raise CheckpointError(
            f"a state of {len(packed)} bytes cannot be read ({type(error).__name__}); it is cut, or no job's state."
        ) from error
    kinds = {"model": dict, "optimizer": dict, "steps": int}
    if not isinstance(found, dict) or not all(isinstance(found.get(key), kind) for key, kind in kinds.items()):
        raise CheckpointError(f"a state of {len(packed)} bytes is no job's; expected {', '.join(kinds)} in it.")
    return {"model": found["model"], "optimizer": found["optimizer"], "steps": found["steps"]}


def plain(value: Any) -> Any:
    """A copy without anything that plain ``torch.load`` refuses: numpy's numbers become Python's.

    Raises:
        CheckpointError: there is something else in it.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        items = [plain(item) for item in value]
        return tuple(items) if isinstance(value, tuple) else items
    raise CheckpointError(f"a state holds a {type(value).__name__}; expected tensors, numbers, texts, lists and dicts.")
