"""The folders of mlxbert in a user's home: a cache, which can be made again, and data, which cannot."""

import os
import time
from pathlib import Path

from mlxbert.errors import MlxbertError
from mlxbert.files import write_record

VARIABLE = "MLXBERT_DATA"
DAY = 24 * 60 * 60  # seconds


def cache_folder() -> Path | None:
    """The cache, by the rules of freedesktop.org; it may not exist yet. `None` if the user has no home."""
    for folder in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(folder):
            return Path(folder, "mlxbert")
    return None


def is_private(path: Path) -> bool:
    """Whether only this user can have written a file and its folder: code is loaded from the file."""
    states = [place.stat() for place in (path, path.parent)]
    return all(state.st_uid == os.geteuid() and not state.st_mode & 0o022 for state in states)


def data_folder() -> Path:
    """The data folder: `MLXBERT_DATA` if that environment variable is set, otherwise the system's usual one."""
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("mlxbert"))


def is_due(name: str, seconds: float = DAY) -> bool:
    """Whether an occasional action should run again; if so, this counts as its new last time.

    Args:
        name: The file in the data folder whose modification time records the last time. If that file cannot be
            written, the action is due each time.
        seconds: The least time between two runs of the action.
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
