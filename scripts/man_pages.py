"""Writes the manual pages `mlxbert.1`, `mlxbert-embed.1`, …: `python scripts/man_pages.py man`.

They have the texts of `mlxbert help COMMAND`, from the same declarations. The pages are made for a release: an sdist
that is built next to the folder `man` contains them, and a wheel puts them where `man` looks for the pages of programs
on the `PATH` (`share/man/man1`). They are not kept in the repository, where they could be out of date.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).parents[1]))
from mlxbert.cli.app import make_app
from mlxbert.cli.views.help import HelpRow, first_clause, panels, usage
from mlxbert.version import __version__

_CODE = re.compile(r"`([^`]+)`")
_EXAMPLE = "Example: "
_CHARACTERS = {
    "\\": "\\e",
    "-": "\\-",
    "'": "\\(aq",
    "^": "\\(ha",
    "~": "\\(ti",
    "…": "...",
}  # `…` is not in every locale


def commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields a command with the words that name it, such as `mlxbert finetune tag`, then those below it."""
    yield path, command
    for name in command.list_commands(None) if hasattr(command, "commands") else ():
        if not command.commands[name].hidden:
            yield from commands(command.commands[name], *path, name)


def escaped(text: str) -> str:
    """A text for roff: every character stands for itself, and `code` is bold."""
    for character, name in _CHARACTERS.items():
        text = text.replace(character, name)
    return _CODE.sub(r"\\fB\1\\fP", text).replace("`", "\\(ga")


def paragraph(text: str) -> str:
    """A text as lines of roff, of which none is a request: a line that begins with a dot would be one."""
    return f"\\&{line}" if (line := escaped(" ".join(text.split()))).startswith(".") else line


def page(path: tuple[str, ...], command: Any, others: list[str]) -> str:
    """The manual page of a command.

    Args:
        path: The words that name the command.
        command: The command, as typer makes it.
        others: The names of the pages to see also.
    """
    name = "-".join(path)
    about, *details = (command.help or "").split("\n\n")
    examples = [text.removeprefix(_EXAMPLE) for text in details if text.startswith(_EXAMPLE)]
    lines = [
        f'.TH {escaped(name.upper())} 1 "" "mlxbert {__version__}" "mlxbert"',
        *(".SH NAME", f"{escaped(name)} \\- {escaped(first_clause(command))}"),
        *(".SH SYNOPSIS", f"\\fB{escaped(' '.join(path))}\\fP [\\fIOPTIONS\\fP] {escaped(usage(command))}"),
        *(".SH DESCRIPTION", paragraph(about)),
    ]
    for text in details:
        lines += [] if text.startswith(_EXAMPLE) else [".PP", paragraph(text)]
    for title, rows in panels(command, whole=True).items():
        lines.append(f'.SH "{escaped(title or "Options").upper()}"')
        for row in rows:
            lines += entry(row)
    if examples:
        lines += [".SH EXAMPLES", *(line for text in examples for line in (".EX", paragraph(text), ".EE"))]
    if others:
        lines += [".SH SEE ALSO", ",\n".join(f"\\fB{escaped(other)}\\fP(1)" for other in others)]
    return "\n".join(lines) + "\n"


def entry(row: HelpRow) -> list[str]:
    """The lines for an option, an argument or a command."""
    value = f" \\fI{escaped(row.metavar)}\\fP" if row.metavar else ""
    return [".TP", f"\\fB{escaped(row.name)}\\fP{value}", paragraph(row.text)]


def pages() -> dict[str, str]:
    """All manual pages by the names of their files."""
    found = dict(commands(typer.main.get_command(make_app()), "mlxbert"))
    texts = {}
    for path, command in found.items():
        below = ["-".join(other) for other in found if other[:-1] == path]
        others = below or ["-".join(path[:length]) for length in range(1, len(path))]
        texts[f"{'-'.join(path)}.1"] = page(path, command, others)
    return texts


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__.splitlines()[0])
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (Path(sys.argv[1]) / name).write_text(text, encoding="utf-8")
