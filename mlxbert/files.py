"""Files that survive interruptions: atomic writes, locks, hashes."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from mlxbert.errors import ArgumentError, MlxbertError


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_space(target: Path, size: int, *, hint: str | None = None) -> None:
    """Refuses a disk with less free space than is needed.

    Args:
        target: Where it will be written; folders that do not exist yet are allowed.
        size: How many bytes will be written.
        hint: For the error.

    Raises:
        MlxbertError: There is less.
    """
    parent = next(path for path in target.absolute().parents if path.exists())
    free = shutil.disk_usage(parent).free
    if free < size:
        raise MlxbertError(f"{target}: needs {size:,} bytes, {free:,} are free on this disk", hint=hint)


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
