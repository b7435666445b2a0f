"""What files of weights have in common, whatever their format: what they say of their tensors, and reading one of them.

A reader of a format gives the header of a file first: names, dtypes and shapes, checked against the size of the file
before any memory is taken for data. Names and shapes are those that transformers has in memory; a format with a
spelling of its own says what the file calls a tensor. Data is read tensor by tensor, when it is asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from mlxbert.device import mx

if TYPE_CHECKING:
    import numpy as np

V = TypeVar("V")

MAX_SIZE = 2**31 - 1  # of one axis, the limit of MLX
# Bytes of one number, by the names that safetensors has for dtypes.
BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2}
BYTES |= {"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}
FLOATS = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}  # what weights are, the widest first
_DTYPES = {
    "BOOL": mx.bool_, "U8": mx.uint8, "I8": mx.int8, "U16": mx.uint16, "I16": mx.int16,
    "U32": mx.uint32, "I32": mx.int32, "U64": mx.uint64, "I64": mx.int64, **FLOATS,
}  # fmt: skip


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of a tensor.

    Attributes:
        dtype: One of `BYTES`.
        shape: As transformers has it in memory.
        file: Where it lies.
        stored_as: What the file calls it, if that is not its name.
    """

    dtype: str
    shape: tuple[int, ...]
    file: Path
    stored_as: str | None = None


@dataclass(frozen=True)
class Header:
    """What one file says of itself.

    Attributes:
        tensors: What it says of each tensor, by name.
        metadata: The free text beside them.
        size: How many bytes the file has.
        skipped: What else it holds, by its own names: what an optimizer needs, counters.
        beside: Other files that belong to it: an index that names it, or where its data lies.
    """

    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    size: int
    skipped: tuple[str, ...] = ()
    beside: tuple[Path, ...] = ()


class Lazy(Mapping[str, V], Generic[V]):
    """Values by name, tensors say, each read when it is asked for and kept by whoever asked.

    Args:
        names: What there is.
        read: Gives the value of a name.
    """

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


class Storage(Protocol):
    """A way to store matrices that are no plain numbers: several tensors stand for one."""

    @property
    def name(self) -> str:
        """What to call it."""

    @property
    def dtype(self) -> str:
        """What to call the dtype of a matrix that is stored so."""

    def meant(self, folder: Path, tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
        """The tensors that are meant by those that are stored.

        Raises:
            CheckpointError: Those that stand for one matrix do not belong together.
        """

    def expand(self, arrays: Mapping[str, mx.array], name: str, dtype: mx.Dtype) -> mx.array:
        """The matrix `name` in `dtype`, from the tensors that are stored."""

    def steps(self, array: mx.array) -> mx.array:
        """How far a number may have been from the one that is stored for it, of rows of an expanded matrix."""


def from_bytes(raw: "np.ndarray[Any, Any]", dtype: str, shape: tuple[int, ...]) -> mx.array:
    """The tensor that these bytes are, little-endian and row by row: one copy of them.

    Args:
        raw: uint8, one axis; a map of a file, say.
        dtype: One of `BYTES`, but F64, which no GPU of Apple computes with.
        shape: Of the tensor.
    """
    if raw.size == 0:
        return mx.zeros(shape, dtype=_DTYPES[dtype])
    whole = mx.array(raw)
    return (whole.astype(mx.bool_) if dtype == "BOOL" else whole.view(_DTYPES[dtype])).reshape(shape)
