"""Processes that are measured in turn: while one runs, the others are stopped, and none has the user's settings.

torch's threads spin for up to 0.2 s after their work, on the cores of whoever comes next.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


def environment() -> dict[str, str]:
    """The environment without the settings of OpenBLAS, which then chooses its kernels itself, as for most users."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OPENBLAS_")}


@contextmanager
def running(process: "subprocess.Popen[str]") -> Iterator[None]:
    """Lets a stopped process run within the `with` block."""
    process.send_signal(signal.SIGCONT)
    try:
        yield
    finally:
        process.send_signal(signal.SIGSTOP)
