"""Checks the size of a zip archive's directory before the directory is parsed; finds the offsets of the members.

zipfile trusts the directory, and creates an object for every entry before it can report how many there are. Torch
(≥ 1.6) stores members uncompressed, one after another, and writes no comment; this module rejects archives that differ.
Format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
"""

import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mlxbert.errors import CheckpointError

MAX_DIRECTORY = 4 * 2**20  # bytes; an entry has about 65, and there is one per tensor
_END, _END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_LOCAL = struct.Struct("<4s5H3L2H")
_ENCRYPTED, _UTF8 = 1, 0x800  # flags


@dataclass(frozen=True)
class Member:
    """The bytes from `start` to `start + size` of a file, and their checksum, if there is one."""

    start: int
    size: int
    crc: int | None

    def check(self, path: Path, name: str, data: object) -> None:
        """Raises `CheckpointError` if the data does not match the checksum."""
        if self.crc is not None and zlib.crc32(data) != self.crc:  # type: ignore[arg-type]  # any object with a buffer
            raise _damaged(path, f"{name} does not match its checksum")


def _damaged(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path}: the archive is damaged or truncated ({why})", hint="download the model again")


def check_directory(path: Path, file: BinaryIO, total: int) -> int:
    """Checks the position and the size of the central directory; returns the number of entries that it declares."""
    room = _LOCATOR.size + _END.size
    if total < room:
        raise _damaged(path, f"it has {total} bytes, expected at least {room}")
    file.seek(total - room)
    tail = file.read(room)
    sign, *_, entries, size, start, comment = _END.unpack(tail[_LOCATOR.size :])
    if sign != b"PK\5\6" or comment:
        raise _damaged(path, "it does not end with its directory")
    end = total - _END.size
    if tail.startswith(b"PK\6\7"):
        position = _LOCATOR.unpack(tail[: _LOCATOR.size])[2]
        end = total - room - _END_64.size
        if position != end or end < 0:
            raise _damaged(path, "its ZIP64 end of directory is at the wrong offset")
        file.seek(position)
        sign, *_, entries, size, start = _END_64.unpack(file.read(_END_64.size))
        if sign != b"PK\6\6":
            raise _damaged(path, "its ZIP64 end of directory is missing")
    if size > MAX_DIRECTORY:
        raise CheckpointError(
            f"{path}: the central directory of the archive has {size} bytes, expected at most {MAX_DIRECTORY}"
        )
    if start + size != end:
        raise _damaged(path, f"its directory of {size} bytes starts at byte {start}, expected {end - size}")
    return int(entries)


def _check_entry(path: Path, info: zipfile.ZipInfo) -> None:
    """Rejects members that torch would not write."""
    name = info.orig_filename
    if any(part in ("", ".", "..") for part in name.split("/")) or "\\" in name or "\0" in name:
        raise CheckpointError(f"{path}: the archive has a member {name[:200]!r}, expected a plain relative path")
    inside = name.partition("/")[2]
    if inside == "constants.pkl" or inside.startswith("code/"):
        raise CheckpointError(
            f"{path}: is a TorchScript program, expected a state dict",
            hint="save the state_dict of the model as safetensors",
        )
    if info.flag_bits & _ENCRYPTED or info.compress_type or info.compress_size != info.file_size:
        raise CheckpointError(f"{path}: member {name!r:.200} is compressed or encrypted, expected plain data")


def _start(path: Path, file: BinaryIO, info: zipfile.ZipInfo, end: int) -> int:
    """Checks the name in a member's local header; returns the offset of the member's data."""
    position, name = info.header_offset, info.orig_filename
    file.seek(position)
    raw = file.read(_LOCAL.size) if position + _LOCAL.size <= end else b""
    if len(raw) == _LOCAL.size:
        sign, *_, length, extra = _LOCAL.unpack(raw)
        if sign == b"PK\3\4" and file.read(length) == name.encode("utf-8" if info.flag_bits & _UTF8 else "cp437"):
            return int(position + _LOCAL.size + length + extra)
    raise _damaged(path, f"{name!r:.200} is not at the offset in the directory")


def read_members(path: Path, file: BinaryIO, total: int) -> dict[str, Member]:
    """Reads the members of an archive. Their names do not include the top-level folder that contains all of them."""
    entries = check_directory(path, file, total)
    try:
        with zipfile.ZipFile(file) as archive:
            members, end = archive.infolist(), archive.start_dir
    except (zipfile.BadZipFile, RuntimeError, ValueError, struct.error) as problem:
        raise _damaged(path, str(problem)) from None
    by_name: dict[str, Member] = {}
    spans, roots = [], set()
    for info in members:
        _check_entry(path, info)
        start = _start(path, file, info, end)
        root, _, inside = info.orig_filename.partition("/")
        if inside in by_name:
            raise _damaged(path, f"it has {info.orig_filename!r:.200} twice")
        roots.add(root)
        by_name[inside] = Member(start, info.file_size, info.CRC)
        spans.append((info.header_offset, start + info.file_size, info.orig_filename))
    if entries != len(by_name) or len(roots) != 1 or "" in by_name:
        raise _damaged(path, f"it has {len(by_name)} members in {len(roots)} folders, expected {entries} in one folder")
    _check_spans(path, spans, end)
    return by_name


def _check_spans(path: Path, spans: list[tuple[int, int, str]], end: int) -> None:
    """Rejects members that overlap each other or extend past the data."""
    position = 0
    for start, stop, name in sorted(spans):
        if start < position or stop > end:
            raise _damaged(path, f"{name!r:.200} is at bytes {start} to {stop}, expected between {position} and {end}")
        position = stop
