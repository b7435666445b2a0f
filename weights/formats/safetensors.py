"""Reads safetensors files, both single and sharded.

MLX copies the data of a tensor into memory when the tensor is evaluated. The header is parsed here first, so that
errors name the problem and no data of a damaged file is used. Format: https://huggingface.co/docs/safetensors.
"""

import math
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mlxbert.durable_files import from_json
from mlxbert.errors import CheckpointError
from mlxbert.lazy_numpy import np
from mlxbert.machine.device import mx
from mlxbert.weights.formats import file_names
from mlxbert.weights.formats.headers import BYTES, MAX_SIZE, Header, LazyArrays, TensorInfo, from_bytes
from mlxbert.weights.formats.shards import find_shards

SINGLE, INDEX = file_names.SAFETENSORS, file_names.SAFETENSORS_INDEX
_LFS_POINTER = b"version "  # such a file starts with: version https://git-lfs.github.com/spec/v1
_AGAIN = "download the model again"
MAX_HEADER = 100_000_000  # bytes, the limit of the format itself


def _entry(path: Path, name: str, entry: object, room: int) -> tuple[TensorInfo, int, int]:
    """Checks one entry of a header; returns its metadata and the offsets of its data.

    `room` is the number of bytes after the header.
    """
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]}:
            pass
        case _:
            raise CheckpointError(
                f"{path}: the header is damaged, because tensor {name!r} has no valid dtype, shape and data_offsets"
            )
    if dtype not in BYTES:
        raise CheckpointError(f"{path}: tensor {name!r} has dtype {dtype!r}, expected one of {', '.join(BYTES)}")
    if not all(type(size) is int and 0 <= size <= MAX_SIZE for size in shape):
        raise CheckpointError(f"{path}: the header is damaged, because tensor {name!r} has the invalid shape {shape}")
    if not 0 <= start <= end <= room:
        raise CheckpointError(
            f"{path}: the file is truncated, because tensor {name!r} is at bytes {start} to {end} of {room} bytes",
            hint=_AGAIN,
        )
    if end - start != math.prod(shape) * BYTES[dtype]:
        raise CheckpointError(
            f"{path}: the header is damaged, because tensor {name!r} of {dtype} {shape} has {end - start} bytes, "
            f"expected {math.prod(shape) * BYTES[dtype]}"
        )
    return TensorInfo(dtype, tuple(shape), path), start, end


def read_header(path: Path) -> Header:
    """Reads and checks the header of a safetensors file, but reads no tensor."""
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            return parse_header(path, total, file.read)
    except OSError as problem:
        raise CheckpointError(f"{path}: cannot be read ({problem.strerror})") from None


def parse_header(path: Path, total: int, read: Callable[[int], bytes]) -> Header:
    """Parses and checks the header of a safetensors file of `total` bytes, which may be local or remote.

    `read` returns the next bytes of the file, as many as requested. It is called twice, and only for the header.
    """
    start = read(8) if total >= 8 else b""
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    if start == _LFS_POINTER:
        raise CheckpointError(
            f"{path}: is a Git LFS pointer of {total} bytes, not the weights",
            hint="run `git lfs pull` in the clone",
        )
    if not 2 <= length <= min(MAX_HEADER, total - 8):
        raise CheckpointError(
            f"{path}: is truncated or not a safetensors file ({total} bytes, header of {length} bytes)", hint=_AGAIN
        )
    text = read(length)
    try:
        raw = from_json(text.decode("utf-8"))
    except ValueError as problem:
        raise CheckpointError(f"{path}: the damaged header is not valid JSON ({problem})") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: the damaged header is a {type(raw).__name__}, expected a JSON object")
    metadata = raw.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise CheckpointError(f"{path}: the header is damaged, because __metadata__ is not an object of strings")
    tensors, spans = {}, []
    for name, entry in raw.items():
        tensors[name], begin, end = _entry(path, name, entry, total - 8 - length)
        spans.append((begin, end, name))
    offset = 0
    for begin, end, name in sorted(spans):
        if begin != offset:
            raise CheckpointError(
                f"{path}: the header is damaged, because tensor {name!r} starts at byte {begin}, expected {offset}"
            )
        offset = end
    if offset != total - 8 - length:
        raise CheckpointError(
            f"{path}: the file is damaged, because {total - 8 - length - offset} bytes follow the last tensor"
        )
    return Header(tensors, metadata, total)


def find_files(folder: Path, elsewhere: Collection[Path] = ()) -> list[Path]:
    """Finds the safetensors files of a model folder: the single file, or the shards in the index, or none.

    Paths in `elsewhere` count as existing.
    """
    if folder / SINGLE in elsewhere or (folder / SINGLE).is_file():
        return [folder / SINGLE]
    if not (folder / INDEX).is_file():
        return []
    return find_shards(folder / INDEX, elsewhere)


def read_headers(
    folder: Path, classes: Sequence[str] = (), elsewhere: Mapping[Path, Header] | None = None
) -> dict[Path, Header] | None:
    """Reads the headers of a model folder's safetensors files; returns `None` if there are no such files.

    A header in `elsewhere` is used instead of reading its file, which may be missing (see `find_files`).
    """
    elsewhere = elsewhere or {}
    headers = {path: elsewhere.get(path) or read_header(path) for path in find_files(folder, elsewhere)}
    if folder / SINGLE not in headers:
        headers = {path: replace(header, companions=(folder / INDEX,)) for path, header in headers.items()}
    return headers or None


def load_arrays(path: Path, header: Header) -> Mapping[str, mx.array]:
    """Returns, by name, the tensors of a file whose header was checked; data is read when it is used.

    MLX keeps the data of an array as long as the array is referenced. An array is therefore released here as soon as it
    is returned; a second access opens the file again.
    """
    fresh: dict[str, mx.array] = {}

    def read(name: str) -> mx.array:
        if name not in fresh:
            has_doubles = any(info.dtype == "F64" for info in header.tensors.values())
            fresh.update(_open_doubles(path) if has_doubles else _open(path))
        return fresh.pop(name)

    return LazyArrays(header.tensors, read)


def _open_doubles(path: Path) -> dict[str, mx.array]:
    """Reads a file with float64 tensors, which MLX refuses; these tensors are rounded to float32."""
    data = np.memmap(path, np.uint8, "r")
    start = 8 + int(data[:8].view("<u8")[0])
    entries = from_json(data[8:start].tobytes().decode("utf-8"))
    arrays = {}
    for name, entry in entries.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            raw, shape = data[start + first : start + last], entry["shape"]
            if entry["dtype"] == "F64":
                arrays[name] = mx.array(np.frombuffer(raw.tobytes(), "<f8").astype(np.float32).reshape(shape))
            else:
                arrays[name] = from_bytes(raw, entry["dtype"], tuple(shape))
    return arrays


def _open(path: Path) -> dict[str, mx.array]:
    try:
        arrays = mx.load(str(path), format="safetensors")
    except (RuntimeError, ValueError) as problem:
        raise CheckpointError(f"{path}: MLX cannot read the file ({problem})") from None
    assert isinstance(arrays, dict)
    return arrays
