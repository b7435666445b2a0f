"""Decompresses Snappy, the compression of blocks in LevelDB.

These forty lines replace a compiled dependency. Speed does not matter: TensorFlow writes its indexes uncompressed, and
the few indexes that are compressed have a few kilobytes. Format:
https://github.com/google/snappy/blob/main/format_description.txt.
"""

from mlxbert.weights.formats.protobuf import MalformedError, varint

_LITERAL = 0
_MAX_RATIO = 22  # output to input: three bytes encode at most 64


def decompress(data: bytes) -> bytes:
    """Decompresses a Snappy stream."""
    length, at = varint(data, 0, len(data))
    if length > _MAX_RATIO * len(data):
        raise MalformedError(f"{len(data)} compressed bytes cannot expand to {length} bytes")
    out = bytearray()
    while at < len(data):
        at = _element(data, at, out)
        if at > len(data) or len(out) > length:
            raise MalformedError(f"the compressed data extends past its declared {length} bytes")
    if len(out) != length:
        raise MalformedError(f"the compressed data holds {len(out)} bytes, expected {length}")
    return bytes(out)


def _element(data: bytes, at: int, out: bytearray) -> int:
    """Appends the bytes of one element to `out`; returns the offset after the element."""
    tag, at = data[at], at + 1
    kind, high = tag & 3, tag >> 2
    if kind == _LITERAL:
        width = max(0, high - 59)  # bytes of a length that does not fit in the tag
        size = (int.from_bytes(data[at : at + width], "little") if width else high) + 1
        start = at + width
        out += data[start : start + size]
        return start + size
    width = (1, 2, 4)[kind - 1]
    back = int.from_bytes(data[at : at + width], "little")
    size = high + 1
    if kind == 1:
        back, size = back | tag >> 5 << 8, (high & 7) + 4
    if not 0 < back <= len(out):
        raise MalformedError(
            f"the compressed data copies from {back} bytes back, but only {len(out)} bytes come before"
        )
    start = len(out) - back
    piece = bytes(out[start : start + size])
    out += (piece * (size // back + 1))[:size]  # a copy may overlap its own output
    return at + width
