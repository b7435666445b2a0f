"""Zip archives, as torch ≥ 1.6 writes them: the directory, and the offsets of their members.

Parsed here and not by zipfile, which trusts the directory and creates an object per entry before it can report their
number. Torch stores members uncompressed, one after another, and writes no comment; any other archive is refused.
Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mlxbert.errors import CheckpointError

MAX_DIRECTORY = 4 * 2**20  # bytes; an entry has about 65, and there is one per tensor
_END, _END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_ENTRY, _LOCAL = struct.Struct("<4s6H3L5H2L"), struct.Struct("<4s5H3L2H")
_ENCRYPTED = 1  # the first flag
_BIG = 0xFFFFFFFF  # marks a number that is in the ZIP64 extra field


@dataclass(frozen=True)
class Member:
    """Bytes `start` to `start + size` of a file, with their checksum if the file has one."""

    start: int
    size: int
    crc: int | None

    def check(self, path: Path, name: str, data: object) -> None:
        """Refuses data that does not match its checksum."""
        if self.crc is not None and zlib.crc32(data) != self.crc:  # type: ignore[arg-type]  # any object with a buffer
            raise _damaged(path, f"{name} does not match its checksum")


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path}: damaged or truncated archive: {why}", hint="download the model again")


def read_directory(path: Path, file: BinaryIO, total: int) -> tuple[bytes, int, int]:
    """Reads the central directory; returns it, its offset and its declared number of entries, which are not parsed.

    Raises:
        CheckpointError: The archive does not end with its directory, or the directory is too large.
    """
    room = _LOCATOR.size + _END.size
    if total < room:
        raise _damaged(path, f"{total} bytes")
    file.seek(total - room)
    tail = file.read(room)
    sign, *_, entries, size, start, comment = _END.unpack(tail[_LOCATOR.size :])
    if sign != b"PK\5\6" or comment:
        raise _damaged(path, "it does not end with its directory")
    end = total - _END.size
    if tail.startswith(b"PK\6\7"):
        place = _LOCATOR.unpack(tail[: _LOCATOR.size])[2]
        end = total - room - _END_64.size
        if place != end or end < 0:
            raise _damaged(path, "its ZIP64 end of directory is at the wrong offset")
        file.seek(place)
        sign, *_, entries, size, start = _END_64.unpack(file.read(_END_64.size))
        if sign != b"PK\6\6":
            raise _damaged(path, "its ZIP64 end of directory is missing")
    if size > MAX_DIRECTORY:
        raise CheckpointError(f"{path}: a directory of {size} bytes, expected at most {MAX_DIRECTORY}")
    if start + size != end:
        raise _damaged(path, f"a directory of {size} bytes at {start}, expected its end at {end}")
    file.seek(start)
    return file.read(size), start, entries


def _long_numbers(path: Path, name: str, numbers: list[int], extra: bytes) -> list[int]:
    """Sizes and offset of a member; numbers of more than 4 bytes come from the ZIP64 extra field."""
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        field = extra[at + 4 : at + 4 + size]
        if kind == 1:
            missing = numbers.count(_BIG)
            if len(field) < 8 * missing:
                break
            found = iter(struct.unpack_from(f"<{missing}Q", field))
            return [next(found) if number == _BIG else number for number in numbers]
        at += 4 + size
    if _BIG in numbers:
        raise _damaged(path, f"{name!r:.200} has no size")
    return numbers


def _name(path: Path, raw: bytes) -> str:
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        name = ""
    if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name or "\0" in name:
        raise CheckpointError(f"{path}: the archive has a member {raw[:200]!r}, expected a plain relative path")
    return name


def _start(path: Path, file: BinaryIO, name: str, place: int, end: int) -> int:
    """The offset of a member's data, after a local header that repeats the name."""
    file.seek(place)
    raw = file.read(_LOCAL.size) if place + _LOCAL.size <= end else b""
    if len(raw) == _LOCAL.size:
        sign, *_, length, extra = _LOCAL.unpack(raw)
        if sign == b"PK\3\4" and file.read(length) == name.encode():
            return place + _LOCAL.size + length + extra
    raise _damaged(path, f"{name!r:.200} is not at the offset in the directory")


def _entries(path: Path, directory: bytes) -> Iterator[tuple[str, int, int, int]]:
    """Yields name, size, offset and checksum of every member."""
    at = 0
    while at < len(directory):
        if at + _ENTRY.size > len(directory) or directory[at : at + 4] != b"PK\1\2":
            raise _damaged(path, "an entry of the directory is invalid")
        _, _, _, flags, method, _, _, crc, *numbers = _ENTRY.unpack_from(directory, at)
        stored, size, length, extra, comment, *_, place = numbers
        at += _ENTRY.size
        name = _name(path, directory[at : at + length])
        fields = directory[at + length : at + length + extra]
        size, stored, place = _long_numbers(path, name, [size, stored, place], fields)
        inside = name.partition("/")[2]
        if inside == "constants.pkl" or inside.startswith("code/"):
            raise CheckpointError(
                f"{path}: is a TorchScript program, expected a state dict",
                hint="save the state_dict of the model as safetensors",
            )
        if flags & _ENCRYPTED or method or stored != size:
            raise CheckpointError(f"{path}: {name!r:.200} is compressed or encrypted, expected plain data")
        yield name, size, place, crc
        at += length + extra + comment
    if at != len(directory):
        raise _damaged(path, "its directory is too short")


def read_members(path: Path, file: BinaryIO, total: int) -> dict[str, Member]:
    """The members of an archive, by name without the top-level folder that contains all of them.

    Raises:
        CheckpointError: The archive is truncated or damaged, compressed or encrypted, or members overlap or are not
            plain paths in one folder.
    """
    directory, end, entries = read_directory(path, file, total)
    found: dict[str, Member] = {}
    spans, roots = [], set()
    for name, size, place, crc in _entries(path, directory):
        start = _start(path, file, name, place, end)
        root, _, inside = name.partition("/")
        if inside in found:
            raise _damaged(path, f"it has {name!r:.200} twice")
        roots.add(root)
        found[inside] = Member(start, size, crc)
        spans.append((place, start + size, name))
    if entries != len(found) or len(roots) != 1 or "" in found:
        raise _damaged(path, f"{len(found)} members in {len(roots)} folders, expected {entries} in one")
    _check_spans(path, spans, end)
    return found


def _check_spans(path: Path, spans: list[tuple[int, int, str]], end: int) -> None:
    """Refuses members that overlap or extend past the data."""
    place = 0
    for start, stop, name in sorted(spans):
        if start < place or stop > end:
            raise _damaged(path, f"{name!r:.200} is at bytes {start} to {stop}, expected between {place} and {end}")
        place = stop
