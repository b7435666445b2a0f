"""The `mlxbert` command."""

import os
import sys


def main() -> None:
    """Runs the program as the entry point of the console script.

    An interrupt during imports ends the process without a traceback; later interrupts are handled by `signals`. The
    module `signal` is not imported here, because importing it takes as long as everything before it.
    """
    import _signal  # type: ignore[import-not-found]

    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from mlxbert.cli import signals

    try:
        status = _run()
    except KeyboardInterrupt:
        status = signals.status(130)
    except Exception:  # a signal in the middle of an import can turn into another exception
        status = signals.status(0)
        if not status:
            raise
    if (kernels := sys.modules.get("mlxbert.machine.kernel_cache")) is not None:
        kernels.end()  # `os._exit` skips the exit handlers that would call it
    os._exit(status)  # freeing a model and its vocabulary piece by piece takes up to 0.3 s


def _run() -> int:
    """Runs the program and flushes its output; returns the exit status."""
    import contextlib

    from mlxbert.cli import signals
    from mlxbert.cli.app import run

    signals.catch()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream is sys.stderr else "strict")
    status = run()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # absent or closed; `run` reports other errors
            stream.flush()
    return status
