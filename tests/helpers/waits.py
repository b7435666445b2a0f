"""Counts how often Python waits for the device: every call that needs the values of an array is counted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlxbert.machine.device import mx, nn

_READS = ("item", "tolist", "__bool__", "__int__", "__float__", "__array__")
_WAITING: list[tuple[Any, str]] = [
    *((mx.array, name) for name in _READS), (mx, "eval"), (np, "array"), (np, "asarray"),
]  # fmt: skip


class Waits:
    """A counter of waits.

    Attributes:
        count: The number of waits so far.
    """

    def __init__(self) -> None:
        self.count = 0
        self._known: dict[int, mx.array] = {}  # the arrays themselves: an id may be given to another

    def note(self, arrays: list[mx.array]) -> None:
        """Counts one wait, unless all of these arrays have been waited for before."""
        new = [array for array in arrays if id(array) not in self._known]
        self._known |= {id(array): array for array in new}
        self.count += bool(new)


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[Waits]:
    """Counts the waits within the context, on the code paths of a GPU.

    Compiling is disabled, because it needs a C++ compiler.
    """
    waits = Waits()

    def noting(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **named: Any) -> Any:
            waits.note(
                [leaf for leaf in dict(nn.utils.tree_flatten(list(arguments))).values() if isinstance(leaf, mx.array)]
            )
            return call(*arguments, **named)

        return instead

    def all_waited_for() -> None:
        waits.count += 1

    with patch.context() as within:
        within.setattr(mx, "default_device", lambda: SimpleNamespace(type=mx.DeviceType.gpu))
        within.setattr(mx, "set_default_device", lambda device: None)
        for place, name in _WAITING:
            within.setattr(place, name, noting(getattr(place, name)))
        within.setattr(mx, "synchronize", all_waited_for)
        mx.disable_compile()
        try:
            yield waits
        finally:
            mx.enable_compile()
