"""Reads weights from NumPy archives, as MLX tools write them: a zip file with one array per member.

Members are read as streams and never unpacked to disk. Nothing in them is executed: arrays of Python objects are
rejected as soon as their header is read. Formats:
https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html and
https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
"""

import io
import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from mlxbert.errors import CheckpointError
from mlxbert.lazy_numpy import np
from mlxbert.mac_files import is_system_file
from mlxbert.machine.device import mx
from mlxbert.weights.formats.file_names import NPZ
from mlxbert.weights.formats.headers import MAX_SIZE, Header, LazyArrays, TensorInfo, from_bytes
from mlxbert.weights.formats.zip_archive import check_directory

MAX_RATIO = 100  # unpacked size to packed size; trained weights hardly compress
_SUFFIX = ".npy"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1  # flag of a member
_MAX_HEADER = 1024  # bytes; the header of a numeric array has about 120
_LOCAL = 30  # bytes of the local header before every member, without its name
# MLX stores bfloat16, which NumPy does not have, as a void type of two bytes.
_DTYPES = {"b1": "BOOL", "i1": "I8", "u1": "U8", "i2": "I16", "u2": "U16", "i4": "I32", "u4": "U32", "i8": "I64"}
_DTYPES |= {"u8": "U64", "f2": "F16", "f4": "F32", "f8": "F64", "V2": "BF16"}
# Exceptions that zipfile and numpy raise because of the content of a damaged file.
_DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    ValueError,
    RuntimeError,
    EOFError,
    MemoryError,
    OverflowError,
    TypeError,
)


@contextmanager
def _open(path: Path) -> Iterator[zipfile.ZipFile]:
    """Opens an archive; converts the errors that a damaged archive causes to `CheckpointError`."""
    try:
        with path.open("rb") as file:
            check_directory(path, file, path.stat().st_size)  # zipfile creates an object per entry
            with zipfile.ZipFile(file) as archive:
                yield archive
    except OSError as problem:
        raise CheckpointError(f"{path}: cannot be read ({problem.strerror or problem})") from None
    except _DAMAGE_ERRORS as problem:
        raise CheckpointError(
            f"{path}: the NumPy archive is damaged ({problem})", hint="download the model again"
        ) from None


def _check_members(path: Path, members: Sequence[zipfile.ZipInfo], room: int) -> None:
    """Rejects members that no tool would write; `room` is the offset of the central directory."""
    total = sum(member.file_size for member in members)
    if total > MAX_RATIO * room:
        raise CheckpointError(
            f"{path}: the arrays have {room} packed and {total} unpacked bytes, expected at most {MAX_RATIO * room}"
        )
    position, seen = 0, set()
    for member in sorted(members, key=lambda member: member.header_offset):
        name, stored = member.filename, member.compress_type == zipfile.ZIP_STORED
        wrong = {
            "is not an array": not name.endswith(_SUFFIX) or name != member.orig_filename,
            "points outside the archive": ".." in name or name.startswith(("/", "\\")),
            "appears twice": name in seen,
            "is encrypted": bool(member.flag_bits & _ENCRYPTED),
            f"is compressed by method {member.compress_type}": member.compress_type not in _METHODS,
            "has two sizes": stored and member.compress_size != member.file_size,
            "overlaps another member": member.header_offset < position,
        }  # fmt: skip
        for what, applies in wrong.items():
            if applies:
                raise CheckpointError(f"{path}: member {name!r} {what}, expected plain arrays with unique names")
        seen.add(name)
        position = member.header_offset + _LOCAL + len(name.encode()) + member.compress_size
    if position > room:
        raise CheckpointError(f"{path}: the archive is truncated, because its members end at byte {position} of {room}")


