"""Decodes the JSON bodies of requests into the types of the routes, and encodes JSON in pieces.

Errors name the field that is wrong. A large answer is never in memory as a whole, and other threads can run while it is
encoded.
"""

import asyncio
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, takewhile
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from mlxbert.serve.protocol import RequestError

_SMALL = 65_536  # bytes that are decoded in about a millisecond
# Maximum strings, lists and objects of a large body: per text of `max_texts` (a document is an object with fields), and
# at least, whatever `max_texts` is.
_VALUES, _MIN_VALUES = 64, 100_000
_MAX_FIELDS = 1000  # each field is compared with the fields of the type
_CHOICE = re.compile(r"Invalid enum value (.*) - at `\$(.*)`", re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode
# One thread: a decoder holds the GIL while it works, and the event loop would wait for each of several.
_PARSER = ThreadPoolExecutor(1, "mlxbert-bodies")


class BodyReader:
    """Decodes the bodies of a route, whose type is a `msgspec.Struct`, or `Any` for a route that reads no fields."""

    def __init__(self, kind: Any, max_texts: int) -> None:
        self._kind, self._decode = kind, msgspec.json.Decoder(kind).decode
        self._max_values = max(_VALUES * max_texts, _MIN_VALUES)

    async def read(self, body: bytes) -> Any:
        """Decodes a body. A large body is decoded on a thread, so that the event loop can answer other requests."""
        if len(body) <= _SMALL:
            return self._read(body)
        return await asyncio.get_running_loop().run_in_executor(_PARSER, self._read_large, body)

    def _read_large(self, body: bytes) -> Any:
        """Decodes a body; raises RequestError if decoding its many values would hold the GIL for long."""
        count = count_values(body, self._max_values)
        if count > self._max_values:
            what = f"at least {count:,} strings, lists and objects"
            raise RequestError("too_large", f"the body has {what}, expected at most {self._max_values:,}")
        return self._read(body)

    def _read(self, body: bytes) -> Any:
        try:
            check_fields(self._kind, _read_fields(body))
            return self._decode(body)
        except msgspec.ValidationError as problem:
            raise explain(problem, self._kind) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            if _SURROGATE.search(body):
                return self._read_with_surrogates(body)
            raise RequestError("invalid", f"the body is not JSON: {problem}") from None

    def _read_with_surrogates(self, body: bytes) -> Any:
        """Decodes a body that contains half of a surrogate pair.

        Such a half is allowed in ignored fields, but msgspec would reject it even there.
        """
        try:
            fields = json.loads(body.decode(), parse_constant=_refuse_constant)
            if isinstance(fields, dict):  # msgspec compares names as UTF-8, which has no halves
                fields = {name.encode(errors="backslashreplace").decode(): part for name, part in fields.items()}
                check_fields(self._kind, fields)
            value = msgspec.convert(fields, self._kind)
            for name in getattr(value, "__struct_fields__", ()):  # a dict has none: its route reads no fields
                _check_text(name, getattr(value, name))
            return value
        except msgspec.ValidationError as problem:
            raise explain(problem, self._kind) from None
        except UnicodeEncodeError:  # msgspec refuses a value, and would quote the half in it
            raise _half("the body") from None
        except (ValueError, RecursionError) as problem:
            raise RequestError("invalid", f"the body is not JSON: {problem}") from None


def count_values(body: bytes, enough: int) -> int:
    """Counts the strings (including field names), lists and objects of a body; may stop counting above `enough`."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    strings = plain.count(b'"') // 2
    if strings > enough:
        return strings
    outside = b"".join(plain.split(b'"')[::2])
    return strings + outside.count(b"[") + outside.count(b"{")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_text(name: str, value: Any) -> None:
    try:
        _encode(value)
    except UnicodeEncodeError:
        raise _half(name, param=name) from None


def _half(what: str, *, param: str | None = None) -> RequestError:
    return RequestError("bad_text", f"{what} contains half of a surrogate pair, expected valid Unicode", param=param)


def check_fields(kind: Any, names: Collection[str]) -> None:
    """Raises RequestError for a misspelled field; other unknown fields are ignored, since clients send many."""
    if len(names) > _MAX_FIELDS:
        raise RequestError("invalid", f"the body has {len(names):,} fields, expected at most {_MAX_FIELDS:,}")
    fields = getattr(kind, "__struct_fields__", ())
    for name in names:
        if name in fields:
            continue
        if meant := next((field for field in fields if _one_edit(name, field)), None):
            raise RequestError(
                "invalid", f"the body has an unknown field {name!r}", hint=f"did you mean {meant!r}?", param=name
            )


def _one_edit(word: str, other: str) -> bool:
    """Whether two words differ by one letter (inserted, removed or replaced) or by two swapped letters."""
    if abs(len(word) - len(other)) > 1:
        return False
    start = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(word, other, strict=False)))
    a, b = word[start:], other[start:]
    return a[1:] in (b, b[1:]) or a == b[1:] or (a[1::-1] == b[:2] and a[2:] == b[2:])


def explain(error: msgspec.ValidationError, kind: Any) -> RequestError:
    """Converts an error of msgspec to a `RequestError`, which lists the allowed values of a field if they are few."""
    invalid = _CHOICE.fullmatch(str(error))
    names = re.findall(r"\.(\w+)", invalid[2]) if invalid else []
    if invalid and (choices := _choices(kind, names)):
        listed = {choice.lower(): choice for choice in reversed(choices)}  # some values are also listed in capitals
        expected = ", ".join(reversed(listed.values()))
        return RequestError("invalid", f"{names[-1]} is {invalid[1]:.60}, expected one of {expected}", param=names[-1])
    return RequestError("invalid", f"the body is invalid: {error}")


def _choices(kind: Any, names: Sequence[str]) -> list[str]:
    """Returns the values of a field with the type `Literal`; `names` is the path to the field through nested types."""
    if names and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _choices(get_type_hints(kind).get(names[0]), names[1:])
    if get_origin(kind) is Literal:
        return [value for value in get_args(kind) if isinstance(value, str)] if not names else []
    return [value for part in get_args(kind) for value in _choices(part, names)]


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
