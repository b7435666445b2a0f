"""If `mlx.launch` started several processes that train together, lets only the first one print and write files.

The launcher ends all processes as soon as one of them fails. Because an error usually occurs in all of them, the other
processes wait before they print an error. They print it only if the first process does not fail.
"""

import io
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout

from mlxbert.errors import ArgumentError
from mlxbert.readers.input_files import STDIN

_TRAINING = ("finetune", "pretrain", "distill")  # commands whose processes share the work
_RANK = "MLX_RANK"  # the environment variable with the number of this process, from 0
_WAIT = 3.0  # seconds; mlx.launch looks every second whether a process has ended


def check_command(words: Sequence[str]) -> None:
    """Raises an error if `mlx.launch` started a command whose processes would all do the same."""
    if _RANK in os.environ and words and not words[0].startswith("-") and words[0] not in _TRAINING:
        raise ArgumentError(
            f"mlx.launch started mlxbert {words[0]:.60}, but only {', '.join(_TRAINING)} share work between processes",
            hint="start the command without mlx.launch",
        )


def is_first(inputs: Iterable[str]) -> bool:
    """Whether this process prints and writes; raises an error if `mlx.launch` started it and an input is stdin.

    The launcher never ends the stdin of a process.
    """
    if _RANK in os.environ and STDIN in inputs:
        raise ArgumentError("stdin cannot be read in a run of several processes", hint="write the data to a file")
    return not _rank()


def run(program: Callable[[], int]) -> int:
    """Runs the program, and returns its exit status. In a process that is not the first one, it has no output.

    If the program fails there, its errors are printed after a wait, unless the launcher ends the process before.
    """
    if not _rank():
        return program()
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(io.StringIO()) as stderr,
    ):
        status = program()
    errors = [line for line in stderr.getvalue().splitlines() if line.startswith(("error: ", "hint: "))]
    if status and errors and sys.stderr is not None:
        time.sleep(_WAIT)
        sys.stderr.write("".join(line.replace("error: ", f"error: process {_rank()}: ", 1) + "\n" for line in errors))
    return status


def _rank() -> int:
    return int(os.environ.get(_RANK) or 0)
