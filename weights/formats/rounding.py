"""Rounds a matrix to few bits so that the products of the matrix and its inputs have a small error.

The result is in MLX's layout, `codes * scale + offset`. The scale and the offset of each group of numbers in a row are
fitted by least squares. Then the columns are rounded from left to right; the remaining columns compensate for the error
so far, to the extent that the inputs of the matrix are correlated (GPTQ, arXiv:2210.17323).

Shapes: O rows (outputs), I columns (inputs), G groups of S numbers in a row.
"""

from typing import TypeAlias

from mlxbert.lazy_numpy import NDArray, np
from mlxbert.machine.device import mx

Floats: TypeAlias = "NDArray[np.float32]"

_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8)  # of a group's range: numbers at its ends may be clipped
_ITERATIONS = 5  # of rounding and fitting; further iterations hardly change the result
_DAMPING = 0.01  # times the mean square of the inputs: their products may be singular
_MAX_ERROR = 0.9  # root mean square error of a row in steps; typical is 0.4, larger errors distort the row
_BLOCK = 128  # columns whose errors are propagated at once
_ROWS = 16_384  # fitted at a time
_WORD = 32  # bits
_MIN_SCALE = 1e-7  # the smallest scale that MLX writes; float16 can represent it


def quantized(matrix: mx.array, bits: int, size: int, products: "Floats | None") -> tuple[mx.array, mx.array, mx.array]:
    """Quantizes a matrix (O, I) to the format of `mx.quantize`, but rounds it better.

    Args:
        matrix: The matrix; its numbers are finite. The scales and offsets get its dtype.
        bits: The number of bits per number, a divisor of 32.
        size: The number of numbers in a group.
        products: For each pair of inputs, the sum of their product over the texts; (I, I), finite. `None` if unknown.

    Returns:
        The words (O, I * bits / 32), the scales (O, G) and the offsets (O, G).
    """
    if products is not None and not products.diagonal().any():
        products = None
    squares = None if products is None else mx.array(damped(products).diagonal())
    parts = [fit(matrix[row : row + _ROWS], bits, size, squares) for row in range(0, matrix.shape[0], _ROWS)]
    scales, offsets = (mx.concatenate([*part]) for part in zip(*parts, strict=True))
    matrix32 = matrix.astype(mx.float32)
    scale, start = (mx.repeat(part.astype(mx.float32), size, axis=1) for part in (scales, offsets))
    codes = mx.clip(mx.round((matrix32 - start) / scale), 0, 2**bits - 1).astype(mx.uint32)
    if products is not None:
        propagated = mx.array(round_columns(np.array(matrix32), np.array(scale), np.array(start), bits, products))
        error = mx.square(propagated * scale + start - matrix32).mean(axis=1, keepdims=True)
        codes = mx.where(error <= _MAX_ERROR**2 * mx.square(scale).mean(axis=1, keepdims=True), propagated, codes)
    return packed(codes, bits), scales, offsets


def fit(matrix: mx.array, bits: int, size: int, squares: mx.array | None) -> tuple[mx.array, mx.array]:
    """Fits the scales and the offsets of all groups; both are (O, G), in the dtype of the matrix.

    Args:
        matrix: The rows, (O, I).
        bits: The number of bits per number.
        size: The number of numbers in a group.
        squares: The weight that an error has in each column, (I,); `None` if all columns have the same weight.
    """
    groups = matrix.astype(mx.float32).reshape(matrix.shape[0], -1, size)
    weights = mx.ones((1, 1, size)) if squares is None else squares.astype(mx.float32).reshape(1, -1, size)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    low, high, max_code = groups.min(axis=-1, keepdims=True), groups.max(axis=-1, keepdims=True), 2**bits - 1
    min_cost: mx.array | None = None
    for share in _SHARES:
        scale = _positive((high - low) * (share / max_code))
        offset = (high + low) / 2 - (high - low) * (share / 2)
        for _ in range(_ITERATIONS):
            scale, offset = _refit(groups, weights, mx.clip(mx.round((groups - offset) / scale), 0, max_code), scale)
        scale, offset = (part.astype(matrix.dtype).astype(mx.float32) for part in (scale, offset))
        scale = _positive(scale)
        error = groups - mx.clip(mx.round((groups - offset) / scale), 0, max_code) * scale - offset
        cost = (weights * error * error).sum(axis=-1, keepdims=True)
        if min_cost is None:
            min_cost, scales, offsets = cost, scale, offset
        else:
            better = cost < min_cost
            scales, offsets = mx.where(better, scale, scales), mx.where(better, offset, offsets)
            min_cost = mx.minimum(cost, min_cost)
        mx.eval(min_cost, scales, offsets)
    return scales[..., 0].astype(matrix.dtype), offsets[..., 0].astype(matrix.dtype)


