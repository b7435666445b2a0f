"""Which Apple chips somebody has reported, and whether the user of another one was asked to report it.

`reported.json` is the list: a row for each report, with the chip as macOS names it, and the versions.
"""

import json
import re
from pathlib import Path
from typing import Any

from mlxbert.machine.user_folders import cache_folder

REPORTED = Path(__file__).with_name("reported.json")
FIELDS = ("chip", "macos", "mlx", "mlxbert", "date", "faults")


def reports() -> list[dict[str, Any]]:
    """The reports, each with `FIELDS`."""
    found: list[dict[str, Any]] = json.loads(REPORTED.read_text(encoding="utf-8"))
    return found


def is_reported(chip: str) -> bool:
    """Whether somebody has reported a chip, such as `Apple M4 Pro`."""
    return any(one["chip"] == chip for one in reports())


def asks_now(chip: str, mlx: str) -> bool:
    """Whether to ask for a report: true once for a chip and a version of MLX on this machine.

    An empty file in the cache remembers it; where none can be written, it is true each time.
    """
    folder = cache_folder()
    if folder is None:
        return True
    name = "-".join(re.findall("[a-z0-9.]+", f"{chip} mlx {mlx}".lower()))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:  # a file is in its place, or the disk is read-only
        return True
    try:
        (folder / f"asked-to-report-{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True
