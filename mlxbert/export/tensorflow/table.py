"""Parses and checks the `.index` of a TensorFlow checkpoint: the metadata and the offset of each tensor.

The file is a LevelDB table (https://github.com/google/leveldb/blob/main/doc/table_format.md) that holds the messages in
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/protobuf/tensor_bundle.proto.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mlxbert.errors import CheckpointError
from mlxbert.weights.formats import protobuf
from mlxbert.weights.formats.protobuf import FIXED32, VARINT, MalformedError, fields, varint

_SNAPPY_LITERAL = 0
_SNAPPY_RATIO = 22  # output to input: three bytes encode at most 64


def decompress(data: bytes) -> bytes:
    """Decompresses Snappy (https://github.com/google/snappy/blob/main/format_description.txt), without a dependency.

    Speed does not matter: TensorFlow writes its indexes uncompressed, and the few others have a few kilobytes.
    """
    length, at = varint(data, 0, len(data))
    if length > _SNAPPY_RATIO * len(data):
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
    if kind == _SNAPPY_LITERAL:
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


MAGIC = (0xDB4775248B80FB57).to_bytes(8, "little")
MAX_INDEX = 2**22  # bytes; real indexes have a few kilobytes, and compressed indexes expand up to 22 times
_MAX_ENTRIES, _MAX_KEY = 100_000, 1024  # keys share prefixes, so a small file can hold long keys
_MAX_RANK = 254  # the limit of TensorFlow
_FOOTER, _TRAILER = 48, 5
_PLAIN, _SNAPPY = 0, 1  # types of blocks
_U32 = struct.Struct("<I")
_VERSION = 1  # of the format, as TensorFlow writes it
_SLICE_KEY = b"\0"  # the prefix of keys for slices of a partitioned variable
_BAD_ORDER = "the keys are not sorted"


class _Unread(Exception):
    """Raised if an index is valid, but of a kind that mlxbert does not read."""


class TensorEntry(NamedTuple):
    """The metadata of a tensor; `dtype` is the number of a dtype in TensorFlow's `DataType`."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


class Bundle(NamedTuple):
    """The content of an index: the number of data files, and the tensors sorted by name."""

    shards: int
    entries: dict[str, TensorEntry]


def checksum(data: Any) -> int:
    """Returns the CRC-32C of bytes, masked as LevelDB and TensorFlow store it."""
    import google_crc32c

    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _handle(data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """Reads the handle of a block; returns the offset and the size of the block, and the offset after the handle."""
    offset, at = varint(data, at, end)
    size, at = varint(data, at, end)
    return offset, size, at


def _block(data: bytes, offset: int, size: int) -> bytes:
    end = offset + size + _TRAILER
    if end > len(data) - _FOOTER:
        raise MalformedError(f"a block is at bytes {offset} to {end}, but the file has {len(data)} bytes")
    if checksum(data[offset : end - 4]) != _U32.unpack_from(data, end - 4)[0]:
        raise MalformedError(f"the block at byte {offset} does not match its checksum")
    kind, content = data[end - _TRAILER], data[offset : offset + size]
    if kind not in (_PLAIN, _SNAPPY):
        raise MalformedError(f"the block at byte {offset} has the unknown type {kind}")
    return decompress(content) if kind == _SNAPPY else content


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields the keys and values of a block; skips the restart points at its end, which only searches need."""
    if len(block) < 4:
        raise MalformedError(f"a block has {len(block)} bytes, expected at least 4")
    end = len(block) - 4 - 4 * _U32.unpack_from(block, len(block) - 4)[0]
    if end < 0:
        raise MalformedError("a block is too short for its list of restart points")
    key, at = b"", 0
    while at < end:
        shared, at = varint(block, at, end)
        unshared, at = varint(block, at, end)
        size, at = varint(block, at, end)
        if shared > len(key) or shared + unshared > _MAX_KEY or at + unshared + size > end:
            raise MalformedError(f"the entry at byte {at} of a block is invalid")
        key = key[:shared] + block[at : at + unshared]
        at += unshared + size
        yield key, block[at - size : at]


def _table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    end = len(data) - len(MAGIC)
    if len(data) < _FOOTER or data[end:] != MAGIC:
        raise MalformedError("the file does not end with a table footer")
    offset, size, at = _handle(data, len(data) - _FOOTER, end)
    _block(data, offset, size)  # the metaindex; TensorFlow writes no filters
    offset, size, _ = _handle(data, at, end)
    position, last = 0, b""
    for _, handle in _pairs(_block(data, offset, size)):
        offset, size, _ = _handle(handle, 0, len(handle))
        if offset < position:
            raise MalformedError(f"the block at byte {offset} overlaps the previous one")
        position = offset + size + _TRAILER
        for key, value in _pairs(_block(data, offset, size)):
            if key < last or (key == last and key):
                raise MalformedError(_BAD_ORDER)
            last = key
            yield key, value


def _shards(message: bytes) -> int:
    """Returns the number of data files, which is in the message that is stored under the empty key."""
    version = 0
    for number, wire, start, end in fields(message, 0, len(message)):
        if (number, wire) == (3, protobuf.BYTES):
            version = protobuf.numbers(message, start, end).get(2, 0)
    values = protobuf.numbers(message, 0, len(message))
    if values.get(2, 0) != 0:
        raise _Unread("the numbers are big-endian, expected little-endian")
    if version > _VERSION:
        raise _Unread(f"the format has version {version}, expected {_VERSION}")
    if not 1 <= values.get(1, 0) <= _MAX_ENTRIES:
        raise MalformedError(f"the index names {values.get(1, 0)} data files, expected 1 to {_MAX_ENTRIES}")
    return values[1]


def _shape(message: bytes, at: int, end: int) -> tuple[int, ...]:
    sizes = []
    for number, wire, start, stop in fields(message, at, end):
        if (number, wire) == (2, protobuf.BYTES):
            sizes.append(protobuf.numbers(message, start, stop).get(1, 0))
        elif (number, wire) == (3, VARINT):
            raise MalformedError("a shape has an unknown rank")
    if len(sizes) > _MAX_RANK:
        raise MalformedError(f"a shape has {len(sizes)} axes, expected at most {_MAX_RANK}")
    return tuple(sizes)


def _entry(name: str, message: bytes) -> TensorEntry:
    shape: tuple[int, ...] = ()
    crc = 0
    for number, wire, start, end in fields(message, 0, len(message)):
        if (number, wire) == (2, protobuf.BYTES):
            shape = _shape(message, start, end)
        elif (number, wire) == (6, FIXED32):
            (crc,) = _U32.unpack_from(message, start)
        elif (number, wire) == (7, protobuf.BYTES):
            raise _Unread(f"tensor {name!r} is stored in slices (a partitioned variable), expected a whole tensor")
    values = protobuf.numbers(message, 0, len(message))
    return TensorEntry(values.get(1, 0), shape, values.get(3, 0), values.get(4, 0), values.get(5, 0), crc)


def _bundle(data: bytes) -> Bundle:
    shards, entries = 0, {}
    for number, (key, value) in enumerate(_table(data)):
        if number > _MAX_ENTRIES:
            raise MalformedError(f"the index has more than {_MAX_ENTRIES} entries")
        if (number == 0) != (key == b""):
            raise MalformedError(_BAD_ORDER)
        if key == b"":
            shards = _shards(value)
        elif not key.startswith(_SLICE_KEY):  # a sliced variable is rejected at its own entry, which follows
            try:
                name = key.decode("utf-8")
            except UnicodeDecodeError:
                raise MalformedError(f"the name {key!r:.60} is not UTF-8") from None
            entries[name] = _entry(name, value)
    if not shards:
        raise MalformedError("the index is empty")
    return Bundle(shards, entries)


def read_bundle(path: Path) -> Bundle:
    """Reads the `.index` of a TensorFlow checkpoint; verifies the checksums of the index, but not of the data."""
    try:
        size = path.stat().st_size
        if size > MAX_INDEX:
            raise CheckpointError(
                f"{path}: the index of the TensorFlow checkpoint has {size} bytes, expected at most {MAX_INDEX}"
            )
        return _bundle(path.read_bytes())
    except OSError as problem:
        raise CheckpointError(f"{path}: cannot be read ({problem.strerror})") from None
    except _Unread as problem:
        raise CheckpointError(
            f"{path}: {problem}",
            hint="load the checkpoint with the program that wrote it, and save the model as safetensors",
        ) from None
    except MalformedError as problem:
        raise CheckpointError(
            f"{path}: the index of the TensorFlow checkpoint is damaged ({problem})",
            hint="download the checkpoint again",
        ) from None
