"""8-bit storage, one scale per row: how the built-in model travels.

A matrix W becomes int8 Q and float32 s, one s per row, with W ~ Q * s; vectors stay float16. This is a way to store
weights, not to compute with them: they are expanded when they are loaded. `x.weight` has its scales in
`x.weight_scale`.
"""

from collections.abc import Mapping

from mlxbert.device import mx
from mlxbert.errors import CheckpointError

STORAGE_KEY, STORAGE = "mlxbert.storage", "int8-per-row"
_SUFFIX = "_scale"


def is_scale(name: str) -> bool:
    """Whether a tensor of this name holds the scales of another."""
    return name.endswith(_SUFFIX)


def pack(arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Matrices as int8 with a scale per row, everything else as float16."""
    packed = {}
    for name, array in arrays.items():
        if array.ndim != 2:
            packed[name] = array.astype(mx.float16)
            continue
        wide = array.astype(mx.float32)
        scale = mx.maximum(mx.abs(wide).max(axis=1), 1e-12) / 127
        packed[name] = mx.round(wide / scale[:, None]).astype(mx.int8)
        packed[name + _SUFFIX] = scale
    return packed


def expand(arrays: Mapping[str, mx.array], dtype: mx.Dtype) -> dict[str, mx.array]:
    """Undoes `pack`, lazily, in `dtype`.

    Raises:
        CheckpointError: An int8 tensor without its scales.
    """
    expanded = {}
    for name, array in arrays.items():
        if is_scale(name):
            continue
        if array.dtype == mx.int8:
            scale = arrays.get(name + _SUFFIX)
            if scale is None or scale.shape != array.shape[:1]:
                raise CheckpointError(f"tensor {name!r} is stored in 8 bits, its scales {name + _SUFFIX!r} do not fit")
            array = (array.astype(mx.float32) * scale[:, None]).astype(dtype)  # rounded once, not twice
        expanded[name] = array
    return expanded
