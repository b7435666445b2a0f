"""Sinks that write events as JSON lines: to stdout, and to a log."""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlxbert.cli.views import console, json_lines
from mlxbert.durable_files import identity
from mlxbert.errors import ArgumentError
from mlxbert.paths import open_regular
from mlxbert.results.json import to_json
from mlxbert.training.loop.events import Event, Finished, Started

_START = 100  # bytes of a log that identify it


def _is_torn(path: Path, inputs: Iterable[str]) -> bool:
    """Whether a log ends in the middle of a line, because the run that wrote it was killed."""
    if identity(path) in map(identity, inputs):
        raise ArgumentError(
            f"--log {path}: is also an input", hint="name another file, because events are appended to the log"
        )
    with open(path, "rb", opener=open_regular) as file:
        kinds = "|".join(kind.event for kind in Event.__subclasses__())
        if (start := file.read(_START)) and not re.match(rf'{{"event": "({kinds})"'.encode(), start):
            message = f"--log {path}: the file begins with {start[:20]!r}, expected events of mlxbert"
            raise ArgumentError(message, hint="name a new file, or a log of an earlier run")
        file.seek(-bool(start), os.SEEK_END)
        return file.read() not in (b"", b"\n")


def _line(event: Event) -> str:
    """Returns an event as JSON; sentences for the reader name options of the command line, as in a terminal."""
    facts = event.to_dict()
    report, summary = (facts.get(name) or {} for name in ("report", "summary"))
    _convert(report, "warnings")
    _convert(summary, "advice")
    _convert(facts, "opens")
    return to_json(facts)


def _convert(facts: dict[str, Any], name: str) -> None:
    """Converts the arguments that a text, or each text of a list, names to options; a missing text stays missing."""
    if text := facts.get(name):
        facts[name] = console.to_options(text) if isinstance(text, str) else [*map(console.to_options, text)]


class JsonEvents:
    """Writes events to stdout as they arrive; if `quiet`, writes only `finished`, or `started` in a `dry` run."""

    def __init__(self, *, quiet: bool, dry: bool) -> None:
        self._kind: type[Event] = Event if not quiet else Started if dry else Finished

    def write(self, event: Event) -> None:
        """Writes the event."""
        if isinstance(event, self._kind):
            json_lines.put_line(_line(event))

    def close(self) -> None:
        """Does nothing."""


class EventLog:
    """Appends every event to a file as soon as it arrives; a resumed run continues the log."""

    def __init__(self, path: Path, inputs: Iterable[str]) -> None:
        try:
            torn = path.is_file() and _is_torn(path, inputs)
            self._file = open(path, "a", encoding="utf-8", newline="\n", opener=open_regular)  # noqa: SIM115 - see close
            self._file.write("\n" * torn)
        except OSError as problem:
            raise ArgumentError(f"--log {path}: {problem.strerror}") from None

    def write(self, event: Event) -> None:
        """Appends the event."""
        self._file.write(_line(event) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
