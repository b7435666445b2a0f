"""The `mlxbert` command."""

import contextlib
import os
import signal
import sys


def main() -> None:
    """Entry point of the console script.

    An interrupt during imports ends the process without a traceback; after them, see `signals`.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mlxbert.cli import signals
    from mlxbert.cli.app import run
    from mlxbert.machine import launched

    signals.catch()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream is sys.stderr else "strict")
    status = run()
    if launched.is_launched():
        sys.exit(status)  # MPI wants to hear of it
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # absent or closed; `run` has told of the rest
            stream.flush()
    os._exit(status)  # freeing a model and its vocabulary piece by piece takes up to .3 s
