"""Vectors of length 1 in NumPy arrays."""

from typing import Any

from mlxbert.lazy_numpy import NDArray, np

SMALLEST_NORM = 1e-12  # as in torch.nn.functional.normalize


def unit_length(vectors: "NDArray[Any]", out: "NDArray[Any] | None" = None) -> "NDArray[Any]":
    """Returns vectors (…, W), W values each, scaled to length 1. A vector of zeros stays as it is.

    Args:
        out: The array for the result, which may be `vectors`; by default a new one.
    """
    dtype = np.result_type(vectors, np.float32)  # the squares of smaller types overflow
    lengths = np.sqrt(np.einsum("...w,...w->...", vectors, vectors, dtype=dtype))[..., None]
    scaled: NDArray[Any] = np.divide(vectors, np.maximum(lengths, SMALLEST_NORM), out=out)
    return scaled
