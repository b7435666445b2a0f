"""The folders of mlxbert in a user's home: a cache, which can be recreated, and data, which cannot."""

import os
import time
from pathlib import Path

from mlxbert.durable_files import write_record
from mlxbert.errors import MlxbertError

VARIABLE = "MLXBERT_DATA"
DAY = 24 * 60 * 60  # seconds


def cache_folder() -> Path | None:
    """The cache folder, by the rules of freedesktop.org; it may not exist yet. `None` if the user has no home."""
    for folder in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(folder):
            return Path(folder, "mlxbert")
    return None


def is_private(path: Path) -> bool:
    """Whether only this user can have written a file and its folder; checked before code in the file is loaded."""
    stats = [checked.stat() for checked in (path, path.parent)]
    return all(stat.st_uid == os.geteuid() and not stat.st_mode & 0o022 for stat in stats)


def data_folder() -> Path:
    """The data folder: the environment variable `MLXBERT_DATA` if it is set, otherwise the system's default."""
    if folder := os.environ.get(VARIABLE):
        return Path(folder).absolute()
    import platformdirs

    return Path(platformdirs.user_data_dir("mlxbert"))


def is_due(name: str, seconds: float = DAY) -> bool:
    """Whether an occasional action should run again; if so, records that it runs now.

    Args:
        name: The file in the data folder whose modification time is the time of the last run. If the file cannot be
            written, the action is always due.
        seconds: The minimum time between two runs of the action.
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
