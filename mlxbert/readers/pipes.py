"""Reads pipes and terminals so that each record can be processed as soon as it arrives."""

import io
import os
import select
import stat
from contextlib import suppress
from typing import Any, BinaryIO

PAUSE = 0.05  # seconds without input after which nothing more is expected
LONGEST = 2**25  # maximum bytes of a record: bounds the memory that even a small compressed file can use
_CHUNK = 1 << 16  # bytes read at a time


class Opened:
    """An open source that knows how many bytes were read, and whether the next record has arrived."""

    piped = False  # whether the source is a pipe or a terminal

    @property
    def done(self) -> int:
        """The number of bytes read so far."""
        return 0

    def ready(self) -> bool:
        """Whether the next record, or the end, can be read without waiting; waits up to `PAUSE` to find out."""
        return True


class Pipe(io.RawIOBase):
    """A pipe or a terminal; reading never waits for more than one line or `LONGEST` bytes.

    Args:
        file: The open pipe, from which nothing has been read.
        closes: Whether closing this object closes the file, too.
    """

    def __init__(self, file: BinaryIO, *, closes: bool) -> None:
        self._file, self._closes = file, closes
        self._descriptor = file.fileno()
        self._buffer = bytearray()
        self._seen = 0  # leading bytes of the buffer that contain no newline
        self._ended = False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Closes the file if `closes` was set."""
        if self._closes and not self.closed:
            self._file.close()
        super().close()

    def first_line(self) -> bytes:
        """Returns the next line without consuming it; empty at the end, or if reading fails."""
        with suppress(OSError):  # the next read raises it again
            while not self._has_line():
                self._fill()
        return bytes(self._buffer[: self._seen + 1])

    def ready(self) -> bool:
        """Whether a line, or the end, has arrived; false if nothing arrives within `PAUSE`."""
        with suppress(OSError):  # the next read raises it again
            while not self._has_line():
                if not select.select([self._descriptor], [], [], PAUSE)[0]:
                    return False
                self._fill()
        return True

    def readinto(self, target: bytearray) -> int:  # type: ignore[override]
        """Reads the bytes that have arrived, at least one; returns their number, or 0 at the end."""
        if not self._buffer and not self._ended:
            self._fill()
        data = self._take(min(len(target), len(self._buffer)))
        target[: len(data)] = data
        return len(data)

    def readline(self, size: int | None = -1) -> bytes:
        """Returns the next line with its newline, or the first `size` bytes of a longer line; empty at the end."""
        limit = None if size is None or size < 0 else size
        while not self._has_line(limit):
            self._fill()
        end = self._buffer.find(b"\n", self._seen) + 1 or len(self._buffer)
        return self._take(end if limit is None else min(end, limit))

    def _has_line(self, limit: int | None = LONGEST) -> bool:
        """Whether the buffer holds a line, `limit` bytes of a line, or the end of the input."""
        newline = self._buffer.find(b"\n", self._seen)
        self._seen = len(self._buffer) if newline < 0 else newline
        return newline >= 0 or self._ended or (limit is not None and len(self._buffer) >= limit)

    def _fill(self) -> None:
        select.select([self._descriptor], [], [])  # another process may have made the pipe non-blocking
        data = os.read(self._descriptor, _CHUNK)
        self._buffer += data
        self._ended = not data

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._seen = 0
        return data


def as_it_comes(file: BinaryIO, *, closes: bool = False) -> BinaryIO:
    """Wraps a pipe, a terminal or a similar file in a `Pipe`; returns a regular file unchanged."""
    try:
        mode = os.fstat(file.fileno()).st_mode
    except (OSError, ValueError):  # no file descriptor
        return file
    source: Any = file if stat.S_ISREG(mode) or stat.S_ISBLK(mode) else Pipe(file, closes=closes)
    return source


def first_line(file: BinaryIO) -> bytes:
    """Returns a file's next line, or its first `LONGEST` bytes, without consuming it; empty if the file cannot seek."""
    if isinstance(file, Pipe):
        return file.first_line()
    if not file.seekable():
        return b""
    start = file.tell()
    line = file.readline(LONGEST)
    file.seek(start)
    return line
