"""Handles the signals that end the program: SIGINT (Ctrl-C), SIGTERM, and SIGHUP, which a closed terminal sends.

Each signal raises `KeyboardInterrupt`; commands then save their state and keep partial output. The exit status is 128
plus the number of the signal.
"""

import os
import signal
import sys
import threading
import time
from types import FrameType

# Seconds for saving, in which further signals are ignored: Ctrl-C is often pressed twice, a closed terminal may send
# SIGHUP twice, and systemd sends it after SIGTERM. Later signals end the program at once; files are written atomically.
_GRACE = 10.0
_RETRY = 0.05  # seconds before a dropped signal is sent again
_first: tuple[int, float] | None = None  # the number of the signal, and when it came


def catch() -> None:
    """Installs the handlers; must be called in the main thread.

    A signal that is ignored stays ignored, such as SIGHUP under `nohup`. Only Ctrl-C is always caught, because a shell
    without job control lets the programs that it starts in the background ignore it.
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
    """Repeats a signal if Python dropped it because it arrived while an object was being destroyed."""
    global _first
    if _first is None or not issubclass(problem.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(problem)
        return
    number, _first = _first[0], None
    threading.Timer(_RETRY, os.kill, (os.getpid(), number)).start()


def status(otherwise: int) -> int:
    """Returns the exit status of the program; `otherwise` if no signal arrived."""
    return otherwise if _first is None else 128 + _first[0]
