"""The elements of a check: a computation with its reference, and the operation that it belongs to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.bench.device_check.formulas import F64
from mlxbert.machine.device import mx

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
# Allowed errors, see `ComputedOperation.error`. TF32 exceeds the first by far.
ALLOWED = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
# The weight of the root mean squared error: chosen so that a result that is 1 % too large fails in every dtype, and the
# rounding of half precision, a tenth to a third of a percent, passes.
_MEAN = 6


@dataclass(frozen=True)
class ComputedOperation:
    """A result of an operation, with its reference.

    Attributes:
        name: The name of the computation, with its shape.
        found: The result, not evaluated yet.
        expected: The reference, computed in float64.
        exact: Whether both must be equal.
        factor: The factor of the allowed error.
        odd: Whether no published model has such a shape.
    """

    name: str
    found: mx.array
    expected: F64 | NDArray[Any]
    exact: bool = False
    factor: float = 1.0
    odd: bool = False

    def error(self) -> float:
        """Returns the relative error; infinite if the result is not finite or has the wrong shape.

        It is the larger of the largest difference as a share of the largest expected value, and `_MEAN` times the root
        mean squared error as a share of the root mean square; the largest difference if all expected values are 0.
        """
        found, expected = as_float64(self.found), np.asarray(self.expected, np.float64)
        if found.shape != expected.shape or not np.isfinite(found).all():
            return float("inf")
        errors, length = found - expected, float(np.linalg.norm(expected))
        largest = float(np.abs(errors).max())
        if not length:
            return largest
        return max(largest / float(np.abs(expected).max()), _MEAN * float(np.linalg.norm(errors)) / length)


class RandomInputs:
    """Random inputs in a dtype, with the same values in float64, so that only the error of the operation counts.

    Args:
        dtype: The dtype.
        few: Whether few shapes are enough.
    """

    def __init__(self, dtype: mx.Dtype, *, few: bool = False) -> None:
        self._rng, self.dtype, self.few = np.random.default_rng(1), dtype, few

    @property
    def wide(self) -> bool:
        """Whether the dtype is float32."""
        return self.dtype == mx.float32

    def draw(self, *shape: int, scale: float = 1.0) -> tuple[mx.array, F64]:
        """Draws normally distributed numbers with the standard deviation `scale`."""
        array = mx.array(self._rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(self.dtype)
        return array, as_float64(array)

    def ids(self, limit: int, *shape: int) -> NDArray[np.int32]:
        """Draws integers from 0 to `limit - 1`."""
        return self._rng.integers(0, limit, shape, np.int32)


Make = Callable[[RandomInputs], Iterator[ComputedOperation]]


@dataclass(frozen=True)
class CheckedOperation:
    """An operation of models, with its checks.

    Attributes:
        name: The name; names of gradients start with `gradient of`.
        group: The group of its checks.
        make: Makes the checks in a dtype.
        dtypes: The dtypes in which it is checked.
        uses: The operations that it consists of: if one of them is wrong, it is wrong, too.
        quick: The dtypes in a quick check; empty if it is not part of one.
    """

    name: str
    group: str
    make: Make
    dtypes: tuple[mx.Dtype, ...] = DTYPES
    uses: frozenset[str] = frozenset()
    quick: tuple[mx.Dtype, ...] = ()

    def check(self, dtype: mx.Dtype, *, few: bool = False) -> Iterator[ComputedOperation]:
        """Yields the checks in a dtype; with `few`, only some."""
        return self.make(RandomInputs(dtype, few=few))


def as_float64(array: mx.array) -> F64:
    """Converts an array of MLX to numpy in float64."""
    return np.array(array.astype(mx.float32)).astype(np.float64)
