"""Reads and checks the content of a torch checkpoint: its tensors, and the storages that hold their data.

There are two formats: the zip archive of torch ≥ 1.6, and the sequence of pickles of older versions. Both contain the
storages, and a pickle that describes the tensors. The pickle is never executed (see pickle.py).
https://docs.pytorch.org/docs/stable/notes/serialization.html
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mlxbert.errors import CheckpointError
from mlxbert.weights.formats.headers import BYTES, MAX_SIZE
from mlxbert.weights.formats.torch.pickle import MAX_BYTES, TorchTensor, read_pickle
from mlxbert.weights.formats.zip_archive import Member, read_members

MAX_AXES = 32
MAX_RATIO = 100  # bytes of all tensors to bytes of the file; tensors may share storage, and expanded tensors repeat it
_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001  # the first two pickles of a stream
_AGAIN = "download the model again"
_SAVE_AGAIN = "save the model again with a current torch, or as safetensors"


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint file."""

    tensors: dict[str, TorchTensor]  # the tensors by name, checked against the storages
    skipped: tuple[str, ...]  # the names of the other entries
    spans: dict[str, Member]  # the range of bytes of each storage, by the key of the storage
    size: int  # the size of the file in bytes


def _kind(value: object) -> str:
    """Returns the name of a value's type, for messages."""
    return "tensor" if isinstance(value, TorchTensor) else type(value).__name__


def _split_entries(path: Path, value: object) -> tuple[dict[str, TorchTensor], tuple[str, ...]]:
    """Returns the tensors in the value of a pickle, and the names of its other entries."""
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {_kind(value)}, expected a dict of tensors", hint=_SAVE_AGAIN)
    tensors, skipped = {}, []
    for name, entry in value.items():
        if isinstance(entry, TorchTensor) and type(name) is str:
            tensors[name] = entry
        elif entry is None or type(entry) in (bool, int, float, str):
            skipped.append(str(name)[:200])
        else:
            inner = _key_of_tensors(value)
            hint = None if inner is None else f"save only the dict {inner!r:.80}, which has the tensors, as safetensors"
            raise CheckpointError(
                f"{path}: entry {name!r:.200} is a {_kind(entry)}, expected a tensor with a name", hint=hint
            )
    if not tensors:
        raise CheckpointError(f"{path}: holds no tensors")
    return tensors, tuple(skipped)


def _key_of_tensors(value: dict[Any, Any]) -> object | None:
    seen: set[int] = set()  # many keys may share one dict
    for key, entry in value.items():
        if isinstance(entry, dict) and id(entry) not in seen:
            seen.add(id(entry))
            if any(isinstance(item, TorchTensor) for item in entry.values()):
                return key
    return None


def _check(path: Path, name: str, tensor: TorchTensor, spans: Mapping[str, Member]) -> None:
    storage = tensor.storage
    if storage.key not in spans:
        raise CheckpointError(
            f"{path}: the file is damaged, because storage {storage.key} with the data of {name!r:.200} is missing"
        )
    size = storage.count * BYTES[storage.dtype]
    if size != spans[storage.key].size:
        raise CheckpointError(
            f"{path}: the file is damaged, because tensor {name!r:.200} has {spans[storage.key].size} bytes of data, "
            f"expected {size}",
            hint=_AGAIN,
        )
    sizes, strides = tensor.shape, tensor.strides
    if len(sizes) != len(strides) or len(sizes) > MAX_AXES or not all(0 <= each <= MAX_SIZE for each in sizes):
        raise CheckpointError(f"{path}: the file is damaged, because tensor {name!r:.200} has an invalid shape")
    last = sum((each - 1) * stride for each, stride in zip(sizes, strides, strict=True)) if math.prod(sizes) else -1
    inside = tensor.offset >= 0 and min(strides, default=0) >= 0 and tensor.offset + last < storage.count
    if not inside:
        raise CheckpointError(
            f"{path}: the file is damaged, because tensor {name!r:.200} extends past its data of "
            f"{storage.count} numbers"
        )


