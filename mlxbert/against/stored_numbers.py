"""What the numbers of vectors are: floats, or one of the formats with fewer bits; and their lengths.

Shapes: N texts, W size of a vector of the model.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlxbert.nn.embedder import SMALLEST_NORM
from mlxbert.results.vector_verification import VectorSizes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]

_MIN_FITTED = 20  # texts from which the range of each dimension can be estimated
_FITTED = 0.99  # the median cosine of vectors that were converted back with the right ranges
# What rounding costs at least, as 1 - cosine.
_ROUNDING = {"int8": 1e-3, "binary": 0.03}


@dataclass(frozen=True)
class StoredNumbers:
    """Vectors of another program, and the format of their numbers.

    Attributes:
        rows: The vectors with a value for each dimension, (N, up to W); bits are 1 and -1.
        kind: `float32`, `float16`, `bfloat16`, `int8` or `binary`.
        ranged: Whether each dimension of `int8` had a range of its own, as in sentence-transformers; `rows` are then
            converted back.
        lengths: The lengths of the vectors, (N,).
    """

    rows: "Floats"
    kind: str
    ranged: bool
    lengths: "Floats"

    @property
    def width(self) -> int:
        """The number of dimensions."""
        return int(self.rows.shape[1])

    def facts(self) -> VectorSizes:
        """Returns the sizes for the result."""
        return VectorSizes(self.width, self.kind, float(self.lengths.min()), float(self.lengths.max()))

    def cosines(self, vectors: "Floats", numbers: Any) -> "Floats":
        """Returns the cosines between some of these vectors and the model's vectors of the same texts.

        The model's vectors are first shortened to the same width and stored in the same format.

        Args:
            vectors: The model's vectors, (n, W).
            numbers: The indices of their texts, (n,).
        """
        import numpy as np

        ours, theirs = vectors[:, : self.width], self.rows[numbers]
        if self.kind == "binary":
            ours = np.where(ours > 0, 1, -1)
        elif self.kind == "int8" and not self.ranged:
            ours = np.rint(ours * (_lengths(theirs) / np.maximum(_lengths(ours), SMALLEST_NORM)))
        return cosines(ours, theirs)

    def allowed(self, tolerance: float) -> float:
        """Returns the allowed value of 1 - cosine, which is higher for numbers with fewer bits."""
        return max(tolerance, _ROUNDING.get(self.kind, 0.0))

    def with_ranges(self, vectors: "Floats") -> "StoredNumbers":
        """Returns int8 vectors converted back, if each of their dimensions has a range of its own; or else `self`.

        Args:
            vectors: The model's vectors of the same texts, (N, W), by which the ranges are estimated.
        """
        import numpy as np

        numbers = np.arange(len(vectors))
        if self.kind != "int8" or len(vectors) < _MIN_FITTED or np.median(self.cosines(vectors, numbers)) > _FITTED:
            return self
        ours, means = vectors[:, : self.width], self.rows.mean(axis=0)
        centered, spread = self.rows - means, ours - ours.mean(axis=0)
        slopes = (centered * spread).sum(axis=0) / np.maximum((centered**2).sum(axis=0), SMALLEST_NORM)
        restored = replace(self, rows=(centered * slopes + ours.mean(axis=0)).astype(np.float32), ranged=True)
        return restored if np.median(restored.cosines(vectors, numbers)) > _FITTED else self


def read_numbers(vectors: "NDArray[Any]", width: int) -> StoredNumbers:
    """Finds out how the numbers of vectors are stored.

    Args:
        vectors: The vectors, (N, values).
        width: The size of the model's vectors.
    """
    import numpy as np

    rows = np.asarray(vectors, np.float32)
    lengths = np.linalg.norm(rows, axis=1)
    if not (rows == np.rint(rows)).all() or np.abs(rows).max() > 255:
        return StoredNumbers(rows, _float_kind(rows), False, lengths)
    if rows.shape[1] * 8 == width:
        packed = rows.astype(np.int16) + (128 if rows.min() < 0 else 0)
        bits = np.unpackbits(packed.astype(np.uint8), axis=1).astype(np.float32) * 2 - 1
        return StoredNumbers(bits, "binary", False, lengths)
    if np.isin(rows, (0, 1)).all() or np.isin(rows, (-1, 1)).all():
        return StoredNumbers(np.where(rows > 0, 1, -1).astype(np.float32), "binary", False, lengths)
    return StoredNumbers(rows, "int8", False, lengths)


def _float_kind(rows: "Floats") -> str:
    import numpy as np

    with np.errstate(over="ignore"):
        if (rows.astype(np.float16).astype(np.float32) == rows).all():
            return "float16"
    return "bfloat16" if not (rows.view(np.uint32) & 0xFFFF).any() else "float32"


def _lengths(rows: "Floats") -> "Floats":
    import numpy as np

    lengths: Floats = np.linalg.norm(rows, axis=1, keepdims=True)
    return lengths


def cosines(a: "Floats", b: "Floats") -> "Floats":
    """Returns the cosine of each row of `a` with the same row of `b`, (N,)."""
    import numpy as np

    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products: Floats = np.einsum("nw,nw->n", a, b, dtype=np.float64) / np.maximum(lengths, SMALLEST_NORM)
    return products
