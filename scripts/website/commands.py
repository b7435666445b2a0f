"""A page for each command, made of the same declarations as its help."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlxbert.cli.views.help import HelpRow, panels, usage
from tests.helpers.commands import COMMANDS, PROGRAM
from website.markup import heading, indented, to_rst
from website.pages import site_name

# The pages of `docs/` that explain a command, keyed by its name or, for all commands of a group, by the group's.
GUIDES = {
    "fill-mask": ["command-line"],
    "embed": ["embeddings"],
    "similarity": ["embeddings"],
    "rerank": ["embeddings", "choosing"],
    "classify": ["command-line", "training"],
    "tag": ["command-line", "training-tasks"],
    "answer": ["command-line", "training-tasks"],
    "next-sentence": ["command-line"],
    "replaced": ["command-line"],
    "dedupe": ["explore"],
    "cluster": ["explore"],
    "map": ["explore"],
    "serve": ["serve"],
    "ray": ["ray", "scale"],
    "search": ["search"],
    "index": ["search"],
    "indexes": ["search"],
    "mcp": ["search"],
    "finetune": ["training", "training-data", "training-options"],
    "finetune classify": ["training", "training-data", "training-options", "tutorial"],
    "finetune tag": ["training", "training-data", "training-options", "training-tasks"],
    "finetune answer": ["training", "training-data", "training-options", "training-tasks"],
    "finetune rerank": ["training", "training-data", "training-options", "training-tasks"],
    "finetune embed": ["training", "training-data", "training-options", "training-embeddings"],
    "evaluate": ["evaluation"],
    "evaluate mlm": ["pretraining", "evaluation"],
    "mine": ["training-embeddings"],
    "pretrain": ["pretraining"],
    "distill": ["pretraining"],
    "distill-static": ["embeddings"],
    "vocabulary": ["command-line", "pretraining"],
    "bench": ["speed"],
    "inspect": ["models"],
    "tokenize": ["command-line", "models"],
    "attention": ["command-line"],
    "explain": ["command-line"],
    "senses": ["command-line"],
    "convert": ["convert-and-verify", "formats"],
    "verify": ["convert-and-verify"],
    "models": ["models"],
    "doctor": ["install", "troubleshooting"],
    "help": ["command-line"],
}
_PAGE = re.compile(r"\bdocs/([a-z-]+)\.md\b")


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
        yield from [_linked(" ".join(paragraph.split())), ""]
    yield from ["**Example**", "", *_code(example.strip())]
    links = ", ".join(_link(page) for page in guides(name))
    yield from [f"**Guides**: {links}", ""]
    if picture:
        yield from [f".. image:: /{picture}", f"   :alt: mlxbert {name} in a terminal", ""]
    yield from [f".. program:: mlxbert {name}", ""]
    for panel, rows in panels(command, whole=True).items():
        yield from heading(panel or "Arguments and options", "-")
        for row in rows:
            yield from _row(row)


def guides(command: str) -> list[str]:
    """The names of the pages of `docs/` that explain a command, the most important first."""
    return GUIDES.get(command) or GUIDES[command.split()[0]]


def _linked(text: str) -> str:
    """A text of the help, with links in place of the names of pages."""
    return _PAGE.sub(lambda match: rf"\ {_link(match[1])}\ ", to_rst(text))


def _link(page: str) -> str:
    """A link to a page of `docs/`, which shows the title of the page."""
    return f":doc:`/{site_name(f'docs/{page}.md')}`"


def _code(text: str) -> list[str]:
    return [".. code-block:: sh", "", indented(text), ""]


def _row(row: HelpRow) -> list[str]:
    """An option or an argument; the help leaves out that an option without a value is off by default."""
    text = row.text.rstrip(".")
    if row.name.startswith("-") and not row.metavar and "default: " not in text:
        text += " (default: off)"
    return [f".. option:: {row.left}", "   :no-contents-entry:", "", indented(_linked(f"{text}.")), ""]


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
            yield from [f":doc:`mlxbert {name} <commands/{file_name(name)}>`", indented(_linked(first)), ""]
        yield from [
            ".. toctree::",
            "   :hidden:",
            "",
            *(f"   commands/{file_name(name)}" for name in sorted(names)),
            "",
        ]
