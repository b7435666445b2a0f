"""Paths that a command writes: what stands there is looked at before anything else is done."""

import os
import stat
from pathlib import Path
from typing import Literal

from mlxbert.errors import ArgumentError
from mlxbert.machine import launched
from mlxbert.paths import IrregularError, file_to_write, kind_of

_ELSEWHERE = {  # where what an option would write goes without it
    "output": "without --output results go to stdout",
    "log_file": "without --log-file requests are logged on stderr",
}


def check_written(name: str | None, path: str | Path, kind: Literal["file", "folder"]) -> None:
    """Refuses a path at which something else stands than a regular file, or than a folder.

    Of several processes that share the work, the first one writes. What else keeps a path from being written is left to
    whoever writes it.

    Args:
        name: The option of the path; `None` for an argument.
        path: The path.
        kind: What is written there.
    """
    if launched.rank():
        return
    called = str(path) if name is None else f"--{name.replace('_', '-')} {path}"
    try:
        if kind == "file":
            file_to_write(path)
        elif not stat.S_ISDIR(mode := os.stat(path).st_mode):
            raise ArgumentError(f"{called}: is {kind_of(mode)}, expected a folder")
    except IsADirectoryError:
        raise ArgumentError(f"{called}: is a folder, expected a file") from None
    except IrregularError as problem:
        raise ArgumentError(f"{called}: {problem.strerror}", hint=_ELSEWHERE.get(name or "")) from None
    except (OSError, ValueError):  # whoever writes it says why
        return
