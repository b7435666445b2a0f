"""Types that all weight formats share: headers, tensor metadata and lazy access to tensors.

A reader first returns the header of a file: names, dtypes and shapes. The header is checked against the size of the
file before any memory is allocated for data. Names and shapes are the ones that transformers uses in memory; if a
format has other names, the name in the file is kept, too. The data of a tensor is read when the tensor is accessed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from mlxbert.errors import CheckpointError
from mlxbert.lazy_numpy import np
from mlxbert.machine.device import mx

V = TypeVar("V")

MAX_SIZE = 2**31 - 1  # elements along one axis, the limit of MLX
# Bytes per element, by the dtype names of safetensors.
BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2}
BYTES |= {"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}
FLOATS = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}  # dtypes of weights, the widest first
_DTYPES = {
    "BOOL": mx.bool_, "U8": mx.uint8, "I8": mx.int8, "U16": mx.uint16, "I16": mx.int16,
    "U32": mx.uint32, "I32": mx.int32, "U64": mx.uint64, "I64": mx.int64, **FLOATS,
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """The metadata of one tensor."""

    dtype: str  # the name of the dtype, one of `BYTES`
    shape: tuple[int, ...]  # the shape that the tensor has in transformers
    file: Path  # the file that holds the tensor
    stored_as: str | None = None  # the name in the file, if it differs from the tensor's name


@dataclass(frozen=True)
class Header:
    """The metadata of one file."""

    tensors: dict[str, TensorInfo]  # the metadata of each tensor, by name
    metadata: dict[str, str]  # the free-form strings in the header
    size: int  # the size of the file in bytes
    skipped: tuple[str, ...] = ()  # the names of entries that are not weights, such as optimizer state and counters
    # Other files that belong to this file: the index that names it, or the files that hold its data.
    companions: tuple[Path, ...] = ()


class Lazy(Mapping[str, V], Generic[V]):
    """A mapping whose values are read on access and not cached; the values are usually tensors."""

    def __init__(self, names: Iterable[str], read: Callable[[str], V]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> V:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


LazyArrays = Lazy[mx.array]


def expect_floats(tensors: Mapping[str, TensorInfo]) -> None:
    """Raises `CheckpointError` for a tensor whose dtype is not one of `FLOATS`."""
    for name, info in tensors.items():
        if info.dtype not in FLOATS:
            expected = ", ".join(FLOATS)
            raise CheckpointError(f"{info.file}: tensor {name!r} has dtype {info.dtype}, expected one of {expected}")


def from_bytes(raw: "np.ndarray[Any, Any]", dtype: str, shape: tuple[int, ...]) -> mx.array:
    """Copies little-endian, row-major bytes into a tensor.

    Args:
        raw: The bytes as uint8, (bytes,); for example a memory-mapped file.
        dtype: The name of the dtype: one of `BYTES`, but not F64, which Apple GPUs do not support.
    """
    if raw.size == 0:
        return mx.zeros(shape, dtype=_DTYPES[dtype])
    flat = mx.array(raw)
    return (flat.astype(mx.bool_) if dtype == "BOOL" else flat.view(_DTYPES[dtype])).reshape(shape)
