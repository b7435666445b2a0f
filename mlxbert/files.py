"""Files that survive interruptions and damage: atomic writes, hashes that are checked when a file is read, locks.

And what macOS writes into folders on its own account, which belongs to nobody's work.
"""

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
from mlxbert.paths import IrregularError, file_to_write, open_regular, open_unlinked, replace_file

_LOG = logging.getLogger("mlxbert")
_ON_MAC = sys.platform == "darwin"
_DIGEST = "digest"  # of a record, next to its values
_BLOCK = 2**20  # bytes
_MOST_DIGITS = 60  # of a number in JSON; a tokenizer without a limit has 31, and Python writes at most 4,300
# macOS keeps some folders from programs, whatever their permissions say: with EPERM, where permissions give EACCES.
PRIVACY = "System Settings > Privacy & Security > Files and Folders (or Full Disk Access): allow your terminal"
_SYSTEM_FILES = (".DS_Store", ".localized", "Icon\r")  # how Finder shows a folder
_APPLE_DOUBLE = "._"  # how the name of such a file begins
_MAGIC = bytes.fromhex("00051607")  # how the file begins
_PURGEABLE = "Finder also counts purgeable space as available, which programs cannot use before macOS frees it"
# Not ENOLCK: NFS also gives it where another process may hold the lock, and only the protocol fails for now.
_NO_LOCKS = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a whole number of {len(digits):,} digits, expected at most {_MOST_DIGITS}")
    return int(digits)


_decode_json = json.JSONDecoder(parse_int=_whole).decode


def from_json(text: str) -> Any:
    """The value of JSON that somebody else wrote, whose whole numbers can be computed with and shown."""
    try:
        return _decode_json(text)
    except RecursionError:
        raise ValueError("lists or objects are nested too deeply") from None


def to_path(given: str | Path, name: str) -> Path:
    """A path, its `~` expanded."""
    try:
        path = Path(given).expanduser()
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, RuntimeError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise ArgumentError(f"{name} is {str(given)!r:.200}, which is not the name of a file ({reason})") from None
    return path


def identity(path: str | Path) -> object:
    """What is equal for two paths to one file or folder, however they are spelled; the path where there is nothing.

    Macs ignore case and Unicode forms in names, which no comparison of paths knows; and there are hard links.
    """
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return str(path)
    return state.st_dev, state.st_ino


def is_forbidden(problem: BaseException) -> bool:
    """Whether a Mac's privacy settings keep something from this program: permissions of files give EACCES."""
    return _ON_MAC and isinstance(problem, OSError) and problem.errno == errno.EPERM


def is_system_file(name: str) -> bool:
    """Whether macOS writes files of this name on its own account.

    On volumes that cannot keep the extended attributes of `x` (exFAT, FAT, some network volumes), macOS keeps the
    attributes in a file `._x` next to `x`.
    """
    return name in _SYSTEM_FILES or name.startswith(_APPLE_DOUBLE)


def is_from_system(path: Path) -> bool:
    """Whether macOS wrote a file on its own account, by its name and the content of `._x`; before the file is removed.

    A file `._x` that has vanished counts, for macOS removes it with `x`; an empty file holds nothing to lose.
    """
    if not path.name.startswith(_APPLE_DOUBLE):
        return is_system_file(path.name)
    try:
        with open(path, "rb", opener=open_regular) as file:
            return file.read(len(_MAGIC)) in (b"", _MAGIC)
    except FileNotFoundError:
        return not path.is_symlink()
    except (IsADirectoryError, IrregularError):
        return False


def remove_folder(folder: Path) -> None:
    """Removes a folder and its content; entries that vanish meanwhile do not matter.

    Where macOS keeps `._x` next to `x`, deleting `x` deletes both, and the listing that is being worked through still
    names `._x`: before Python 3.13, `shutil.rmtree` fails there.
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
    """Removes a folder if it is there and empty: what is left of a removed folder whose lock was held.

    Network volumes keep a removed file under another name until it is closed, and so the folder of the file.
    """
    with suppress(OSError):
        folder.rmdir()


class DamagedError(ValueError):
    """A file is not the one that was written."""


class HashedFile(io.BufferedWriter):
    """A new file that is hashed while it is written; it is not written through a link."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb", opener=open_unlinked))
        self._hash = hashlib.sha256()

    def write(self, data: Any) -> int:
        """Writes bytes after those before."""
        self._hash.update(data)
        return super().write(data)

    def seekable(self) -> bool:
        """No: the hash is that of the bytes in the order in which they are written."""
        return False

    def seek(self, offset: int, whence: int = 0) -> int:
        """Fails."""
        raise io.UnsupportedOperation("seek")

    @property
    def sha256(self) -> str:
        """The SHA-256 of what was written so far, in hexadecimal digits."""
        return self._hash.hexdigest()


def sha256(path: Path, size: int | None = None) -> str:
    """The SHA-256 of a file, or of its first `size` bytes, in hexadecimal digits."""
    return hashed(path, size).hexdigest()


def hashed(path: Path, size: int | None = None) -> "hashlib._Hash":
    """The SHA-256 of a file, or of its first `size` bytes, to which more can be added."""
    with open(path, "rb", opener=open_regular) as file:
        if size is None:
            return hashlib.file_digest(file, "sha256")
        found = hashlib.sha256()
        while size and (block := file.read(min(size, _BLOCK))):
            found.update(block)
            size -= len(block)
        return found


