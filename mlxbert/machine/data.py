"""The folder of mlxbert in the user's data: what is kept for a machine and cannot be made again, or only with work."""

import os
import time
from pathlib import Path

from mlxbert.errors import MlxbertError
from mlxbert.files import write_record

VARIABLE = "MLXBERT_DATA"
DAY = 24 * 60 * 60  # seconds


def data_folder() -> Path:
    """The user's data folder: that which the environment variable `MLXBERT_DATA` names, or the system's usual one."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("mlxbert"))


def is_due(name: str, seconds: float = DAY) -> bool:
    """Whether something is done again that is done once in a while; if so, it counts as done now.

    Args:
        name: What a file in the data folder is called that remembers it by its time. Where none can be written, it is
            due each time.
        seconds: How long it is not due once it was done.
    """
    try:
        mark = data_folder() / name
        if mark.is_file() and 0 <= time.time() - mark.stat().st_mtime < seconds:
            return False
        mark.parent.mkdir(parents=True, exist_ok=True)
        write_record(mark, {}, durable=False)
    except (OSError, RuntimeError, ValueError, MlxbertError):
        pass
    return True
