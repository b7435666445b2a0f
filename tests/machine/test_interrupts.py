"""Interrupts that wait."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from mlxbert.machine import interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_handled_at_the_end(number: signal.Signals) -> None:
    def handler(*_: object) -> None:
        raise KeyboardInterrupt

    done, before = False, signal.signal(number, handler)
    try:
        with pytest.raises(KeyboardInterrupt), interrupts.held():
            os.kill(os.getpid(), number)
            done = True
        assert done and signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


def test_an_error_within_and_another_thread_leave_the_handlers() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ValueError, match="x"), interrupts.held():
        raise ValueError("x")
    assert signal.getsignal(signal.SIGINT) is before

    def work() -> object:
        with interrupts.held():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor() as pool:
        assert pool.submit(work).result() is before


@pytest.mark.slow
def test_an_interrupt_waits_until_mlx_is_imported() -> None:
    code = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "mlx.core":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
try:
    import mlxbert.machine.device
except KeyboardInterrupt:
    print("mlx.core" in sys.modules, "mlx.nn" in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True, timeout=60) == "True True\n"
