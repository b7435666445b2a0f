"""JSON lines on stdout, for programs."""

import sys
from collections.abc import Container, Mapping
from typing import Any

from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError
from mlxbert.results.json import to_json


def to_line(result: Any, kept: Mapping[str, Any], left_out: Container[str] = ()) -> str:
    """The line of a result, see `merged`."""
    return to_json(merged(result, kept, left_out))


def merged(result: Any, kept: Mapping[str, Any], left_out: Container[str] = ()) -> dict[str, Any]:
    """What is kept of the record of a result, and then the fields of the result."""
    own = {name: value for name, value in result.to_dict().items() if name not in left_out}
    for name in kept:
        if name in own:
            raise ArgumentError(f"--keep {name}: results have a field of this name; result fields are {', '.join(own)}")
    return {**kept, **own}


class OutputClosedError(Exception):
    """The reader of stdout has closed it."""


def put_line(text: str) -> None:
    """One line on stdout, written at once."""
    console.require_stdout()
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # typer would report the OSError as a failure
        raise OutputClosedError from None
