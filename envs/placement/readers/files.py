"""Reading and writing of text files, with errors that name the file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ...errors import GraphError


def read_text(path: str | Path) -> str:
    """The whole UTF-8 text of a file.

    Raises:
        GraphError: the file is missing, unreadable or not UTF-8 text.
    """
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise GraphError(f"{path}: byte {error.start} is not UTF-8 text; give a text file.") from error
    except OSError as error:
        raise GraphError(f"{path}: cannot be read ({error.strerror}); check the path.") from error


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text to a temporary file beside ``path``, then rename it, so that no reader sees half.

    Raises:
        GraphError: the folder is missing or not writable.
    """
    target = Path(path)
    mode = 0o666 & ~_umask() if not target.exists() else target.stat().st_mode & 0o777
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    except OSError as error:
        raise GraphError(f"{path}: cannot be written ({error.strerror}); check the folder.") from error
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except OSError as error:
        os.unlink(temporary)
        raise GraphError(f"{path}: cannot be written ({error.strerror}); check the folder.") from error


def _umask() -> int:
    """The process's file mode mask, which can only be read by setting it."""
    current = os.umask(0o022)
    os.umask(current)
    return current
