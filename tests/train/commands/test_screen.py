"""The terminal of these tests shows everything, also on a system that drops what was not read when its users leave."""

import os
import subprocess
import sys
import termios
import time

import pytest

from tests.helpers.screen import Screen


@pytest.mark.slow
def test_nothing_is_lost_when_its_users_leave_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: the last one that closes a terminal drops what is in it."""
    read, close = os.read, os.close

    def late(descriptor: int, size: int) -> bytes:
        time.sleep(0.3)
        if descriptor == screen._outer:
            os.fstat(screen.inner)  # nobody else has it any more, and it is still open
        return read(descriptor, size)

    def drops(descriptor: int) -> None:
        if descriptor == screen.inner:
            termios.tcflush(screen._outer, termios.TCIFLUSH)
        close(descriptor)

    with Screen() as screen:
        monkeypatch.setattr(os, "read", late)
        monkeypatch.setattr(os, "close", drops)
        command = [sys.executable, "-c", "print('x' * 2000, 'é'); print('to the end', end='')"]
        subprocess.run(command, stdin=screen.inner, stdout=screen.inner, check=True, env={"PYTHONUTF8": "1"})
        assert screen.shown() == b"x" * 2000 + " é\r\nto the end".encode()
