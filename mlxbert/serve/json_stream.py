"""JSON a piece at a time: large answers are never in memory whole, and other threads get their turn."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

_SIZE = 65_536  # bytes of a piece, at least
_SLICE = 32  # parts of a list that become JSON together
_PLACE = b"\0"  # of a list that is made later: a character that JSON has only escaped


class _JsonList:  # no dataclass: msgspec would make JSON of it
    """A list of JSON that is made one part after the other."""

    def __init__(self, parts: Sequence[Any], show: Callable[[Any], Any]) -> None:
        self.parts, self.show = parts, show


def each(parts: Sequence[Any], show: Callable[[Any], Any] = lambda part: part) -> Any:
    """Stands for the list of what a function makes of parts, in what `pieces` makes JSON of."""
    return _JsonList(parts, show)


def pieces(value: Any) -> Iterator[bytes]:
    """The JSON of a value, in pieces; arrays of NumPy are lists."""
    piece: list[bytes] = []
    size = 0
    for part in _parts(value):
        piece.append(part)
        size += len(part)
        if size >= _SIZE:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join(piece)


def _parts(value: Any) -> Iterator[bytes]:
    later: list[_JsonList] = []

    def shown(one: Any) -> Any:
        if isinstance(one, _JsonList):
            later.append(one)
            return msgspec.Raw(_PLACE)
        if (dimensions := getattr(one, "ndim", None)) is None:
            raise TypeError(f"{type(one).__name__} has no JSON")
        return one.tolist() if dimensions < 2 else shown(_JsonList(one, lambda row: row))

    text = msgspec.json.Encoder(enc_hook=shown).encode(value)
    if not later:
        yield text
        return
    lists = map(_listed, later)
    for known in text.split(_PLACE):
        yield known
        yield from next(lists, ())


def _listed(found: _JsonList) -> Iterator[bytes]:
    """The JSON of a list."""
    yield b"["
    for start in range(0, len(found.parts), _SLICE):
        shown = [found.show(part) for part in found.parts[start : start + _SLICE]]
        parts = _parts(shown)
        first = next(parts)[1:]  # without the bracket
        text = chain([b"," + first if start else first], parts)
        last = next(text)
        for part in text:
            yield last
            last = part
        yield last[:-1]
    yield b"]"
