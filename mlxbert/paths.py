"""What stands at a path that is read or written: files are regular ones, and nothing else is replaced or waited for.

A FIFO makes whoever opens it wait, and a device, a FIFO or a socket that a file is renamed to is gone.
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISREG, "a file"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class IrregularError(OSError):
    """What stands at a path is not a regular file."""


def kind_of(mode: int) -> str:
    """What a path leads to, in words: `a file`, `a folder`, `a device`."""
    return next((name for is_such, name in _KINDS if is_such(mode)), "something else")


def check_regular(path: str | Path, mode: int) -> None:
    """Refuses what is not a regular file."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise IrregularError(errno.EINVAL, f"is {kind_of(mode)}, not a regular file", os.fspath(path))


def file_to_write(path: str | Path) -> Path:
    """Where a file is written: the regular file at a path, or the place of a new one.

    Whatever mlxbert writes or replaces goes through this function. Links are followed: a link stays a link, and what it
    leads to is written.
    """
    with suppress(FileNotFoundError):
        check_regular(path, os.stat(path).st_mode)  # of the path itself: a link to a pipe has no real path
    return Path(os.path.realpath(path))


def may_write(folder: str | Path) -> bool:
    """Whether permissions let this process make files in a folder; a process may act for another user."""
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def replace_file(new: str | Path, path: str | Path) -> None:
    """Renames a file to a path, where it replaces a regular file alone; see `file_to_write`."""
    os.replace(new, file_to_write(path))


def open_unlinked(path: str | Path, flags: int) -> int:
    """As `open_regular`, of a path that is not a link itself."""
    return open_regular(path, flags | os.O_NOFOLLOW)


def open_below(root: str | Path, path: str | Path) -> int:
    """Opens a regular file in a folder for reading, as `open_regular`; no link is followed below the folder.

    Args:
        root: The folder, or the file itself; links that lead to it are followed.
        path: The file, spelled as the folder.

    Returns:
        The descriptor.
    """
    *folders, name = os.path.relpath(path, root).split(os.sep)
    if name == os.curdir:
        return open_regular(path, os.O_RDONLY)
    below = os.open(root, _FOLDER)
    try:
        for folder in folders:
            above, below = below, os.open(folder, _FOLDER | os.O_NOFOLLOW, dir_fd=below)
            os.close(above)
        return open_regular(name, os.O_RDONLY | os.O_NOFOLLOW, folder=below)
    finally:
        os.close(below)


def open_regular(path: str | Path, flags: int, *, folder: int | None = None) -> int:
    """Opens a regular file, for reading or writing; waits for no other process. An `opener` of `open`.

    A FIFO or a device is not even opened, unless it has come between two calls of the system.

    Args:
        path: The file.
        flags: As of `os.open`.
        folder: The descriptor of the folder that a relative path begins at.

    Returns:
        The descriptor.
    """
    try:
        check_regular(path, os.stat(path, dir_fd=folder, follow_symlinks=not flags & os.O_NOFOLLOW).st_mode)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666, dir_fd=folder)
    try:
        check_regular(path, os.fstat(descriptor).st_mode)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
