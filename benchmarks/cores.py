"""The cores that a benchmark runs on."""

import os
import sys


def keep_to_cores(count: int) -> None:
    """Keeps this process and those that it starts to the first cores; only Linux can do that.

    Elsewhere only the number of threads says how much is computed at a time.
    """
    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
