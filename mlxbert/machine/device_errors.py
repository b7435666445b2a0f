"""Errors of the device: MLX raises a plain `RuntimeError` for them, so they are known by its words.

The words are those of MLX 0.32: `metal/device.cpp` and `metal/allocator.cpp`; `cuda/utils.cpp`, `cuda/allocator.cpp`,
`cuda/cublas_utils.cpp` and `cuda/cudnn_utils.cpp`. After an allocation or a command of Metal that failed, the device
can be used again.

Metal's errors come late: an array whose command failed can be read without one, and holds anything. MLX raises the
error when it is next given an operation, or waits for all of them (`metal/device.cpp`; ml-explore/mlx#3979 and #4174).
So the device is asked whenever something is done; and an error may be that of anything that was started before it.
"""

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from mlxbert.errors import DeviceError, OutOfMemoryError

_DEVICE = re.compile(
    r"\[(?:METAL|[Mm]etal(?:::\w+)?|malloc)\] |(?:cu(?:da|blas|dnn|fft|[A-Z])\w*|graph(?:\.|->)\w+)[( ].*failed\b"
)
# cuBLAS says 3 for a failed allocation.
_MEMORY = re.compile(
    r"\[(?:metal::)?malloc\] |Insufficient Memory|failed: out of memory|cublas.* code: 3\b|ALLOC(?:ATION)?_FAILED"
)
_TOO_LONG = re.compile("kIOGPUCommandBufferCallbackError(?:Timeout|ImpactingInteractivity)")  # macOS bounds the time
USUAL = "close other programs, or use a smaller model"
_CHECK = "`mlxbert doctor --check` finds out whether this device computes correctly"


_seen = 0


def errors_seen() -> int:
    """How many errors of the device there were so far; what was started before the last one may not be computed."""
    return _seen


@contextmanager
def device_errors(smaller: str = USUAL, *, wait: bool = True) -> Iterator[None]:
    """Makes DeviceErrors of the errors of the device within; other RuntimeErrors stay what they are.

    What failed gives up its arrays, so that there is memory for another attempt.

    Args:
        smaller: The hint where less work at a time would help.
        wait: Whether to wait at the end until a GPU has done all that it was given. Otherwise an error is raised if it
            is known by then: where what was started within has been read.
    """
    global _seen
    try:
        yield
        if (mx := _on_gpu()) is not None:
            mx.synchronize() if wait else mx.async_eval(mx.arange(1))
    except Exception as found:
        # Numbers that were not computed can cause any other error.
        problem = found if is_of_device(found) else _known_by_now()
        if problem is None:
            raise
        _seen += 1
        text = _words(problem)
        traceback.clear_frames(found.__traceback__)
        if _MEMORY.search(text):
            raise OutOfMemoryError(f"the device is out of memory: {text}", hint=smaller) from problem
        hint = smaller if _TOO_LONG.search(text) else _CHECK
        raise DeviceError(f"the device failed: {text}", hint=hint) from problem


def _on_gpu() -> Any:
    """MLX where it computes on a GPU. It is not loaded here: the program starts without it."""
    device = sys.modules.get("mlxbert.machine.device")
    return device.mx if device is not None and device.on_gpu() else None


def is_of_device(problem: Exception) -> bool:
    """Whether MLX says that the device failed, and not that it was given something wrong."""
    return isinstance(problem, RuntimeError) and _DEVICE.match(_words(problem)) is not None


def _words(problem: Exception) -> str:
    return " ".join(str(problem).split())


def _known_by_now() -> Exception | None:
    """An error of what a GPU was given before, once it has done all of it."""
    try:
        if (mx := _on_gpu()) is not None:
            mx.synchronize()
    except RuntimeError as problem:
        return problem if is_of_device(problem) else None
    return None


def free_memory() -> None:
    """Waits until a GPU has done what it was given, whose errors are known, and frees what MLX keeps of it."""
    from mlxbert.machine.device import mx

    with suppress(DeviceError), device_errors():
        pass
    mx.clear_cache()
