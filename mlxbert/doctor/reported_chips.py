"""Keeps track of the Apple chips that users have reported on, and of whether this user was asked for a report.

`reported.json` has a row for each report, with the name that macOS uses for the chip, and the versions.
"""

import json
import re
from pathlib import Path
from typing import Any

from mlxbert.machine.user_folders import cache_folder

REPORTED = Path(__file__).with_name("reported.json")
FIELDS = ("chip", "macos", "mlx", "mlxbert", "date", "faults")


def reports() -> list[dict[str, Any]]:
    """Returns the reports as dicts whose keys are `FIELDS`."""
    rows: list[dict[str, Any]] = json.loads(REPORTED.read_text(encoding="utf-8"))
    return rows


def is_reported(chip: str) -> bool:
    """Whether a user has sent a report on this chip, such as `Apple M4 Pro`."""
    return any(report["chip"] == chip for report in reports())


def asks_now(chip: str, mlx: str) -> bool:
    """Whether to ask the user for a report: true only the first time for each chip and version of MLX.

    An empty file in the cache records that the user was asked. If it cannot be written, the result is always true.
    """
    folder = cache_folder()
    if folder is None:
        return True
    name = "-".join(re.findall("[a-z0-9.]+", f"{chip} mlx {mlx}".lower()))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:  # a file has the folder's name, or the disk is read-only
        return True
    try:
        (folder / f"asked-to-report-{name}").touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True
