"""The Apple chips with a report from a user, and whether the user of an unreported chip was asked for one.

`reported.json` has a row for each report, with the name of the chip in macOS, and the versions.
"""

import json
import re
from pathlib import Path
from typing import Any

from mlxbert.machine.user_folders import cache_folder

REPORTED = Path(__file__).with_name("reported.json")
FIELDS = ("chip", "macos", "mlx", "mlxbert", "date", "faults")


def reports() -> list[dict[str, Any]]:
    """Returns the reports, each with `FIELDS`."""
    rows: list[dict[str, Any]] = json.loads(REPORTED.read_text(encoding="utf-8"))
    return rows


def is_reported(chip: str) -> bool:
    """Whether there is a report on a chip, such as `Apple M4 Pro`."""
    return any(report["chip"] == chip for report in reports())


def asks_now(chip: str, mlx: str) -> bool:
    """Whether to ask for a report: true once for a chip and a version of MLX on this machine.

    An empty file in the cache records the question; if it cannot be written, the result is always true.
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
