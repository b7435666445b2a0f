"""Interrupts that wait: what must not stop halfway is done to its end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held() -> Iterator[None]:
    """Within it no signal is handled: those that come are handled after it. Python gives them to the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late: list[tuple[int, FrameType | None]] = []
    found = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
    handlers = {number: handler for number, handler in found.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, lambda *given: late.append(given))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for given in late:
            handlers[signal.Signals(given[0])](*given)
