"""The commands of the program, as typer creates them."""

from collections.abc import Iterator
from typing import Any

import typer

from mlxbert.cli.app import make_app


def _leaves(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    below = getattr(command, "commands", {})
    for name, child in below.items():
        yield from _leaves(child, (*words, name))
    if not below:
        yield " ".join(words), command


PROGRAM: Any = typer.main.get_command(make_app())
COMMANDS: dict[str, Any] = dict(_leaves(PROGRAM))  # by what is typed; groups of commands are left out
