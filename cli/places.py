"""How much of the input has results: records are read ahead of the model, which a bar must not count."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


class Places:
    """Where records end in their input.

    Args:
        read: Bytes of the input read so far.
    """

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._ends: deque[int] = deque()  # of the records after the first `_passed` ones
        self._passed = self._end = 0

    def following(self, records: Iterator[T]) -> Iterator[T]:
        """The records; their ends are remembered."""
        for record in records:
            self._ends.append(self._read())
            yield record

    def after(self, count: int) -> int:
        """Bytes of the first `count` records; `count` never falls."""
        while self._passed < count and self._ends:
            self._end = self._ends.popleft()
            self._passed += 1
        return self._end
