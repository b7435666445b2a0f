"""What is to be known of a record until its result is there: where it ends in the input, and what is kept of it."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeVar

T = TypeVar("T")


class Places:
    """Records are read ahead of the model: a bar must not count those that have no result.

    Args:
        read: Bytes of the input read so far.

    Attributes:
        kept: What results get of the last record that `after` counted.
    """

    def __init__(self, read: Callable[[], int] = lambda: 0) -> None:
        self._read = read
        self._waiting: deque[tuple[int, Mapping[str, Any]]] = deque()  # the records after the first `_passed` ones
        self._passed = self._end = 0
        self.kept: Mapping[str, Any] = MappingProxyType({})

    def following(self, records: Iterator[tuple[T, Mapping[str, Any]]]) -> Iterator[T]:
        """The records, which come with what is kept of each."""
        for record, kept in records:
            self._waiting.append((self._read(), kept))
            yield record

    def after(self, count: int) -> int:
        """Bytes of the first `count` records; `count` never falls."""
        while self._passed < count and self._waiting:
            self._end, self.kept = self._waiting.popleft()
            self._passed += 1
        return self._end
