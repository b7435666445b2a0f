"""Immutable mappings, for constants and for the fields of frozen dataclasses."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

V = TypeVar("V")


class FrozenDict(Mapping[str, V]):
    """An immutable dictionary that keeps the order of its entries.

    It equals any mapping with the same entries, and is hashable if its values are.

    Args:
        entries: A mapping, or pairs of names and values.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[str, V] | Iterable[tuple[str, V]] = ()) -> None:
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> V:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __hash__(self) -> int:
        return hash(frozenset(self._entries.items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._entries!r})"


def frozen(value: object) -> Any:
    """Returns an immutable copy of a JSON value, with tuples for lists and a `FrozenDict` for each object."""
    if isinstance(value, Mapping):
        return FrozenDict((str(key), frozen(entry)) for key, entry in value.items())
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value
