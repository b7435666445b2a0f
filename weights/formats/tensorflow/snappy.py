"""Snappy, the compression of LevelDB's blocks, undone.

Forty lines here instead of a compiled library that would come with every installation: TensorFlow writes its indexes
uncompressed, and the few that are not are some kilobytes long. Format:
https://github.com/google/snappy/blob/main/format_description.txt.
"""

from mlxbert.weights.formats.protobuf import Broken, varint

_LITERAL = 0
_MOST = 22  # times as long as the input: three bytes stand for 64 at most


def decompress(data: bytes) -> bytes:
    """What was compressed.

    Raises:
        Broken: The bytes are no whole Snappy stream, or say that they stand for more than they can.
    """
    length, at = varint(data, 0, len(data))
    if length > _MOST * len(data):
        raise Broken(f"{len(data)} compressed bytes cannot be {length}")
    out = bytearray()
    while at < len(data):
        at = _element(data, at, out)
        if at > len(data) or len(out) > length:
            raise Broken(f"compressed data goes on beyond its end, {length} bytes")
    if len(out) != length:
        raise Broken(f"compressed data holds {len(out)} bytes, expected {length}")
    return bytes(out)


def _element(data: bytes, at: int, out: bytearray) -> int:
    """Adds what one element stands for; the place behind it."""
    tag, at = data[at], at + 1
    kind, high = tag & 3, tag >> 2
    if kind == _LITERAL:
        wide = max(0, high - 59)  # bytes of a length that the tag has no room for
        size = (int.from_bytes(data[at : at + wide], "little") if wide else high) + 1
        start = at + wide
        out += data[start : start + size]
        return start + size
    wide = (1, 2, 4)[kind - 1]
    back = int.from_bytes(data[at : at + wide], "little")
    size = high + 1
    if kind == 1:
        back, size = back | tag >> 5 << 8, (high & 7) + 4
    if not 0 < back <= len(out):
        raise Broken(f"compressed data repeats what was {back} bytes before, there are {len(out)}")
    start = len(out) - back
    piece = bytes(out[start : start + size])
    out += (piece * (size // back + 1))[:size]  # a copy may reach into itself
    return at + wide
