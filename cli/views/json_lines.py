"""JSON lines on stdout, for programs."""

import json
import re
import sys

from mlxbert.errors import MlxbertError

# Control characters beyond ASCII's (JSON escapes those), and halves of surrogate pairs, which are not UTF-8.
_UNSAFE = re.compile("[\x7f-\x9f\ud800-\udfff]")


class OutputClosedError(Exception):
    """The reader of stdout has closed it."""


def to_json(value: object) -> str:
    """One line of JSON without control characters, which a terminal would act on."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False, allow_nan=False))


def put_line(text: str) -> None:
    """One line on stdout, written at once."""
    if sys.stdout is None:
        raise MlxbertError("stdout is closed")
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # typer would report the OSError as a failure
        raise OutputClosedError from None