def _read_zip(path: Path, file: BinaryIO, total: int) -> tuple[object, dict[str, Member]]:
    members = read_members(path, file, total)
    order, pickle = members.get("byteorder"), members.get("data.pkl")
    if order is not None and (order.size > 16 or _member(file, order) != b"little"):
        raise CheckpointError(f"{path}: the numbers are big-endian, expected little-endian", hint=_SAVE_AGAIN)
    if pickle is None:
        raise CheckpointError(f"{path}: is a zip archive without data.pkl, expected a file written by torch.save")
    if pickle.size > MAX_BYTES:
        raise CheckpointError(f"{path}: data.pkl has {pickle.size} bytes, expected at most {MAX_BYTES}")
    pickle.check(path, "data.pkl", _member(file, pickle))
    file.seek(pickle.start)
    value, _ = read_pickle(path, file, pickle.size)
    if file.tell() != pickle.start + pickle.size:
        raise CheckpointError(
            f"{path}: the file is damaged, because data.pkl has bytes after the end of its pickle", hint=_AGAIN
        )
    return value, {name.removeprefix("data/"): each for name, each in members.items() if name.startswith("data/")}


def _member(file: BinaryIO, member: Member) -> bytes:
    file.seek(member.start)
    return file.read(member.size)


def _read_stream(path: Path, file: BinaryIO, total: int) -> tuple[object, dict[str, Member]]:
    """Reads the older format: five pickles (two numbers, system info, tensors, storage keys), then the storages."""
    if read_pickle(path, file)[0] != _MAGIC or read_pickle(path, file)[0] != _VERSION:
        raise CheckpointError(f"{path}: is a pickle that torch.save did not write, expected a dict of tensors")
    facts, _ = read_pickle(path, file)
    if not isinstance(facts, dict) or facts.get("little_endian") is not True:
        raise CheckpointError(f"{path}: the numbers are big-endian, expected little-endian", hint=_SAVE_AGAIN)
    value, storages = read_pickle(path, file)
    keys, _ = read_pickle(path, file)
    if type(keys) is not list or not all(type(key) is str and key in storages for key in keys):
        raise CheckpointError(
            f"{path}: the file is damaged, because the storage keys do not match the tensors", hint=_AGAIN
        )
    spans: dict[str, Member] = {}
    position = file.tell()
    for key in keys:
        file.seek(position)
        count = file.read(8)
        start, size = position + 8, storages[key].count * BYTES[storages[key].dtype]
        if key in spans or start + size > total or struct.unpack("<q", count)[0] != storages[key].count:
            raise CheckpointError(
                f"{path}: the file is truncated or damaged, because storage {key} is not at byte {position}",
                hint=_AGAIN,
            )
        spans[key] = Member(start, size, None)
        position = start + size
    if position != total:
        raise CheckpointError(
            f"{path}: the file is damaged, because {total - position} bytes follow the last storage", hint=_AGAIN
        )
    return value, spans


def _refuse_start(path: Path, start: bytes, total: int) -> None:
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path}: is a Git LFS pointer of {total} bytes, not the weights",
            hint="run `git lfs pull` in the clone",
        )
    if start[257:262] == b"ustar":
        raise CheckpointError(f"{path}: is a tar archive, the format of torch before 0.1.10", hint=_SAVE_AGAIN)
    if not start.startswith((b"PK\3\4", b"\x80")):
        raise CheckpointError(
            f"{path}: is truncated or not written by torch.save ({total} bytes, starting with {start[:16]!r})",
            hint=_AGAIN,
        )


def read_content(path: Path) -> Content:
    """Reads and checks the metadata of the tensors in a file, but reads no tensor."""
    try:
        with path.open("rb") as file:
            total = path.stat().st_size
            start = file.read(512)
            _refuse_start(path, start, total)
            file.seek(0)
            value, spans = (_read_zip if start.startswith(b"PK") else _read_stream)(path, file, total)
    except OSError as problem:
        raise CheckpointError(f"{path}: cannot be read ({problem.strerror})") from None
    tensors, skipped = _split_entries(path, value)
    for name, tensor in tensors.items():
        _check(path, name, tensor, spans)
    size = sum(math.prod(each.shape) * BYTES[each.storage.dtype] for each in tensors.values())
    if size > MAX_RATIO * total:
        raise CheckpointError(
            f"{path}: the tensors have {size} bytes, expected at most {MAX_RATIO} times the {total} bytes of the file",
            hint="save tensor.contiguous() of each tensor, because expanded tensors repeat the same numbers",
        )
    return Content(tensors, skipped, spans, total)
