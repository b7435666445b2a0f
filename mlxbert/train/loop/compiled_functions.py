"""Compiles functions that compute batches on a GPU, once for each shape.

`mx.compile` traces a function once for each shape of its inputs and then repeats the trace, in which neighboring
operations are fused into one kernel. It keeps all traces, so their number is limited to `MAX_SHAPES`; batches of
other shapes are computed operation by operation.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

from mlxbert.machine.device import mx
from mlxbert.machine.device_errors import is_of_device
from mlxbert.train.loop.adamw import Arrays

MAX_SHAPES = 64
_LOG = logging.getLogger("mlxbert")
_ARRAY = object()  # stands for an array in a structure


class Compiled:
    """A function that is compiled once for each shape of its arguments.

    The function takes parameters, keyed by name, and trees that `split` can split; it returns a tree of arrays. It must
    not depend on anything else that changes.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self._name = function, name
        self._traced: dict[Any, Callable[[Arrays, list[mx.array]], Any]] = {}
        self._usable, self._full = True, False

    @property
    def shapes(self) -> int:
        """The number of shapes for which the function has been compiled."""
        return len(self._traced)

    def __call__(self, parameters: Arrays, *arguments: Any) -> Any:
        """Calls the function, and returns its result without evaluating it."""
        if self._usable:
            try:
                return self._compiled(parameters, arguments)
            except Exception as problem:  # tracing failed, or the function itself, which raises it again below
                if is_of_device(problem):  # possibly from an earlier update; MLX raises it only once
                    raise
                self._usable = False
                _LOG.debug("%s are not compiled: %s", self._name, problem)
        return self.function(parameters, *arguments)

    def _compiled(self, parameters: Arrays, arguments: tuple[Any, ...]) -> Any:
        arrays: list[mx.array] = []
        structure = split(arguments, arrays)
        shape = structure, *((array.shape, array.dtype) for array in arrays)
        if shape in self._traced:
            return self._traced[shape](parameters, arrays)
        if self.shapes == MAX_SHAPES:
            if not self._full:
                _LOG.debug("%s are not compiled for more than %d shapes", self._name, MAX_SHAPES)
            self._full = True
            return self.function(parameters, *arguments)
        function = self.function  # not `self`, or the trace would keep itself alive

        def traced(parameters: Arrays, arrays: list[mx.array]) -> Any:
            return function(parameters, *joined(structure, iter(arrays)))

        compiled = mx.compile(traced)
        result = compiled(parameters, arrays)
        self._traced[shape] = compiled
        sizes = " ".join("x".join(map(str, array.shape)) for array in arrays if array.ndim > 1)
        _LOG.debug("%s are compiled for %s, shape %d of at most %d", self._name, sizes, self.shapes, MAX_SHAPES)
        return result


def split(tree: Any, arrays: list[mx.array]) -> Any:
    """Returns the structure of a tree, which is hashable, and appends the arrays and floats of the tree to `arrays`.

    Other values in the nested dataclasses, dictionaries, lists and tuples become part of the structure.
    """
    if isinstance(tree, mx.array | float):
        arrays.append(tree if isinstance(tree, mx.array) else mx.array(tree, mx.float32))
        return _ARRAY
    if is_dataclass(tree) and not isinstance(tree, type):
        return type(tree), *(split(getattr(tree, field.name), arrays) for field in fields(tree))
    if isinstance(tree, dict):
        return dict, *tree, *(split(value, arrays) for value in tree.values())
    if isinstance(tree, list | tuple):
        return type(tree), *(split(value, arrays) for value in tree)
    return None, tree


def joined(structure: Any, arrays: Iterator[mx.array]) -> Any:
    """Rebuilds a tree from its structure and its arrays. This is the inverse of `split`."""
    if structure is _ARRAY:
        return next(arrays)
    kind, *parts = structure
    if kind is None:
        return parts[0]
    if kind is dict:
        names = parts[: len(parts) // 2]
        return dict(zip(names, (joined(part, arrays) for part in parts[len(names) :]), strict=True))
    values = [joined(part, arrays) for part in parts]
    return kind(values) if kind in (list, tuple) else kind(*values)
