"""The `mlxbert` command."""

import signal
import sys


def main() -> None:
    """Entry point of the console script.

    An interrupt during imports ends the process without a traceback.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mlxbert.cli.app import run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream is sys.stderr else "strict")
    sys.exit(run())