def _read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """Reads the header of an array: its shape, whether its order is column-major (Fortran), and its dtype."""
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"the version is {version}, expected (1, 0) or (2, 0)")
    start = file.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(start, "little")
    if length > _MAX_HEADER:  # numpy reads the whole header before it checks it
        raise ValueError(f"the size is {length} bytes, expected at most {_MAX_HEADER}")
    header = io.BytesIO(start + file.read(length))
    return npy.read_array_header_1_0(header) if version == (1, 0) else npy.read_array_header_2_0(header)


def _tensor(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> TensorInfo:
    name = member.filename.removesuffix(_SUFFIX)
    with archive.open(member) as file:
        try:
            shape, _, dtype = _read_npy_header(file)
        except (*_DAMAGE_ERRORS, SyntaxError, RecursionError, tokenize.TokenError) as problem:
            raise CheckpointError(f"{path}: array {name!r} has a damaged header ({problem!s:.80})") from None
        start = file.tell()
    if dtype.hasobject:
        raise CheckpointError(
            f"{path}: array {name!r} holds Python objects, expected numbers",
            hint="mlxbert never loads Python objects",
        )
    dtype_name = _DTYPES.get(f"{dtype.kind}{dtype.itemsize}")
    if dtype_name is None or dtype.names or dtype.subdtype:
        raise CheckpointError(f"{path}: array {name!r} has dtype {dtype}, expected one of {', '.join(_DTYPES)}")
    if not all(0 <= size <= MAX_SIZE for size in shape):
        raise CheckpointError(f"{path}: array {name!r} has shape {shape}, expected sizes of 0 to {MAX_SIZE}")
    if member.file_size - start != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(
            f"{path}: array {name!r} of {dtype} {shape} has {member.file_size - start} bytes, expected "
            f"{math.prod(shape) * dtype.itemsize}"
        )
    return TensorInfo(dtype_name, shape, path)


def read_header(path: Path) -> Header:
    """Reads and checks the metadata of the arrays in an archive, but not their data."""
    with _open(path) as archive:
        members = archive.infolist()
        _check_members(path, members, archive.start_dir)
        tensors = {m.filename.removesuffix(_SUFFIX): _tensor(path, archive, m) for m in members}
        return Header(tensors, {}, path.stat().st_size)


def read_headers(folder: Path, classes: Sequence[str] = ()) -> dict[Path, Header] | None:
    """Maps the path of the archive in a model folder to its header; returns `None` if there is no archive.

    Raises `CheckpointError` if there are several archives.
    """
    archives = sorted(path for path in folder.glob(NPZ) if path.is_file() and not is_system_file(path.name))
    if len(archives) > 1:
        raise CheckpointError(
            f"{folder}: the folder has {len(archives)} NumPy archives ({', '.join(path.name for path in archives)}), "
            "expected one",
            hint="keep only the archive with the weights",
        )
    return {path: read_header(path) for path in archives} or None


def _read(path: Path, name: str, info: TensorInfo) -> mx.array:
    if info.dtype == "F64":
        raise CheckpointError(f"{path}: array {name!r} has dtype F64, which MLX does not support, expected F32")
    with _open(path) as archive, archive.open(name + _SUFFIX) as file:
        shape, by_columns, dtype = _read_npy_header(file)
        size = math.prod(info.shape) * dtype.itemsize
        data = file.read(size + 1)  # one byte more: zipfile checks the CRC only at the end of a member
        if shape != info.shape or len(data) != size:
            raise CheckpointError(
                f"{path}: the archive is damaged, because the size of array {name!r} differs from its header"
            )
        array = np.frombuffer(data, dtype).reshape(shape, order="F" if by_columns else "C")
        array = array.astype(dtype.newbyteorder("<")) if dtype.byteorder == ">" else array
        return from_bytes(np.ascontiguousarray(array).reshape(-1).view(np.uint8), info.dtype, info.shape)


def load_arrays(path: Path, header: Header) -> Mapping[str, mx.array]:
    """Returns, by name, the arrays of an archive whose header was checked; each is read when it is accessed."""
    return LazyArrays(header.tensors, lambda name: _read(path, name, header.tensors[name]))
