"""Prints JSON lines for other programs."""

import sys
from collections.abc import Container, Mapping
from typing import Any

from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError
from mlxbert.results.json import to_json


def to_line(result: Any, kept: Mapping[str, Any], left_out: Container[str] = ()) -> str:
    """Returns the JSON line for a result and the kept fields of its record (see `merged`)."""
    return to_json(merged(result, kept, left_out))


def merged(result: Any, kept: Mapping[str, Any], left_out: Container[str] = ()) -> dict[str, Any]:
    """Returns the kept fields of a result's record, followed by the fields of the result."""
    fields = {name: value for name, value in result.to_dict().items() if name not in left_out}
    for name in kept:
        if name in fields:
            raise ArgumentError(
                f"--keep {name}: the results already have a field with this name",
                hint=f"the results have the fields {', '.join(fields)}",
            )
    return {**kept, **fields}


class OutputClosedError(Exception):
    """The reader of stdout has closed it."""


def put_line(text: str) -> None:
    """Prints a line on stdout and flushes it."""
    console.require_stdout()
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # typer would report the OSError as a failure
        raise OutputClosedError from None
