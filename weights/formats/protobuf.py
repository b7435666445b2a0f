"""Protobuf messages as bytes: their fields one after another, without a schema.

Format: https://protobuf.dev/programming-guides/encoding.
"""

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


class Broken(Exception):
    """The bytes are not what they should be; the text says where."""


def varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at a place, and the place behind it.

    Raises:
        Broken: It goes on beyond `end` or has more than ten bytes.
    """
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise Broken(f"no number at byte {at}")


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of a message: number, wire type, and where the value starts and ends.

    Raises:
        Broken: There is no field, or it goes on beyond `end`.
    """
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
            raise Broken(f"no field at byte {start}")
        if number == 0 or at + size > end:
            raise Broken(f"the field at byte {start} goes on beyond the end")
        yield number, wire, at, at + size
        at += size


def numbers(data: bytes, at: int, end: int) -> dict[int, int]:
    """The numbers of a message by field; of a field that stands twice the last."""
    found = fields(data, at, end)
    return {number: varint(data, start, stop)[0] for number, wire, start, stop in found if wire == VARINT}
