"""Events as JSON lines: on stdout, and in a log."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxbert.cli.views import json_lines
from mlxbert.errors import ArgumentError
from mlxbert.training.events import Event, Finished, Started


def to_line(event: Event) -> str:
    """One line of JSON; numbers that JSON does not have, such as NaN, become `null`."""
    return json_lines.to_json(_plain(event.to_dict()))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class JsonLines:
    """Writes events to stdout as they come.

    Args:
        quiet: Whether only the last one is written: `finished`, or `started` of a dry run.
        dry: Whether nothing comes after `started`.
    """

    def __init__(self, *, quiet: bool, dry: bool) -> None:
        self._wanted: type[Event] = Event if not quiet else Started if dry else Finished

    def write(self, event: Event) -> None:
        """Writes the event."""
        if isinstance(event, self._wanted):
            json_lines.put_line(to_line(event))

    def close(self) -> None:
        """Nothing is left to do."""


class EventLog:
    """Appends all events to a file, each at once: a run that is resumed goes on in the log of its beginning.

    Raises:
        ArgumentError: The file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("a", encoding="utf-8", newline="\n")
        except OSError as problem:
            raise ArgumentError(f"--log {path}: {problem.strerror}") from None

    def write(self, event: Event) -> None:
        """Appends the event."""
        self._file.write(to_line(event) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
