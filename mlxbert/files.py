"""Files that survive interruptions: atomic writes, locks, hashes."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mlxbert.errors import ArgumentError


def to_path(given: str | Path, name: str) -> Path:
    """A path, its `~` expanded.

    Raises:
        ArgumentError: No file can be called so: the name is too long, or has a NUL character; there is no such user.
    """
    try:
        path = Path(given).expanduser()
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass
    except (OSError, RuntimeError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise ArgumentError(f"{name} is {str(given)!r:.200}, which is not the name of a file ({reason})") from None
    return path


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_dir(folder: Path) -> None:
    """Makes the names in a folder survive a power failure, if the file system supports that."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name once it is complete and on disk; nothing remains of a failed write.

    Until then it is called `NAME.unfinished`.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def acquire_lock(path: Path, holder: str, *, hint: str | None = None) -> BinaryIO:
    """Locks a folder through a file in it.

    Args:
        path: The file in the folder; made if it is missing.
        holder: What else might hold the lock, for example "run".
        hint: For the error.

    Returns:
        The open file. Closing it releases the lock, and so does the end of the process, however it ends.

    Raises:
        ArgumentError: Another process holds the lock, or has just finished and removed the file.
    """
    file = path.open("ab")
    try:
        if not _lock(file, path):
            raise ArgumentError(f"{path.parent}: another {holder} is working on it", hint=hint)
    except BaseException:
        file.close()
        raise
    return file


def _lock(file: BinaryIO, path: Path) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Since the file was opened, its holder may have finished and removed it, and a third process made a new one.
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
