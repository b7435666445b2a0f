"""Pipes and terminals: what arrives there is to be worked on as soon as nothing more is waiting to be read."""

import io
import os
import select
import stat
from contextlib import suppress
from typing import Any, BinaryIO

PAUSE = 0.05  # seconds without input after which nothing is waiting
LONGEST = 2**25  # bytes of a record: what a file can make of the memory, however small it is when compressed
_CHUNK = 1 << 16  # bytes read at a time


class Opened:
    """An open source: how much of it was read, and whether the next record has arrived.

    Attributes:
        piped: Whether it is a pipe or a terminal.
    """

    piped = False

    @property
    def done(self) -> int:
        """Bytes read so far."""
        return 0

    def ready(self) -> bool:
        """Whether the next record, or the end, can be read at once; may wait for `PAUSE` to find out."""
        return True


class Pipe(io.RawIOBase):
    """A pipe or a terminal, read without waiting for more than one line, or for more of one than `LONGEST`.

    Args:
        file: Opened and not read from.
        closes: Whether it is closed with this one.
    """

    def __init__(self, file: BinaryIO, *, closes: bool) -> None:
        self._file, self._closes = file, closes
        self._descriptor = file.fileno()
        self._buffer = bytearray()
        self._seen = 0  # bytes of the buffer without a newline
        self._ended = False

    def readable(self) -> bool:
        """Always true."""
        return True

    def close(self) -> None:
        """Closes the file where that was asked for."""
        if self._closes and not self.closed:
            self._file.close()
        super().close()

    def first_line(self) -> bytes:
        """The next line, which stays to be read; nothing at the end, or where reading fails."""
        with suppress(OSError):  # told again to whoever reads on
            while not self._has_line():
                self._fill()
        return bytes(self._buffer[: self._seen + 1])

    def ready(self) -> bool:
        """Whether a line, or the end, has arrived; `False` after `PAUSE` without input."""
        with suppress(OSError):  # told again to whoever reads on
            while not self._has_line():
                if not select.select([self._descriptor], [], [], PAUSE)[0]:
                    return False
                self._fill()
        return True

    def readinto(self, target: bytearray) -> int:  # type: ignore[override]
        """What has arrived, at least one byte; 0 at the end."""
        if not self._buffer and not self._ended:
            self._fill()
        taken = self._take(min(len(target), len(self._buffer)))
        target[: len(taken)] = taken
        return len(taken)

    def readline(self, size: int | None = -1) -> bytes:
        """The next line with its newline, or the first `size` bytes of it; nothing at the end."""
        most = None if size is None or size < 0 else size
        while not self._has_line(most):
            self._fill()
        end = self._buffer.find(b"\n", self._seen) + 1 or len(self._buffer)
        return self._take(end if most is None else min(end, most))

    def _has_line(self, most: int | None = LONGEST) -> bool:
        """Whether there is a line, as much as `most` bytes of one, or the end."""
        found = self._buffer.find(b"\n", self._seen)
        self._seen = len(self._buffer) if found < 0 else found
        return found >= 0 or self._ended or (most is not None and len(self._buffer) >= most)

    def _fill(self) -> None:
        select.select([self._descriptor], [], [])  # others may have made the pipe one that does not wait
        data = os.read(self._descriptor, _CHUNK)
        self._buffer += data
        self._ended = not data

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._seen = 0
        return taken


def as_it_comes(file: BinaryIO, *, closes: bool = False) -> BinaryIO:
    """The file; a pipe, a terminal or the like as a `Pipe`, see there."""
    try:
        mode = os.fstat(file.fileno()).st_mode
    except (OSError, ValueError):  # no file of the system
        return file
    found: Any = file if stat.S_ISREG(mode) or stat.S_ISBLK(mode) else Pipe(file, closes=closes)
    return found


def first_line(file: BinaryIO) -> bytes:
    """The next line of a file, or `LONGEST` bytes of it, which stays to be read; nothing where that cannot be."""
    if isinstance(file, Pipe):
        return file.first_line()
    if not file.seekable():
        return b""
    start = file.tell()
    line = file.readline(LONGEST)
    file.seek(start)
    return line
