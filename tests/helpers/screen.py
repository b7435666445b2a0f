"""A real terminal: processes write to it, and a test reads what it shows."""

import errno
import os
import threading
import time
from typing import Self

import pytest

_END = b"\0the end of a test's terminal\0"
_TIMEOUT = 120  # seconds, against a hanging process; nothing is measured


class Screen:
    """A terminal, which is read all the time.

    On macOS it matters when: what nobody has read is lost as soon as the last process closes its side, and a process
    that is to end waits until it is read. So this side of the processes stays open, and a thread reads.

    Attributes:
        inner: The side of the processes, a file descriptor for their streams.
    """

    def __init__(self) -> None:
        self._outer, self.inner = os.openpty()
        self._found = bytearray()
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        while not self._found.endswith(_END):
            try:
                piece = os.read(self._outer, 65536)
            except OSError as problem:
                if problem.errno != errno.EIO:  # how Linux says that the other side is closed
                    raise
                return
            if not piece:
                return
            self._found += piece

    def wait_for(self, text: bytes) -> None:
        """Waits until it shows a text."""
        until = time.monotonic() + _TIMEOUT
        while text not in self._found:
            if time.monotonic() > until:
                pytest.fail(f"the terminal does not show {text!r}: {bytes(self._found)!r}")
            time.sleep(0.01)

    def type(self, keys: bytes) -> None:
        """Types on its keyboard."""
        os.write(self._outer, keys)

    def shown(self) -> bytes:
        """Everything that it has shown, when the processes that wrote to it have ended."""
        os.write(self.inner, _END)  # comes after all that they wrote
        self._reading.join(_TIMEOUT)
        assert self._found.endswith(_END), bytes(self._found)
        return bytes(self._found.removesuffix(_END))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.inner)  # ends the thread, where an error came first
        self._reading.join(_TIMEOUT)
        os.close(self._outer)
