"""Delays interrupts while something runs that must not stop halfway through."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held() -> Iterator[None]:
    """Delays signals until the end of the block; does nothing outside the main thread, which alone gets signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    delayed: list[tuple[int, FrameType | None]] = []
    current = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
    handlers = {number: handler for number, handler in current.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, lambda *arguments: delayed.append(arguments))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for arguments in delayed:
            handlers[signal.Signals(arguments[0])](*arguments)
