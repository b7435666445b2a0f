"""Processes that are measured in turn: while one runs, the others are stopped, and all choose their kernels themselves.

torch's threads spin for up to 0.2 s after their work, on the cores of whoever comes next.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def drop_unusual_settings() -> None:
    """Removes variables that few users set, here and in all children.

    Two fix the kernels of OpenBLAS; with the third, each process compiles all modules that it imports.
    """
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)


@contextmanager
def running(process: "subprocess.Popen[Any]") -> Iterator[None]:
    """Lets a stopped process run within the `with` block."""
    process.send_signal(signal.SIGCONT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGSTOP)
