"""Converts vectors to fewer bits.

Shapes: D values of a vector as the model computes it.
"""

from collections.abc import Sequence
from typing import Any

from mlxbert.errors import ArgumentError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.other_libraries import not_one_of

OUTPUT_DTYPES = ("float32", "int8", "binary")
TOKEN_DTYPES = ("float32", "float16", "int8", "binary")
_MAX_INT8 = 127  # -128 is not used: the range is symmetric


def check_output_dtype(output_dtype: str, width: int, allowed: Sequence[str] = OUTPUT_DTYPES) -> None:
    """Raises ArgumentError if a dtype is not one of those allowed, or impossible for vectors of D values."""
    if output_dtype not in allowed:
        raise not_one_of("output_dtype", output_dtype, allowed)
    if output_dtype == "binary" and width % 8:
        raise ArgumentError(
            f"`output_dtype` is 'binary', but the vectors have {width} values, expected a multiple of 8",
            hint=f"use `dimensions={width - width % 8}` to shorten the vectors" if width > 8 else None,
        )


def stored_width(output_dtype: str, width: int) -> int:
    """Returns the number of values of a stored vector; with `binary`, a value holds eight dimensions."""
    return width // 8 if output_dtype == "binary" else width


def as_dtype(vector: "NDArray[np.float32]", output_dtype: str) -> "NDArray[np.float32] | NDArray[np.int8]":
    """Converts a vector x (D,) to float32, to `int8` by round(127 · x / max|x|), or to `binary`: D / 8 int8 values.

    `binary` is the format of `quantize_embeddings` in sentence-transformers: each bit says whether a value is above 0,
    the first value is the highest bit of the first byte, and 128 is subtracted from each byte.
    """
    if output_dtype == "float32":
        return vector
    if output_dtype == "binary":
        return (np.packbits(vector > 0).astype(np.int16) - 128).astype(np.int8)
    largest = float(np.abs(vector).max())
    return np.rint(vector * (_MAX_INT8 / largest) if largest else vector).astype(np.int8)


def rows_as_dtype(vectors: "NDArray[np.float32]", output_dtype: str) -> "NDArray[Any]":
    """Converts vectors (T, D) to a dtype: to float16, or each row by `as_dtype`."""
    if output_dtype == "float32":
        return vectors
    if output_dtype == "float16":
        return vectors.astype(np.float16)
    if output_dtype == "binary":
        return (np.packbits(vectors > 0, axis=1).astype(np.int16) - 128).astype(np.int8)
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    return np.rint(vectors * (_MAX_INT8 / np.where(largest, largest, 1))).astype(np.int8)
