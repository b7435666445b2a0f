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
    """A terminal that is read all the time."""

    def __init__(self) -> None:
        # On macOS, output that nobody has read is lost when the last process closes the terminal, and a process cannot
        # end before its output is read: `inner` stays open in this process, and a thread reads.
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
        until = time.monotonic() + _TIMEOUT
        while text not in self._found:
            if time.monotonic() > until:
                pytest.fail(f"the terminal does not show {text!r}: {bytes(self._found)!r}")
            time.sleep(0.01)

    def type(self, keys: bytes) -> None:
        os.write(self._outer, keys)

    def shown(self) -> bytes:
        """Returns everything that the terminal has shown; call it after the processes have ended."""
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