def _refit(groups: mx.array, weights: mx.array, codes: mx.array, scale: mx.array) -> tuple[mx.array, mx.array]:
    """Returns the scales and offsets with the smallest error for these codes.

    A group keeps its scale if all of its codes are equal, or if the best scale would not be positive.
    """
    mean = (weights * codes).sum(axis=-1, keepdims=True)
    middle = (weights * groups).sum(axis=-1, keepdims=True)
    spread = (weights * mx.square(codes - mean)).sum(axis=-1, keepdims=True)
    slope = (weights * (codes - mean) * (groups - middle)).sum(axis=-1, keepdims=True) / mx.maximum(spread, 1e-12)
    scale = mx.where(mx.logical_and(spread > 0, slope > 0), slope, scale)
    return scale, middle - scale * mean


def _positive(scale: mx.array) -> mx.array:
    """Replaces scales of 0 so that division is possible.

    A scale is 0 if all numbers of a group are equal or, in float16, if they are all near 0.
    """
    return mx.where(scale > 0, scale, _MIN_SCALE)


def damped(products: "Floats") -> "NDArray[np.float64]":
    """Returns the products with a larger diagonal, so that the matrix can be inverted."""
    products64 = products.astype(np.float64)
    return products64 + np.eye(len(products64)) * (_DAMPING * products64.diagonal().mean())


def round_columns(
    matrix: "Floats", scales: "Floats", offsets: "Floats", bits: int, products: "Floats"
) -> "NDArray[np.uint32]":
    """Rounds a matrix to codes and propagates the error of each column to the following columns.

    `products` is (I, I); all other arrays are (O, I).
    """
    # Row j of the factor holds the changes of the columns from j on that compensate an error of 1 in column j.
    factor = np.linalg.cholesky(np.linalg.inv(damped(products))).T.astype(np.float32)
    rest, columns = matrix.copy(), matrix.shape[1]
    codes = np.zeros(matrix.shape, dtype=np.uint32)
    for first in range(0, columns, _BLOCK):
        end = min(first + _BLOCK, columns)
        errors = np.zeros((matrix.shape[0], end - first), dtype=np.float32)
        for j in range(first, end):
            code = np.clip(np.rint((rest[:, j] - offsets[:, j]) / scales[:, j]), 0, 2**bits - 1)
            codes[:, j] = code
            error = (rest[:, j] - code * scales[:, j] - offsets[:, j]) / factor[j, j]
            rest[:, j:end] -= np.outer(error, factor[j, j:end])
            errors[:, j - first] = error
        rest[:, end:] -= errors @ factor[first:end, end:]
    return codes


def packed(codes: mx.array, bits: int) -> mx.array:
    """Packs codes (O, I) into words (O, I * bits / 32), with the first code in the lowest bits."""
    per_word = _WORD // bits
    shifts = mx.arange(per_word, dtype=mx.uint32) * bits
    return mx.left_shift(codes.reshape(codes.shape[0], -1, per_word), shifts).sum(axis=-1).astype(mx.uint32)
