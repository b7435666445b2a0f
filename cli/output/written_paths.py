"""Checks the paths that a command will write, before it does anything else."""

import os
import stat
from pathlib import Path
from typing import Literal

from mlxbert.errors import ArgumentError
from mlxbert.paths import IrregularError, file_to_write, kind_of

_HINTS = {  # where the output goes without the option
    "output": "without --output results go to stdout",
    "log_file": "without --log-file requests are logged on stderr",
}


def check_written(name: str | None, path: str | Path, kind: Literal["file", "folder"]) -> None:
    """Raises an error if the path exists but is not of the kind that the command writes, a regular file or a folder.

    `name` is that of the option for the path, or `None` for an argument. Other reasons why the path cannot be written
    are reported when it is written.
    """
    described = str(path) if name is None else f"--{name.replace('_', '-')} {path}"
    try:
        if kind == "file":
            file_to_write(path)
        elif not stat.S_ISDIR(mode := os.stat(path).st_mode):
            raise ArgumentError(f"{described}: is {kind_of(mode)}, expected a folder")
    except IsADirectoryError:
        if name == "index":  # which is opened before anything is written, with an error that says what to type
            return
        raise ArgumentError(f"{described}: is a folder, expected a file") from None
    except IrregularError as problem:
        raise ArgumentError(f"{described}: {problem.strerror}", hint=_HINTS.get(name or "")) from None
    except (OSError, ValueError):  # reported when the path is written
        return
