"""Files that survive interruptions and damage: atomic writes, hashes checked when a file is read, and locks."""

import errno
import fcntl
import hashlib
import io
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.mac_files import PRIVACY, is_forbidden
from mlxbert.paths import file_to_write, open_regular, open_unlinked, replace_file

_LOG = logging.getLogger("mlxbert")
_DIGEST = "digest"  # the key of a record's hash, next to its values
_BLOCK = 2**20  # bytes
_MAX_DIGITS = 60  # of a number in JSON: tokenizers without a length limit state 31 digits; Python writes up to 4,300
_PURGEABLE = "Finder also counts purgeable space as available, which programs cannot use before macOS frees it"
# Without ENOLCK: NFS also returns it for temporary failures, while another process may hold the lock.
_NO_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def _parse_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits, expected at most {_MAX_DIGITS}")
    return int(digits)


_decode_json = json.JSONDecoder(parse_int=_parse_int).decode


def from_json(text: str) -> Any:
    """Parses JSON from an outside source; rejects integers that have too many digits to compute with or to print."""
    try:
        return _decode_json(text)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


def to_path(value: str | Path, name: str) -> Path:
    """Converts an argument to a path and expands `~`; `name` is the argument's name in errors."""
    try:
        path = Path(value).expanduser()
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, RuntimeError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise ArgumentError(f"`{name}` is {str(value)!r:.200}, which is not a valid path ({reason})") from None
    return path


def identity(path: str | Path) -> object:
    """Returns a value that is equal for all paths to the same file or folder; the path itself if nothing exists there.

    Paths cannot be compared as text: Macs ignore case and Unicode forms in names, and there are hard links.
    """
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return str(path)
    return state.st_dev, state.st_ino


def remove_folder(folder: Path) -> None:
    """Removes a folder and its content; ignores entries that vanish meanwhile.

    Where macOS keeps `._x` next to `x`, deleting `x` deletes both, but `._x` is still in the directory listing that
    `shutil.rmtree` works through: before Python 3.13, it fails there.
    """

    def stop(function: object, path: str, problem: BaseException) -> None:
        if not isinstance(problem, FileNotFoundError):
            raise problem

    def stop_before_3_12(
        function: object, path: str, problem: tuple[type[BaseException], BaseException, TracebackType]
    ) -> None:
        stop(function, path, problem[1])

    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=stop)
    else:
        shutil.rmtree(folder, onerror=stop_before_3_12)


def remove_empty(folder: Path) -> None:
    """Removes a folder if it is empty; otherwise, or if it does not exist, does nothing.

    On network volumes, a removed lock file stays in its folder, under another name, until it is closed. So close the
    lock first.
    """
    with suppress(OSError):
        folder.rmdir()


class DamagedError(ValueError):
    """A file differs from what was written."""


class HashedFile(io.BufferedWriter):
    """A new file that is hashed while it is written. Creating it fails if its path is a link."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb", opener=open_unlinked))
        self._hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Appends bytes and updates the hash."""
        self._hash.update(data)
        return super().write(data)

    def seekable(self) -> bool:
        """Always false: the hash covers the bytes in the order in which they are written."""
        return False

    def seek(self, offset: int, whence: int = 0) -> int:
        """Raises `io.UnsupportedOperation`."""
        raise io.UnsupportedOperation("seek")

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes written so far, in hexadecimal digits."""
        return self._hash.hexdigest()


def sha256(path: Path, size: int | None = None) -> str:
    """The SHA-256 of a file, or of its first `size` bytes, in hexadecimal digits."""
    return hashed(path, size).hexdigest()


def hashed(path: Path, size: int | None = None) -> "hashlib._Hash":
    """Returns a SHA-256 object that has read a file, or its first `size` bytes; the caller may add more data."""
    with open(path, "rb", opener=open_regular) as file:
        if size is None:
            return hashlib.file_digest(file, "sha256")
        digest = hashlib.sha256()
        while size and (block := file.read(min(size, _BLOCK))):
            digest.update(block)
            size -= len(block)
        return digest


def check_space(target: Path, size: int, *, hint: str | None = None) -> None:
    """Raises an error if the disk has too little free space.

    Args:
        target: The path that will be written; its folders need not exist yet.
        size: The number of bytes that will be written.
    """
    parent = next(path for path in target.absolute().parents if path.exists())
    free = shutil.disk_usage(parent).free
    if free < size:
        if sys.platform == "darwin":
            hint = "; ".join(filter(None, (hint, _PURGEABLE)))
        raise MlxbertError(
            f"{target}: the files need {size:,} bytes, but only {free:,} bytes are free on this disk", hint=hint
        )


@contextmanager
def writing(path: Path, what: str = "", kept: str = "") -> Iterator[None]:
    """Converts an OSError in the block to an error that says what could not be written.

    Args:
        path: The file or folder that the block writes.
        what: The name of the content for the error message, followed by a space.
        kept: The end of the message: a semicolon, then what is kept despite the error and can be resumed.
    """
    try:
        yield
    except OSError as problem:
        hint = None
        if kept and problem.errno == errno.ENOSPC:
            hint = "free some space on the disk, then repeat the command, which resumes the work"
        elif is_forbidden(problem):
            hint = PRIVACY
        raise MlxbertError(
            f"{path}: {what}cannot be written ({problem.strerror or problem}){kept}", hint=hint
        ) from None


def fsync(descriptor: int, *, durable: bool = True) -> None:
    """Makes the written data survive a power failure.

    Args:
        descriptor: An open file or folder.
        durable: Whether macOS also flushes the disk's own cache, which takes tens of milliseconds. On macOS, `os.fsync`
            only moves data to that cache; any file's next durable write flushes it. Elsewhere, `os.fsync` does both.
    """
    if durable and sys.platform == "darwin":
        with suppress(OSError):  # the file system does not support it
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def fsync_dir(folder: Path, *, durable: bool = True) -> None:
    """Makes the names in a folder survive a power failure, if the file system supports that (see `fsync`)."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fsync(descriptor, durable=durable)
        finally:
            os.close(descriptor)


