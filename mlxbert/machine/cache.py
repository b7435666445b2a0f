"""The folder of mlxbert in the user's cache: what it makes once for a machine, and can make again."""

import os
from pathlib import Path


def own_folder() -> Path | None:
    """The folder, by the rules of freedesktop.org; it may not exist yet. `None` if the user has no home."""
    for folder in (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")):
        if os.path.isabs(folder):
            return Path(folder, "mlxbert")
    return None
