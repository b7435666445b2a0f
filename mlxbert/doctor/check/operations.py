"""The building blocks of a check: computations with their references, and the operations that they belong to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.config import EncoderConfig, Rotary
from mlxbert.doctor.check import formulas
from mlxbert.doctor.check.formulas import F64
from mlxbert.machine.device import mx
from mlxbert.nn.activations import ACTIVATIONS

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
# Allowed errors, see `ComputedOperation.error`. TF32 exceeds the first by far.
ALLOWED = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
# The weight of the root mean squared error: chosen so that a result that is 1 % too large fails in every dtype, and the
# rounding of half precision, a tenth to a third of a percent, passes.
_MEAN = 6


@dataclass(frozen=True)
class ComputedOperation:
    """A result of an operation, and its reference."""

    name: str  # the name of the computation, with its shape
    found: mx.array  # the result, which is not evaluated yet
    expected: F64 | NDArray[Any]  # the reference, computed in float64
    exact: bool = False  # whether the result must equal the reference
    factor: float = 1.0  # the factor by which the allowed error is multiplied
    odd: bool = False  # whether the shape occurs in no published model

    def error(self) -> float:
        """Returns the relative error; infinite if the result is not finite or has the wrong shape.

        The relative error is the larger of two numbers: the largest difference as a share of the largest expected
        value, and `_MEAN` times the root mean squared error as a share of the expected root mean square. If all
        expected values are 0, it is the largest difference.
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
    """Draws random inputs in a dtype, and the same values in float64, so that only the operation's error counts.

    Args:
        few: Whether a check with few shapes is enough.
    """

    def __init__(self, dtype: mx.Dtype, *, few: bool = False) -> None:
        self._rng, self.dtype, self.few = np.random.default_rng(1), dtype, few

    @property
    def wide(self) -> bool:
        return self.dtype == mx.float32

    def draw(self, *shape: int, scale: float = 1.0) -> tuple[mx.array, F64]:
        """Draws normally distributed numbers with the standard deviation `scale`; also returns them in float64."""
        array = mx.array(self._rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(self.dtype)
        return array, as_float64(array)

    def ids(self, limit: int, *shape: int) -> NDArray[np.int32]:
        """Draws integers from 0 to `limit - 1`."""
        return self._rng.integers(0, limit, shape, np.int32)


Make = Callable[[RandomInputs], Iterator[ComputedOperation]]


@dataclass(frozen=True)
class CheckedOperation:
    """An operation that models use, with its checks."""

    name: str  # the name of the operation; for a gradient, it starts with `gradient of`
    group: str  # the group that findings about the operation belong to
    make: Make  # a function that yields the checks for the given inputs
    dtypes: tuple[mx.Dtype, ...] = DTYPES
    # The operations that it consists of; if one of them is wrong, this operation is wrong, too.
    uses: frozenset[str] = frozenset()
    quick: tuple[mx.Dtype, ...] = ()  # the dtypes in which a quick check includes the operation; empty if it does not

    def check(self, dtype: mx.Dtype, *, few: bool = False) -> Iterator[ComputedOperation]:
        """Yields the checks of the operation in a dtype; if `few` is true, fewer shapes are checked."""
        return self.make(RandomInputs(dtype, few=few))


def as_float64(array: mx.array) -> F64:
    """Converts an MLX array to a numpy array in float64."""
    return np.array(array.astype(mx.float32)).astype(np.float64)


def kind_of(config: EncoderConfig) -> tuple[object, ...]:
    """Returns the structure of an encoder, apart from sizes, names, biases and activations.

    Most BERT variants have the same structure.
    """
    positions = config.positions
    rotations = positions.rotations if isinstance(positions, Rotary) else ()
    return (
        type(positions), config.block, config.norm, config.gated, config.experts is None, config.query_key_norm,
        config.num_key_value_heads is None, config.convolution is None, any(rotation.window for rotation in rotations),
        any(rotation.causal for rotation in rotations),
    )  # fmt: skip


def operations_of(config: EncoderConfig) -> frozenset[str]:
    """Returns the names of the operations of `mlxbert.doctor.check.kernels` that a model uses."""
    transforms = [facts.transform.activation for facts in config.heads.values() if facts.transform is not None]
    convolution = [] if config.convolution is None else [config.convolution.activation]
    used = {config.hidden_act, *transforms, *convolution, *(["tanh"] if config.pooler else [])}
    operations = {
        next((key for key in formulas.ACTIVATIONS if ACTIVATIONS[key] is ACTIVATIONS[name]), name) for name in used
    }
    operations |= {"products", "linear layers", "attention", "attention weights", "rows of a table"}
    if "gelu" in operations:
        operations.add("activated layers")  # checked only with gelu
    operations.add("layer norm" if config.norm == "layer" else "RMS norm")
    if isinstance(config.positions, Rotary):
        operations.add("rotation")
    return frozenset(operations | ({"mixture of experts"} if config.experts else set()))