@contextmanager
def atomic_write(path: Path, *, locked: bool = True, durable: bool = True) -> Iterator[HashedFile]:
    """Writes a file that gets its name once it is complete and on disk; a failed write leaves nothing behind.

    Args:
        path: The file (see `file_to_write`). Until it is complete, its name is `NAME.unfinished`.
        locked: Whether a lock keeps other processes from writing the file; if not, each process has its own
            unfinished file.
        durable: See `fsync`. `False` is safe in two cases: the file's hash is checked before use, so that a loss in a
            power failure is noticed; or the file is not used before a durable file that refers to it has been written.
    """
    path = file_to_write(path)
    unfinished = path.with_name(f"{path.name}{'' if locked else f'.{os.getpid()}'}.unfinished")
    hashed_file = HashedFile(unfinished)
    try:
        with hashed_file as file:
            yield file
            file.flush()
            fsync(file.fileno(), durable=durable)
        replace_file(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent, durable=durable)


def check_hash(path: Path, digest: str, size: int | None = None) -> None:
    """Checks a file, or its first `size` bytes, against the SHA-256 that was recorded when it was written."""
    if (actual := sha256(path, size)) != digest:
        raise DamagedError(f"the SHA-256 of {path.name} is {actual:.12}…, expected {digest:.12}…")


def write_record(path: Path, values: Mapping[str, Any], owner: object = None, *, durable: bool = True) -> None:
    """Writes values as JSON, with a hash of the values, the file name and the owner, which `read_record` checks.

    Args:
        path: The file, which is replaced.
        values: JSON values by name, such as the hashes of other files.
        owner: A JSON value that must be the same when the record is read; otherwise, the record counts as
            damaged.
    """
    content = json.loads(json.dumps(values))
    with atomic_write(path, durable=durable) as file:
        file.write(json.dumps({_DIGEST: _digest(path, content, owner), **content}, indent=1).encode())


def read_record(path: Path, owner: object = None) -> dict[str, Any]:
    """Reads the values of a record that `write_record` wrote to this file for this owner."""
    try:
        values = dict(json.loads(path.read_bytes()))
        digest = values.pop(_DIGEST)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DamagedError(f"{path.name} is damaged, or was not written by mlxbert") from None
    if digest != _digest(path, values, owner):
        raise DamagedError(f"{path.name} has changed since it was written, or belongs to another run")
    return values


def _digest(path: Path, content: Mapping[str, Any], owner: object) -> str:
    return hashlib.sha256(json.dumps([path.name, owner, content], sort_keys=True).encode()).hexdigest()


def acquire_lock(path: Path, holder: str, *, hint: str | None = None) -> BinaryIO:
    """Locks a folder through a file in it. On a volume without locks it only logs a warning.

    Args:
        path: The file in the folder; created if it is missing.
        holder: What else might hold the lock, for example "run".

    Returns:
        The open file. The lock is released when it is closed, or when the process ends, however it ends.
    """
    file = open(path, "ab", opener=open_regular)  # noqa: SIM115 - the caller closes it
    try:
        if not _lock(file, path):
            raise ArgumentError(f"{path.parent}: another {holder} is using this folder", hint=hint)
    except BaseException:
        file.close()
        raise
    return file


def _lock(file: BinaryIO, path: Path) -> bool:
    try:
        _flock(file, path)
        # After this process opened the file, the holder may have removed it, and a third process made a new one.
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def _flock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno not in _NO_LOCKS:
            raise
        _LOG.warning(
            "%s: this volume has no locks (%s); do not run mlxbert twice at the same time in this folder",
            path.parent,
            problem.strerror,
        )