def check_space(target: Path, size: int, *, hint: str | None = None) -> None:
    """Refuses a disk with less free space than is needed.

    Args:
        target: Where it will be written; folders that do not exist yet are allowed.
        size: How many bytes will be written.
        hint: For the error.
    """
    parent = next(path for path in target.absolute().parents if path.exists())
    free = shutil.disk_usage(parent).free
    if free < size:
        if sys.platform == "darwin":
            hint = "; ".join(filter(None, (hint, _PURGEABLE)))
        raise MlxbertError(f"{target}: needs {size:,} bytes, {free:,} are free on this disk", hint=hint)


@contextmanager
def writing(path: Path, what: str = "", kept: str = "") -> Iterator[None]:
    """Writes a file or a folder.

    Args:
        path: For the error.
        what: What is written there, followed by a space.
        kept: What is kept and resumed nevertheless, after a semicolon.
    """
    try:
        yield
    except OSError as problem:
        hint = None
        if kept and problem.errno == errno.ENOSPC:
            hint = "make room and repeat the command: it resumes"
        elif is_forbidden(problem):
            hint = PRIVACY
        raise MlxbertError(
            f"{path}: {what}cannot be written ({problem.strerror or problem}){kept}", hint=hint
        ) from None


def fsync(descriptor: int, *, durable: bool = True) -> None:
    """Makes what was written survive a power failure.

    Args:
        descriptor: An open file or folder.
        durable: Whether macOS empties the cache of the whole disk, which takes tens of milliseconds. `os.fsync` leaves
            there what it writes: the next durable write of any file takes that along. Elsewhere `os.fsync` does both.
    """
    if durable and sys.platform == "darwin":
        with suppress(OSError):  # a file system without it
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def fsync_dir(folder: Path, *, durable: bool = True) -> None:
    """Makes the names in a folder survive a power failure, if the file system supports that; see `fsync`."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fsync(descriptor, durable=durable)
        finally:
            os.close(descriptor)


@contextmanager
def atomic_write(path: Path, *, locked: bool = True, durable: bool = True) -> Iterator[HashedFile]:
    """A file that gets its name once it is complete and on disk; nothing remains of a failed write.

    Args:
        path: The file, see `file_to_write`. Until it is complete it is called `NAME.unfinished`.
        locked: Whether a lock keeps other processes from writing it; otherwise each has an unfinished file of its own.
        durable: See `fsync`. `False` for files whose hash is checked before they are used, of which a power failure
            may take the last ones; and for those that a durable file names, which is written after them.
    """
    path = file_to_write(path)
    unfinished = path.with_name(f"{path.name}{'' if locked else f'.{os.getpid()}'}.unfinished")
    opened = HashedFile(unfinished)
    try:
        with opened as file:
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
    if (found := sha256(path, size)) != digest:
        raise DamagedError(f"the SHA-256 of {path.name} is {found:.12}…, expected {digest:.12}…")


def write_record(path: Path, values: Mapping[str, Any], owner: object = None, *, durable: bool = True) -> None:
    """Writes a JSON object with a hash of its values, its name and its owner, so that `read_record` knows all of them.

    Args:
        path: The file, which is replaced.
        values: JSON values by name, such as the hashes of other files.
        owner: What else has to be the same when it is read, a JSON value: records of others count as damaged.
        durable: See `atomic_write`.
    """
    content = json.loads(json.dumps(values))
    with atomic_write(path, durable=durable) as file:
        file.write(json.dumps({_DIGEST: _digest(path, content, owner), **content}, indent=1).encode())


def read_record(path: Path, owner: object = None) -> dict[str, Any]:
    """The values that `write_record` wrote under this name for this owner."""
    try:
        values = dict(json.loads(path.read_bytes()))
        digest = values.pop(_DIGEST)
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DamagedError(f"{path.name} is not a record of mlxbert") from None
    if digest != _digest(path, values, owner):
        raise DamagedError(f"{path.name} has changed since it was written, or belongs to another run")
    return values


def _digest(path: Path, content: Mapping[str, Any], owner: object) -> str:
    return hashlib.sha256(json.dumps([path.name, owner, content], sort_keys=True).encode()).hexdigest()


def acquire_lock(path: Path, holder: str, *, hint: str | None = None) -> BinaryIO:
    """Locks a folder through a file in it. On a volume without locks nothing is locked, and a warning says so.

    Args:
        path: The file in the folder; made if it is missing.
        holder: What else might hold the lock, for example "run".
        hint: For the error.

    Returns:
        The open file. Closing it releases the lock, and so does the end of the process, however it ends.
    """
    file = open(path, "ab", opener=open_regular)  # noqa: SIM115 - the caller closes it
    try:
        if not _lock(file, path):
            raise ArgumentError(f"{path.parent}: another {holder} is working on it", hint=hint)
    except BaseException:
        file.close()
        raise
    return file


def _lock(file: BinaryIO, path: Path) -> bool:
    try:
        _flock(file, path)
        # Since the file was opened, its holder may have finished and removed it, and a third process made a new one.
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
            "%s: this volume has no locks (%s); while mlxbert works there, start it only once",
            path.parent,
            problem.strerror,
        )
