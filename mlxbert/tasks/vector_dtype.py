"""Vectors in fewer bits. D width of a vector as the model computes it."""

from typing import TYPE_CHECKING

from mlxbert.counterparts import not_one_of
from mlxbert.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

OUTPUT_DTYPES = ("float32", "int8", "binary")
_MOST = 127  # int8 without -128: the range is the same on both sides of 0


def check_output_dtype(output_dtype: str, width: int) -> None:
    """Refuses an unknown dtype, and one that vectors of D values cannot have."""
    if output_dtype not in OUTPUT_DTYPES:
        raise not_one_of("output_dtype", output_dtype, OUTPUT_DTYPES)
    if output_dtype == "binary" and width % 8:
        raise ArgumentError(
            f"output_dtype is 'binary', and the vectors have {width} values, expected a multiple of 8",
            hint=f"dimensions={width - width % 8} keeps as many" if width > 8 else None,
        )


def stored_width(output_dtype: str, width: int) -> int:
    """How many values a vector has when it is stored: eight dimensions share a byte in `binary`."""
    return width // 8 if output_dtype == "binary" else width


def as_dtype(vector: "NDArray[np.float32]", output_dtype: str) -> "NDArray[np.float32] | NDArray[np.int8]":
    """A vector (D,) as `float32`; as `int8`, round(127 · x / max|x|); or as `binary`, int8 (D / 8,).

    `binary` is that of sentence-transformers' `quantize_embeddings`: a bit says whether a value is above 0, the first
    value is the highest bit of the first byte, and 128 is subtracted from each byte.
    """
    import numpy as np

    if output_dtype == "float32":
        return vector
    if output_dtype == "binary":
        return (np.packbits(vector > 0).astype(np.int16) - 128).astype(np.int8)
    most = float(np.abs(vector).max())
    return np.rint(vector * (_MOST / most) if most else vector).astype(np.int8)
