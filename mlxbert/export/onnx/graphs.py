"""Reads what a function of a batch computes, for batches of any size.

MLX records the operations of a function with the sizes of one batch. Here a function is recorded for several batches:
numbers that differ between the records are sizes, and are written as formulas of the batch's rows and length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import MlxbertError
from mlxbert.machine.device import mx, plain_graphs

Values = NDArray[Any]


@dataclass(frozen=True)
class Size:
    """A whole number that depends on the batch, as a polynomial of the number of rows B and the length L in tokens."""

    factors: tuple[int, ...]  # the factors of 1, B, L, B L and L²

    @staticmethod
    def terms(rows: int, length: int) -> tuple[int, ...]:
        """The values that the factors are multiplied by, for a batch."""
        return 1, rows, length, rows * length, length * length

    def at(self, rows: int, length: int) -> int:
        return sum(factor * term for factor, term in zip(self.factors, self.terms(rows, length), strict=True))


Number = int | Size
Shape = tuple[Number, ...]


@dataclass(frozen=True)
class Operation:
    """A primitive of MLX."""

    name: str  # the name of the primitive
    inputs: tuple[str, ...]  # the names of the arrays that it takes
    outputs: tuple[str, ...]  # the names of the arrays that it returns
    arguments: list[Any]  # its other arguments; sizes among them are of the class `Size`


@dataclass(frozen=True)
class Constant:
    """An array that does not depend on the inputs."""

    values: Values  # the values for the longest batch that was recorded
    start: Number = 0  # where the values of a batch start, if they are a part of `values`
    count: Number | None = None  # the number of values of a batch; `None` for all


@dataclass(frozen=True)
class Graph:
    """What a function computes."""

    inputs: tuple[str, ...]  # the names of the inputs, (B, L) each
    outputs: tuple[str, ...]  # the names of the outputs
    constants: dict[str, Constant | Size]  # the constants by name; a scalar that depends on the batch is a `Size`
    operations: list[Operation]  # the operations, in an order in which they can be computed
    shapes: dict[str, Shape]  # the shape of each array
    dtypes: dict[str, mx.Dtype]  # the dtype of each array


def record(function: Callable[..., Sequence[mx.array]], inputs: int, longest: int) -> Graph:
    """Records a function of int32 arrays (B, L).

    Args:
        function: Takes arrays and returns arrays. It may branch on sizes, but must take the same branches for all
            batches that are recorded.
        longest: The length of the longest batch to record, at least 6. For constants that depend on the length, this
            is the longest batch for which the graph is valid.

    Raises:
        MlxbertError: The function does something else for another batch, or `longest` is less than 6.
    """
    if longest < 6:
        raise MlxbertError(f"the model takes at most {longest} tokens, expected at least 6 to record its operations")
    batches = [(2, longest - 4), (2, longest - 3), (3, longest - 4), (3, longest - 2), (5, longest - 1), (4, longest)]
    records = [_Recording(function, [mx.zeros(batch, mx.int32)] * inputs) for batch in batches]
    first = records[0]
    for other in records[1:]:
        if other.structure != first.structure:
            raise MlxbertError(f"a batch of another size takes other operations: {_first_difference(first, other)}")
    merged = _Merge(batches)
    return Graph(
        inputs=first.inputs,
        outputs=first.outputs,
        constants={name: merged.constant([one.constants[name] for one in records]) for name in first.constants},
        operations=[
            Operation(*names, merged.value(arguments))
            for names, arguments in zip(
                first.structure, zip(*(each.arguments for each in records), strict=True), strict=True
            )
        ],
        shapes={name: tuple(merged.value([one.shapes[name] for one in records])) for name in first.shapes},
        dtypes=first.dtypes,
    )


def _first_difference(first: "_Recording", other: "_Recording") -> str:
    pairs = zip(first.structure, other.structure, strict=False)
    return next((f"{a[0]}, {b[0]}" for a, b in pairs if a != b), "their number")


class _Recording:
    """The operations of a function for one batch."""

    def __init__(self, function: Callable[..., Sequence[mx.array]], arrays: Sequence[mx.array]) -> None:
        self.inputs: tuple[str, ...] = ()
        self.outputs: tuple[str, ...] = ()
        self.constants: dict[str, mx.array] = {}
        self.structure: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = []
        self.arguments: list[list[Any]] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, mx.Dtype] = {}
        with plain_graphs():
            mx.export_function(self._read, function, *arrays)

    def _read(self, entry: dict[str, Any]) -> None:
        match entry["type"]:
            case "inputs":
                self.inputs = self._names(entry["inputs"])
            case "outputs":
                self.outputs = self._names(entry["outputs"])
            case "constants":
                self.constants = dict(entry["constants"])
                self._names([(name, array.shape, array.dtype) for name, array in entry["constants"]])
            case "primitive":
                names = self._names(entry["inputs"]), self._names(entry["outputs"])
                self.structure.append((entry["name"], *names))
                self.arguments.append(list(entry["arguments"]))

    def _names(self, arrays: Sequence[tuple[str, tuple[int, ...], mx.Dtype]]) -> tuple[str, ...]:
        for name, shape, dtype in arrays:
            self.shapes[name], self.dtypes[name] = tuple(shape), dtype
        return tuple(name for name, _, _ in arrays)


class _Merge:
    """Turns the values of the recorded batches into one value for all batches."""

    def __init__(self, batches: Sequence[tuple[int, int]]) -> None:
        self.batches = batches

    def value(self, values: Sequence[Any]) -> Any:
        """Merges arguments: numbers, lists of numbers, or what is the same for all batches."""
        first = values[0]
        if isinstance(first, list | tuple):
            if len({*map(len, values)}) != 1:
                raise MlxbertError(f"the number of arguments depends on the batch: {values}")
            return [self.value(each) for each in zip(*values, strict=True)]
        if all(value == first for value in values):
            return first
        if not all(isinstance(value, int | float) and value == int(value) for value in values):
            raise MlxbertError(f"an argument depends on the batch, but is not a whole number: {values}")
        return self._size([*map(int, values)])

    def _size(self, values: list[int]) -> Size:
        terms = [Size.terms(*batch) for batch in self.batches]
        solved = np.linalg.lstsq(np.array(terms, np.float64), np.array(values, np.float64), rcond=None)[0]
        size = Size(tuple(int(factor) for factor in solved.round()))
        if [size.at(*batch) for batch in self.batches] != values:
            raise MlxbertError(f"a size is not a polynomial of the rows and the length of a batch: {values}")
        return size

    def constant(self, arrays: Sequence[mx.array]) -> Constant | Size:
        """Merges a constant. If it depends on the length, each must be the middle part of that of the longest batch."""
        table = np.array(arrays[-1], copy=False)
        if all(_same(array, arrays[-1]) for array in arrays):
            return Constant(table)
        if not table.ndim:
            number: Size = self.value([array.item() for array in arrays])
            return number
        longest = self.batches[-1][1]
        start, count = Size((longest, 0, -1, 0, 0)), self.value([array.size for array in arrays])
        for array, batch in zip(arrays, self.batches, strict=True):
            part = table[start.at(*batch) :][: array.size]
            if not np.array_equal(np.array(array), part):
                raise MlxbertError("a constant depends on the batch, but is not a part of the longest batch's constant")
        return Constant(table, start, count)


def _same(a: mx.array, b: mx.array) -> bool:
    """Whether two constants are equal; weights are the same memory."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    views = np.array(a, copy=False), np.array(b, copy=False)
    return views[0].ctypes.data == views[1].ctypes.data or np.array_equal(*views)
