"""What to tell a user whose module cannot be captured."""

from __future__ import annotations

import contextlib
import io
import logging
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import GraphError

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's warnings and log messages about the capture to itself; errors are raised anyway."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def explain(error: Exception, module: torch.nn.Module, training: bool) -> GraphError:
    """One sentence about why the capture failed, and a way out."""
    name, text = type(module).__name__, str(error)
    place = _user_line(error)
    if any(
        word in f"{type(error).__name__} {text}".lower() for word in ("data-dependent", "datadependent", "unbacked")
    ):
        return GraphError(
            f"{name}: its control flow or a shape depends on the values of tensors{place}, which a static graph "
            "cannot hold; write the choice as torch.where, or capture the submodules on either side of it one by one."
        )
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no message")
    mode = "forward and backward" if training else "forward"
    return GraphError(
        f"{name}: torch.export could not capture its {mode}{place} ({type(error).__name__}: {first[:200]}); check that "
        "module(*args) runs and that it does nothing but compute with tensors."
    )


def _user_line(error: Exception) -> str:
    """Where in the user's code an error arose, as `` (file, line N: code)``, or nothing."""
    import torch

    ours = tuple(str(Path(file).parent) for file in (torch.__file__, __file__))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(".py")]
    frames = [frame for frame in frames if not frame.filename.startswith(ours)]
    if not frames:
        return ""
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno}: {frames[-1].line})"
