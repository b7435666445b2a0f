"""If `mlx.launch` or `mpirun` started several processes, lets only the first one print and write files.

The launcher ends all processes as soon as one of them fails. Because an error usually occurs in all of them, the other
processes wait before they print an error. They print it only if the first process does not fail.
"""

import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout

from mlxbert.errors import ArgumentError
from mlxbert.machine import mpi_launch

_WAIT = 3.0  # seconds; mlx.launch looks every second whether a process has ended


def check_stdin(sources: Sequence[str | None]) -> None:
    """Raises an error if data would be read from stdin, because `mlx.launch` never ends the stdin of a process."""
    if "-" in sources and mpi_launch.is_launched():
        raise ArgumentError("stdin cannot be read in a run of several processes", hint="write the data to a file")


def silenced(run: Callable[[], int]) -> int:
    """Runs the program without output, in a process that is not the first one.

    If the program fails, its errors are printed after a wait, unless the launcher ends the process before.

    Args:
        run: A function that runs the program and returns its exit status.
    """
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(io.StringIO()) as stderr,
    ):
        status = run()
    errors = [line for line in stderr.getvalue().splitlines() if line.startswith(("error: ", "hint: "))]
    if status and errors and sys.stderr is not None:
        time.sleep(_WAIT)
        sys.stderr.write(
            "".join(line.replace("error: ", f"error: process {mpi_launch.rank()}: ", 1) + "\n" for line in errors)
        )
    return status
