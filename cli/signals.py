"""Signals that end the program: Ctrl-C, SIGTERM, and SIGHUP, which a closed terminal sends.

Each raises `KeyboardInterrupt`, on which state is saved and parts are kept. The exit status is 128 + its number.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType

# Seconds for saving, in which more signals change nothing: Ctrl-C is often pressed twice, a closed terminal may send
# SIGHUP twice, and systemd sends it after SIGTERM. Later ones end the program at once; files are written atomically.
_GRACE = 10.0
_RETRY = 0.05  # seconds, after which it is destroyed
_first: tuple[int, float] | None = None  # the number of the signal, and when it came


def catch() -> None:
    """Catches the signals from now on, in the main thread. Those ignored, as SIGHUP is under `nohup`, stay ignored.

    Except Ctrl-C: shells without job control ignore it for what they start in the background.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    sys.unraisablehook = _again


def _end(number: int, _: FrameType | None) -> None:
    global _first
    if _first is None:
        _first = number, time.monotonic()
    elif time.monotonic() - _first[1] < _GRACE:
        return
    raise KeyboardInterrupt


def _again(problem: "sys.UnraisableHookArgs") -> None:
    """Repeats a signal that Python dropped, because it came while an object was destroyed."""
    global _first
    if _first is None or not issubclass(problem.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(problem)
        return
    number, _first = _first[0], None
    threading.Timer(_RETRY, os.kill, (os.getpid(), number)).start()


def status(otherwise: int) -> int:
    """The exit status of a program that a signal ended.

    Args:
        otherwise: That of one that none ended.
    """
    return otherwise if _first is None else 128 + _first[0]
