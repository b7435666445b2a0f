"""Encodes JSON in pieces: a large answer is never in memory as a whole, and other threads can run in between."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

_MIN_SIZE = 65_536  # bytes of a piece
_SLICE = 32  # parts of a list that are encoded together
_PLACEHOLDER = b"\0"  # stands for a list that is encoded later; in JSON this character is always escaped


class _JsonList:  # not a dataclass, which msgspec would encode itself
    """A list that `pieces` encodes part by part."""

    def __init__(self, parts: Sequence[Any], show: Callable[[Any], Any]) -> None:
        self.parts, self.show = parts, show


def each(parts: Sequence[Any], show: Callable[[Any], Any] = lambda part: part) -> Any:
    """Returns a placeholder for `[show(part) for part in parts]`, which `pieces` computes while it encodes the list."""
    return _JsonList(parts, show)


def pieces(value: Any) -> Iterator[bytes]:
    """Yields the JSON of a value in pieces; NumPy arrays become lists."""
    piece: list[bytes] = []
    size = 0
    for part in _parts(value):
        piece.append(part)
        size += len(part)
        if size >= _MIN_SIZE:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join(piece)


def _parts(value: Any) -> Iterator[bytes]:
    later: list[_JsonList] = []

    def encode_later(item: Any) -> Any:
        if isinstance(item, _JsonList):
            later.append(item)
            return msgspec.Raw(_PLACEHOLDER)
        if (dimensions := getattr(item, "ndim", None)) is None:
            raise TypeError(f"{type(item).__name__} cannot be encoded as JSON")
        return item.tolist() if dimensions < 2 else encode_later(_JsonList(item, lambda row: row))

    text = msgspec.json.Encoder(enc_hook=encode_later).encode(value)
    if not later:
        yield text
        return
    lists = map(_list_parts, later)
    for fragment in text.split(_PLACEHOLDER):
        yield fragment
        yield from next(lists, ())


def _list_parts(items: _JsonList) -> Iterator[bytes]:
    yield b"["
    for start in range(0, len(items.parts), _SLICE):
        values = [items.show(part) for part in items.parts[start : start + _SLICE]]
        parts = _parts(values)
        first = next(parts)[1:]  # without the opening bracket
        text = chain([b"," + first if start else first], parts)
        last = next(text)
        for part in text:
            yield last
            last = part
        yield last[:-1]
    yield b"]"
