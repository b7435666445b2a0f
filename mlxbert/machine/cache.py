"""The folder of mlxbert in the user's cache: what it makes once for a machine, and can make again."""

import os
from pathlib import Path


def own_folder() -> Path | None:
    """The folder, by the rules of freedesktop.org; it may not exist yet. `None` if the user has no home."""
    for folder in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(folder):
            return Path(folder, "mlxbert")
    return None


def is_private(path: Path) -> bool:
    """Whether only this user can have written a file or folder, and what is in it: what is loaded from it runs."""
    states = [one.stat() for one in (path, path.parent)]
    return all(state.st_uid == os.geteuid() and not state.st_mode & 0o022 for state in states)
