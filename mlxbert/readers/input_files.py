"""Opens input files; a file that changes while it is read causes an error.

The size and the modification time are compared after opening and after each read, including the last one, so that
nothing from a changed file is used.
"""

import difflib
import hashlib
import io
import itertools
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from mlxbert.errors import ChangedError, InputError
from mlxbert.paths import check_regular, open_regular
from mlxbert.readers.pipes import as_it_comes

STDIN = "-"
_BLOCK = 2**14  # bytes that are hashed at a time
_MAX_NAMES = 1000  # names of a folder that are compared with the name of a missing file


class Stamp(NamedTuple):
    """The size and modification time of a file, which show later whether the file has changed."""

    size: int  # the size in bytes
    time: int  # the modification time in nanoseconds


class _Raw(io.FileIO):
    """The bytes of a regular file; see `InputFile`."""

    def __init__(self, file: str | Path | int, name: str, stamp: Stamp | None) -> None:
        if isinstance(file, int):
            check_regular(name, os.fstat(file).st_mode)  # /dev/zero has no end
            super().__init__(file, closefd=False)
        else:
            super().__init__(file, opener=open_regular)
        state = os.fstat(self.fileno())
        self.shown_name, self.stamp = name, stamp or _stamp(state)

    def check(self) -> None:
        now = _stamp(os.fstat(self.fileno()))
        if now != self.stamp:
            sizes = f"{self.stamp.size:,} bytes before, {now.size:,} now"
            raise ChangedError(
                f"{self.shown_name}: the file changed while in use ({sizes})",
                hint="wait until nothing writes to the file, and repeat the command",
            )

    def readinto(self, buffer: Any, /) -> int | None:
        count = super().readinto(buffer)
        self.check()
        return count

    def readall(self) -> bytes:
        data = super().readall()
        self.check()
        return data


class InputFile(io.BufferedReader):
    """A regular file that must not change while it is read.

    Args:
        file: The path, or the descriptor of an open file, which the caller closes.
        stamp: The stamp of the file when it was hashed or read before; by default its current stamp.
    """

    def __init__(self, file: str | Path | int, name: str, stamp: Stamp | None = None) -> None:
        self._checked = _Raw(file, name, stamp)
        super().__init__(self._checked)
        self.reopens = not isinstance(file, int)  # whether another process can read it again
        self._checked.check()

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        try:
            if kind is None:
                self._checked.check()
        finally:
            super().__exit__(kind, *rest)

    @property
    def stamp(self) -> Stamp:
        """The stamp with which the file is compared after each read."""
        return self._checked.stamp

    def sha256(self) -> str:
        """The SHA-256 of the whole file, in hexadecimal digits; the reading position does not change."""
        digest, start = hashlib.sha256(), 0
        while block := os.pread(self.fileno(), _BLOCK, start):
            digest.update(block)
            start += len(block)
        self._checked.check()
        return digest.hexdigest()


def open_source(
    source: str | Path | BinaryIO, name: str | None = None, stamp: Stamp | None = None, *, pipes: bool = True
) -> BinaryIO:
    """Opens an input: a regular file as an `InputFile`, a pipe or terminal as a `Pipe`.

    An open file that is not a regular file, such as a decompressor, is returned unchanged.

    Args:
        source: The path, or a file opened in binary mode, which the caller closes.
        name: The name of the input in errors; by default its path.
        stamp: The stamp of the file when it was hashed or read before.
        pipes: Whether to accept a pipe and wait for its input: true for a user's paths, false for files found in a
            folder.
    """
    if not isinstance(source, str | Path):
        plain_file = type(source) is io.BufferedReader and type(source.raw) is io.FileIO  # not a decompressor
        if not plain_file or not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            return source
        file = InputFile(source.fileno(), name or str(getattr(source, "name", "input")))
        file.seek(source.tell())
        return file
    try:
        if stamp is not None or not pipes or stat.S_ISREG(os.stat(source).st_mode):
            return InputFile(source, name or str(source), stamp)
        return as_it_comes(open(source, "rb"), closes=True)
    except (OSError, ValueError) as problem:
        raise _unreadable(source, problem) from None


def stdin() -> BinaryIO:
    """Returns the standard input in binary mode; raises an error if it is closed."""
    if sys.stdin is None:
        raise InputError("stdin is closed")
    return sys.stdin.buffer


def check_there(source: object) -> None:
    """Raises an error if a path does not exist; accepts an open file."""
    if isinstance(source, str | Path):
        try:
            os.stat(source)
        except (OSError, ValueError) as problem:
            raise _unreadable(source, problem) from None


def _unreadable(source: str | Path, problem: Exception) -> InputError:
    reason = getattr(problem, "strerror", problem)
    return InputError(f"{source}: cannot be read ({reason})", hint=hint_of_missing(source, problem))


def hint_of_missing(path: str | Path, problem: Exception) -> str | None:
    """Returns the hint for a missing file: a file with a similar name, or the folder that was searched."""
    if not isinstance(problem, FileNotFoundError):
        return None
    folder, similar = Path(path).parent, list[str]()
    with suppress(OSError):
        with os.scandir(folder) as entries:
            names = [entry.name for entry in itertools.islice(entries, _MAX_NAMES) if entry.is_file()]
        similar = difflib.get_close_matches(Path(path).name, names, n=1, cutoff=0.85)
    if similar:
        return f"a file with a similar name is {folder / similar[0]}"
    if not folder.is_dir():
        return f"the folder {folder} does not exist"
    return f"check the path, because {folder.absolute()} has no file with this name"


def to_read_again(file: BinaryIO) -> InputFile | None:
    """Returns the file if another process can read it again; otherwise, for example for a pipe, `None`."""
    return file if isinstance(file, InputFile) and file.reopens else None


def hashed(path: Path) -> tuple[str, Stamp]:
    """Returns the SHA-256 of an input file, and the stamp that the file had when it was hashed."""
    try:
        with InputFile(path, str(path)) as file:
            return file.sha256(), file.stamp
    except OSError as problem:
        raise _unreadable(path, problem) from None


def stamp_of(path: Path) -> Stamp:
    """Returns the current stamp of an input file."""
    try:
        return _stamp(path.stat())
    except OSError as problem:
        raise _unreadable(path, problem) from None


def _stamp(state: os.stat_result) -> Stamp:
    return Stamp(state.st_size, state.st_mtime_ns)
