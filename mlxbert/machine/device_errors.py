"""Errors of the device: MLX raises a plain `RuntimeError` for them, so they are recognized by their message.

The messages are those of MLX 0.32: `metal/device.cpp` and `metal/allocator.cpp`; `cuda/utils.cpp`,
`cuda/allocator.cpp`, `cuda/cublas_utils.cpp` and `cuda/cudnn_utils.cpp`. After an allocation or a Metal command has
failed, the device can be used again.

Metal's errors come late: an array whose command failed can be read without an error, and its content is undefined. MLX
raises the error at its next operation, or when it waits for all operations (`metal/device.cpp`; ml-explore/mlx#3979 and
#4174). So the device is checked after each piece of work, and the cause of an error may be any earlier work.
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
# cuBLAS reports a failed allocation as code 3.
_MEMORY = re.compile(
    r"\[(?:metal::)?malloc\] |Insufficient Memory|failed: out of memory|cublas.* code: 3\b|ALLOC(?:ATION)?_FAILED"
)
# Work that macOS has stopped or discarded, by the names in its messages. Earlier systems have no name for 0000000e,
# which means too much work at a time there (ml-explore/mlx#1231).
_TOO_LONG = re.compile("CallbackErrorTimeout|0000000e:Internal Error")
_DISPLAY, _VICTIM, _REFUSED = "CallbackErrorImpactingInteractivity", "CallbackErrorInnocentVictim", "SubmissionsIgnored"
DEFAULT_HINT = "close other programs, or use a smaller model"
# ml-explore/mlx#3267: only a display that sleeps helped on every Mac. dgrauet/ltx-2-mlx#78, atomantic/PortOS#1749: with
# the variable alone, an M5 Max still failed. So we do not set it.
_LET_SLEEP = (
    "macOS stops long work of the GPU while the display is on: let the display sleep (caffeinate -i keeps the Mac "
    "awake); if that is not enough, set AGX_RELAX_CDM_CTXSTORE_TIMEOUT=1, which is undocumented, does not help on "
    "every Mac, and makes the screen less smooth"
)
_OTHER_WORK = "other work on this GPU has failed and stopped this one; if the command has ended, start it again"
_START_AGAIN = "start the command again: macOS accepts no more work for the GPU from this process"
_CHECK = "run `mlxbert doctor --check` to find out whether this device computes correctly"


class StoppedError(DeviceError):
    """macOS has stopped or discarded work of the GPU. The same work may succeed when it is repeated."""


_seen = 0


def errors_seen() -> int:
    """The number of device errors so far; the results of work that was started before the last error may be wrong."""
    return _seen


@contextmanager
def device_errors(smaller: str = DEFAULT_HINT, *, wait: bool = True) -> Iterator[None]:
    """Converts the device's errors in the block to DeviceErrors; other RuntimeErrors are raised unchanged.

    Releases the arrays that the frames of the traceback hold, so that there is memory for another attempt.

    Args:
        smaller: The hint for errors that may be avoided by doing less work at a time.
        wait: Whether to wait at the end of the block until a GPU has finished all its work. Without waiting, only
            errors that are known by then are raised, which suffices if the block has read the results of its work.
    """
    global _seen
    try:
        yield
        if (mx := _on_gpu()) is not None:
            mx.synchronize() if wait else mx.async_eval(mx.arange(1))
    except Exception as raised:
        # Undefined results of failed work can cause any other error. After one that is known, more of the work may have
        # been discarded, but that is not the cause.
        problem = raised if is_of_device(raised) else _pending_error()
        _seen += problem is not None
        if problem is None or isinstance(raised, DeviceError):
            raise
        text = _one_line(problem)
        traceback.clear_frames(raised.__traceback__)
        if _MEMORY.search(text):
            raise OutOfMemoryError(f"the device is out of memory: {text}", hint=smaller) from problem
        message = f"the device failed: {text}"
        if _TOO_LONG.search(text):
            raise StoppedError(message, hint=smaller) from problem
        if _DISPLAY in text:
            raise StoppedError(message, hint=_LET_SLEEP) from problem
        if _VICTIM in text:
            raise StoppedError(message, hint=_OTHER_WORK) from problem
        # A process whose work is refused stays refused (jundot/omlx#3706), so it is not worth another attempt.
        raise DeviceError(message, hint=_START_AGAIN if _REFUSED in text else _CHECK) from problem


def _on_gpu() -> Any:
    """Returns the module `mlx.core` if it has been imported and computes on a GPU; otherwise `None`.

    Does not import MLX itself, because programs start faster without it.
    """
    device = sys.modules.get("mlxbert.machine.device")
    return device.mx if device is not None and device.on_gpu() else None


def is_of_device(problem: Exception) -> bool:
    """Whether an error of MLX means that the device failed, rather than that an argument was wrong."""
    return isinstance(problem, RuntimeError) and _DEVICE.match(_one_line(problem)) is not None


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())


def _pending_error() -> Exception | None:
    """Waits for a GPU's work, and returns its error if it failed."""
    try:
        if (mx := _on_gpu()) is not None:
            mx.synchronize()
    except RuntimeError as problem:
        return problem if is_of_device(problem) else None
    return None


def free_memory() -> None:
    """Waits until a GPU has finished its work, ignores that work's errors, and frees MLX's cached memory."""
    from mlxbert.machine.device import mx

    with suppress(DeviceError), device_errors():
        pass
    mx.clear_cache()
