"""One computation next to its reference: what a check is made of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.bench.device_check.formulas import F64
from mlxbert.machine.device import mx

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
# Allowed errors, see `ComputedOperation.error`. TF32 misses the first by far.
ALLOWED = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
# The root of the mean squared error counts this many times: a factor of 1.01 misses all of them, and the rounding of
# half precision, a tenth to a third of a percent, none.
_MEAN = 6


@dataclass(frozen=True)
class ComputedOperation:
    """What an operation computed.

    Attributes:
        name: What was computed, with its shape.
        found: The result; nothing is evaluated yet.
        expected: The result in float64.
        exact: Whether both have to be equal.
        factor: How much more error is allowed than of others.
        odd: Whether no published model has such a shape.
    """

    name: str
    found: mx.array
    expected: F64 | NDArray[Any]
    exact: bool = False
    factor: float = 1.0
    odd: bool = False

    def error(self) -> float:
        """The error as a share of what is expected; infinite where the result is not finite or has another shape.

        The larger of the largest difference as a share of the largest expected value, and of the mean error as a share
        of the mean value, see `_MEAN`. Where 0 is expected everywhere, the largest difference.
        """
        found, expected = as_float64(self.found), np.asarray(self.expected, np.float64)
        if found.shape != expected.shape or not np.isfinite(found).all():
            return float("inf")
        away, length = found - expected, float(np.linalg.norm(expected))
        largest = float(np.abs(away).max())
        if not length:
            return largest
        return max(largest / float(np.abs(expected).max()), _MEAN * float(np.linalg.norm(away)) / length)


class RandomInputs:
    """Random inputs in a dtype, and the same values in float64: only the operation's own error counts.

    Args:
        dtype: The dtype.
        few: Whether few shapes are enough.
    """

    def __init__(self, dtype: mx.Dtype, *, few: bool = False) -> None:
        self._rng, self.dtype, self.few = np.random.default_rng(1), dtype, few

    @property
    def wide(self) -> bool:
        """Whether they are float32."""
        return self.dtype == mx.float32

    def draw(self, *shape: int, scale: float = 1.0) -> tuple[mx.array, F64]:
        """Normal numbers with the standard deviation `scale`."""
        array = mx.array(self._rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(self.dtype)
        return array, as_float64(array)

    def ids(self, most: int, *shape: int) -> NDArray[np.int32]:
        """Integers from 0 to `most - 1`."""
        return self._rng.integers(0, most, shape, np.int32)


Make = Callable[[RandomInputs], Iterator[ComputedOperation]]


@dataclass(frozen=True)
class CheckedOperation:
    """Something that models are computed with, and its checks.

    Attributes:
        name: Its name; that of a gradient starts with `gradient of`.
        group: The group of its checks.
        make: Makes the checks in a dtype.
        dtypes: The dtypes in which it is checked.
        uses: The operations that it computes with: where one of them is wrong, it is wrong, too.
        quick: The dtypes of a quick check; empty if it is not in one.
    """

    name: str
    group: str
    make: Make
    dtypes: tuple[mx.Dtype, ...] = DTYPES
    uses: frozenset[str] = frozenset()
    quick: tuple[mx.Dtype, ...] = ()

    def check(self, dtype: mx.Dtype, *, few: bool = False) -> Iterator[ComputedOperation]:
        """The checks in a dtype, or few of them."""
        return self.make(RandomInputs(dtype, few=few))


def as_float64(array: mx.array) -> F64:
    """An array of MLX for numpy."""
    return np.array(array.astype(mx.float32)).astype(np.float64)
