"""Reads the fields of Protobuf messages one by one, without a schema.

Format: https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


class MalformedError(Exception):
    """Raised if bytes do not follow the format; the message says where."""


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Reads the varint at offset `at`; returns its value and the offset after it."""
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise MalformedError(f"the varint at byte {at} is invalid")


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields the number and wire type of each field in a message, and the offsets where its value starts and ends."""
    while at < end:
        start = at
        key, at = varint(data, at, end)
        number, wire = key >> 3, key & 7
        if wire == BYTES:
            size, at = varint(data, at, end)
        elif wire == VARINT:
            size = varint(data, at, end)[1] - at
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise MalformedError(f"the field at byte {start} is invalid")
        if number == 0 or at + size > end:
            raise MalformedError(f"the field at byte {start} extends past the end")
        yield number, wire, at, at + size
        at += size


def numbers(data: bytes, at: int, end: int) -> dict[int, int]:
    """Returns the value of each varint field in a message, by field number; a repeated field has its last value."""
    entries = fields(data, at, end)
    return {number: varint(data, start, stop)[0] for number, wire, start, stop in entries if wire == VARINT}
