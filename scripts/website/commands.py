"""A page for each command, made of the same declarations as its help."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlxbert.cli.views.help import HelpRow, panels, usage
from tests.helpers.commands import COMMANDS, PROGRAM
from website.markup import heading, indented, to_rst


def write_commands(root: Path, target: Path) -> None:
    """Writes `commands.rst`, the list of all commands, and a page for each command into the folder `commands`.

    The page of a command shows its picture, if `docs/` has one: `docs/models-list.svg` for `models list`.
    """
    folder = target / "commands"
    folder.mkdir()
    for name, command in COMMANDS.items():
        picture = root / "docs" / f"{file_name(name)}.svg"
        if picture.exists():
            shutil.copyfile(picture, target / picture.name)
        lines = _page(name, command, picture.name if picture.exists() else "")
        (folder / f"{file_name(name)}.rst").write_text("\n".join(lines), encoding="utf-8")
    (target / "commands.rst").write_text("\n".join(_overview()), encoding="utf-8")


def file_name(command: str) -> str:
    """The name of a command's page, without its extension."""
    return command.replace(" ", "-")


def _page(name: str, command: Any, picture: str) -> Iterator[str]:
    yield from heading(f"mlxbert {name}", "=")
    yield from _code(f"mlxbert {name} [OPTIONS] {usage(command)}".rstrip())
    about, _, example = command.help.partition("Example: ")
    for paragraph in about.split("\n\n"):
        yield from [to_rst(" ".join(paragraph.split())), ""]
    yield from ["**Example**", "", *_code(example.strip())]
    if picture:
        yield from [f".. image:: /{picture}", f"   :alt: mlxbert {name} in a terminal", ""]
    yield from [f".. program:: mlxbert {name}", ""]
    for panel, rows in panels(command, whole=True).items():
        yield from heading(panel or "Arguments and options", "-")
        for row in rows:
            yield from _row(row)


def _code(text: str) -> list[str]:
    return [".. code-block:: sh", "", indented(text), ""]


def _row(row: HelpRow) -> list[str]:
    """An option or an argument; the help leaves out that an option without a value is off by default."""
    text = row.text.rstrip(".")
    if row.name.startswith("-") and not row.metavar and "default: " not in text:
        text += " (default: off)"
    return [f".. option:: {row.left}", "   :no-contents-entry:", "", indented(to_rst(f"{text}.")), ""]


def _overview() -> Iterator[str]:
    """The page with all commands in the parts of the program's help, each with the first sentence of its help."""
    yield from heading("Commands", "=")
    yield from ["``mlxbert COMMAND --help`` lists the options of a command; these pages explain all of them.", ""]
    parts: dict[str, list[str]] = {}
    for name in COMMANDS:
        parts.setdefault(PROGRAM.commands[name.split()[0]].rich_help_panel, []).append(name)
    for part, names in parts.items():
        yield from heading(part, "-")
        for name in sorted(names):
            first = " ".join(COMMANDS[name].help.split("\n\n")[0].split())
            yield from [f":doc:`mlxbert {name} <commands/{file_name(name)}>`", indented(to_rst(first)), ""]
        yield from [
            ".. toctree::",
            "   :hidden:",
            "",
            *(f"   commands/{file_name(name)}" for name in sorted(names)),
            "",
        ]
