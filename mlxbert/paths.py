"""Opens and replaces regular files only.

Opening a FIFO blocks, and renaming a file to the path of a device, a FIFO or a socket would destroy it.
"""

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

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
    """A path leads to something other than a regular file."""


def kind_of(mode: int) -> str:
    """The kind of a file, by its mode: `a file`, `a folder`, `a device`."""
    return next((name for matches, name in _KINDS if matches(mode)), "something else")


def check_regular(path: str | Path, mode: int) -> None:
    """Raises an OSError unless a mode is that of a regular file."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(mode):
        raise IrregularError(errno.EINVAL, f"is {kind_of(mode)}, not a regular file", os.fspath(path))


def file_to_write(path: str | Path) -> Path:
    """Returns the real path of a file to write; it must be new, or a regular file.

    Everything that mlxbert writes or replaces goes through this function. Links are followed: a link stays a link, and
    its target is written.
    """
    with suppress(FileNotFoundError):
        check_regular(path, os.stat(path).st_mode)  # the path itself: a link to a pipe has no real path
    return Path(os.path.realpath(path))


def may_write(folder: str | Path) -> bool:
    """Whether the permissions of a folder let this process, as its effective user, create files there."""
    return os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def replace_file(new: str | Path, path: str | Path) -> None:
    """Renames a file to a path; only a regular file may be replaced there (see `file_to_write`)."""
    os.replace(new, file_to_write(path))


def open_unlinked(path: str | Path, flags: int) -> int:
    """Like `open_regular`, but raises an error if the path itself is a link."""
    return open_regular(path, flags | os.O_NOFOLLOW)


def open_regular(path: str | Path, flags: int, *, folder: int | None = None) -> int:
    """Opens a regular file for reading or writing, without blocking; can be the `opener` of `open`.

    A FIFO or a device is not even opened, unless it takes the file's place between two system calls.

    Args:
        folder: The descriptor of the folder that a relative path starts from.

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
