"""What the numbers of vectors are: floats, or one of the formats with fewer bits; and their lengths.

Shapes: N texts, W size of a vector of the model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from mlxbert.export.vector_verification import VectorSizes
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.nn.unit_vectors import SMALLEST_NORM, unit_length

Floats: TypeAlias = "NDArray[np.float32]"

_MIN_FITTED = 20  # texts from which the range of each dimension can be estimated
_FITTED = 0.99  # the median cosine of vectors that were converted back with the right ranges
_ROUNDING = {"int8": 1e-3, "binary": 0.03}  # what rounding costs at least, as 1 - cosine


@dataclass(frozen=True)
class StoredNumbers:
    """Vectors of another program, and the format of their numbers."""

    rows: "Floats"  # the vectors with a value for each dimension, (N, up to W); bits are 1 and -1
    kind: str  # `float32`, `float16`, `bfloat16`, `int8` or `binary`
    lengths: "Floats"  # the lengths of the vectors as they are stored, (N,)
    convert: "Callable[[NDArray[Any]], Floats]"  # makes `rows` of vectors as they are stored
    # Whether each dimension of `int8` had a range of its own, as in sentence-transformers; `rows` are then converted
    # back.
    ranged: bool = False

    @property
    def width(self) -> int:
        return int(self.rows.shape[1])

    def facts(self) -> VectorSizes:
        return VectorSizes(self.width, self.kind, float(self.lengths.min()), float(self.lengths.max()))

    def cosines(self, vectors: "Floats", theirs: "Floats") -> "Floats":
        """Returns the cosines between the model's vectors, (n, W), and `theirs`, which are rows of this format.

        The model's vectors are first shortened to the same width and stored in the same format.
        """
        ours = vectors[:, : self.width]
        if self.kind == "binary":
            ours = np.where(ours > 0, 1, -1).astype(np.float32)
        elif self.kind == "int8" and not self.ranged:
            ours = np.rint(unit_length(ours) * np.linalg.norm(theirs, axis=1, keepdims=True))
        cosines: Floats = np.einsum("nw,nw->n", unit_length(ours), unit_length(theirs), dtype=np.float64)
        return cosines

    def allowed(self, tolerance: float) -> float:
        """Returns the allowed value of 1 - cosine, which is higher for numbers with fewer bits."""
        return max(tolerance, _ROUNDING.get(self.kind, 0.0))

    def with_ranges(self, vectors: "Floats") -> "StoredNumbers":
        """Returns int8 vectors converted back, if each of their dimensions has a range of its own; or else `self`."""
        if self.kind != "int8" or len(vectors) < _MIN_FITTED or self._fits(vectors):
            return self
        ours, means = vectors[:, : self.width], self.rows.mean(axis=0)
        centered, spread = self.rows - means, ours - ours.mean(axis=0)
        slopes = (centered * spread).sum(axis=0) / np.maximum((centered**2).sum(axis=0), SMALLEST_NORM)

        def convert(stored: "NDArray[Any]") -> "Floats":
            return ((stored - means) * slopes + ours.mean(axis=0)).astype(np.float32)

        restored = StoredNumbers(convert(self.rows), self.kind, self.lengths, convert, ranged=True)
        return restored if restored._fits(vectors) else self

    def _fits(self, vectors: "Floats") -> bool:
        return bool(np.median(self.cosines(vectors, self.rows)) > _FITTED)


def read_numbers(vectors: "NDArray[Any]", width: int) -> StoredNumbers:
    """Finds out how the numbers of vectors are stored."""
    rows = np.asarray(vectors, np.float32)
    kind = "int8"
    convert: Callable[[NDArray[Any]], Floats] = partial(np.asarray, dtype=np.float32)
    if not (rows == np.rint(rows)).all() or np.abs(rows).max() > 255:
        kind = _float_kind(rows)
    elif rows.shape[1] * 8 == width:
        kind, convert = "binary", partial(_unpacked, zero=128 if rows.min() < 0 else 0)
    elif np.isin(rows, (0, 1)).all() or np.isin(rows, (-1, 1)).all():
        kind, convert = "binary", _signs
    return StoredNumbers(convert(rows), kind, np.linalg.norm(rows, axis=1), convert)


def _float_kind(rows: "Floats") -> str:
    with np.errstate(over="ignore"):
        if (rows.astype(np.float16).astype(np.float32) == rows).all():
            return "float16"
    return "bfloat16" if not (rows.view(np.uint32) & 0xFFFF).any() else "float32"


def _signs(bits: "NDArray[Any]") -> "Floats":
    return np.where(bits > 0, 1, -1).astype(np.float32)


def _unpacked(packed: "NDArray[Any]", zero: int) -> "Floats":
    """Returns 1 and -1 for the bits of bytes; `zero` is added to signed bytes."""
    return _signs(np.unpackbits((packed.astype(np.int16) + zero).astype(np.uint8), axis=1))
