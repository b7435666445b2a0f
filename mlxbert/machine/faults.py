"""Errors of the device: MLX raises a plain `RuntimeError` for them, so they are known by its words.

The words are those of MLX 0.32: `metal/device.cpp` and `metal/allocator.cpp`; `cuda/utils.cpp`, `cuda/allocator.cpp`,
`cuda/cublas_utils.cpp` and `cuda/cudnn_utils.cpp`. After an allocation or a command of Metal that failed, the device
can be used again.
"""

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def device_errors(smaller: str = USUAL) -> Iterator[None]:
    """Makes DeviceErrors of the errors of the device within; other RuntimeErrors stay what they are.

    What failed gives up its arrays, so that there is memory for another attempt.

    Args:
        smaller: The hint where less work at a time would help.

    Raises:
        OutOfMemoryError: An allocation failed.
        DeviceError: The device failed otherwise.
    """
    try:
        yield
    except RuntimeError as problem:
        text = " ".join(str(problem).split())
        if not _DEVICE.match(text):
            raise
        traceback.clear_frames(problem.__traceback__)
        if _MEMORY.search(text):
            raise OutOfMemoryError(f"the device is out of memory: {text}", hint=smaller) from problem
        hint = smaller if _TOO_LONG.search(text) else _CHECK
        raise DeviceError(f"the device failed: {text}", hint=hint) from problem
