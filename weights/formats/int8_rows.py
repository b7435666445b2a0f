"""8-bit storage with one scale per row: the format of the built-in model.

A matrix W is stored as int8 numbers Q and one float32 scale s per row, so that W ≈ s * Q. Vectors stay float16. The
format is used on disk only: weights are expanded when they are loaded. `x.weight_scale` holds the scales of `x.weight`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mlxbert.errors import CheckpointError
from mlxbert.machine.device import mx
from mlxbert.weights.formats.headers import FLOATS, TensorInfo

STORAGE_KEY, STORAGE = "mlxbert.storage", "int8-per-row"
_SUFFIX = "_scale"
_ROUNDED = 1e-4  # of a step: the float32 rounding error of a quotient of up to 127


@dataclass(frozen=True)
class Int8Rows:
    """The format as a class with the same methods as `mlxbert.weights.formats.quantized.Quantization`."""

    name: str = "8 bits with a scale per row"  # for messages
    dtype: str = "I8"
    carries_errors: bool = False

    def of(self, name: str) -> "Int8Rows":
        """Returns how the matrix `name` is packed: this object, because all matrices are packed in the same way."""
        return self

    @property
    def dtypes(self) -> set[str]:
        """The dtype names that packed tensors can have."""
        return {self.dtype}

    def unpacked(self, folder: Path, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """Returns the header entries except the scales; raises `CheckpointError` if packed tensors are invalid."""
        for name, info in tensors.items():
            if info.dtype != self.dtype:
                continue
            scale = tensors.get(name + _SUFFIX)
            if len(info.shape) != 2:
                raise CheckpointError(f"{folder}: the 8-bit tensor {name!r} has shape {info.shape}, expected a matrix")
            if scale is None or scale.shape != info.shape[:1] or scale.dtype not in FLOATS:
                raise CheckpointError(
                    f"{folder}: the scales {name + _SUFFIX!r} of the 8-bit tensor {name!r} are "
                    f"{'missing' if scale is None else f'{scale.dtype} {scale.shape}'}, expected floats of shape "
                    f"{info.shape[:1]}"
                )
        scales = {name + _SUFFIX for name, info in tensors.items() if info.dtype == self.dtype}
        return {name: info for name, info in tensors.items() if name not in scales}

    def expand(self, arrays: Mapping[str, mx.array], name: str, dtype: mx.Dtype) -> mx.array:
        """Returns the expanded matrix, which is computed lazily."""
        matrix = arrays[name].astype(mx.float32) * arrays[name + _SUFFIX][:, None]
        return matrix.astype(dtype)  # rounded once, not twice

    def rounding_error(self, array: mx.array) -> mx.array:
        """Returns the maximum rounding error of each number, which is half of its row's scale."""
        return mx.broadcast_to(_scale(array) * (0.5 + _ROUNDED), array.shape)


def pack(arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Packs matrices as int8 with one scale per row, and all other arrays as float16."""
    packed = {}
    for name, array in arrays.items():
        if array.ndim != 2:
            packed[name] = array.astype(mx.float16)
            continue
        matrix = array.astype(mx.float32)
        scale = _scale(matrix)
        packed[name] = mx.round(matrix / scale).astype(mx.int8)
        packed[name + _SUFFIX] = scale[:, 0]
    return packed


def _scale(array: mx.array) -> mx.array:
    """Returns the scale of each row, (rows, 1)."""
    return mx.maximum(mx.abs(array).max(axis=1, keepdims=True), 1e-12) / 127
