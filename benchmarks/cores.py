"""Restricts a benchmark to some cores."""

import os
import sys


def keep_to_cores(count: int) -> None:
    """Restricts this process and its children to the first cores, on Linux only.

    On other systems, only the number of threads limits the parallelism.
    """
    if sys.platform == "linux":
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
