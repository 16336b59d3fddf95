"""Python processes that call one function, and find modules where this process finds them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from .worker import ENVIRONMENT

# Not multiprocessing: it imports the main script again in every process, and a script without a guard would start
# processes of its own. Ctrl-C is the coordinator's, so it is ignored before anything that takes time.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
import sys
sys.path[:] = {path!r}
from {module} import {name}
{name}({arguments})
"""


def start_python(
    function: Callable[..., None], numbers: Sequence[int], environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that calls a function of a module, on one thread.

    Args:
        numbers: of file descriptors, its arguments; it inherits these and no others.
        environment: variables beside this process's.

    Raises:
        OSError: the process cannot be started.
    """
    program = PROGRAM.format(
        path=[str(folder) for folder in sys.path],
        module=function.__module__,
        name=function.__name__,
        arguments=", ".join(map(str, numbers)),
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | ENVIRONMENT | dict(environment or {}),
        stdin=subprocess.DEVNULL,
        pass_fds=list(numbers),
    )
