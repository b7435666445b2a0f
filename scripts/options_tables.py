"""Writes the names, units and defaults in the tables of options in docs/: `python scripts/options_tables.py`.

A comment before a table names its commands and, after a semicolon, a panel of their help:
`<!-- options: finetune; Training -->`, where `finetune` stands for all of its tasks. Each row begins with one or more
options. Its first cell and its default are generated from their declarations; the last cell is prose, and is kept. A
table with a panel is complete: an option without a row gets one, with its help.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from mlxbert.cli.views.help import metavar_of
from tests.helpers.commands import COMMANDS

DOCS = Path(__file__).parents[1] / "docs"
TABLE = re.compile(r"(<!-- options: ([^;>]+)(?:; ([^>]+))? -->\n\|[^\n]*\n\|[^\n]*\n)((?:\|[^\n]*\n)*)")
_MAX_LISTED = 3  # commands named in a row; an option of more commands is listed without them


def options_of(commands: str, panel: str | None) -> dict[str, dict[str, Any]]:
    """The options of some commands, keyed by option and then by command."""
    options: dict[str, dict[str, Any]] = {}
    for name in (part.strip() for part in commands.split(",")):
        for command in (path for path in COMMANDS if path == name or path.startswith(f"{name} ")):
            for option in COMMANDS[command].params:
                if option.param_type_name == "option" and panel in (None, option.rich_help_panel):
                    options.setdefault(option.opts[0], {})[command] = option
    return options


def written(text: str) -> str:
    """The text of a page with its tables updated."""
    return TABLE.sub(lambda match: match[1] + "".join(_rows(match[4].splitlines(), match[2], match[3])), text)


def _rows(rows: Sequence[str], commands: str, panel: str | None) -> Iterator[str]:
    all_options, without_row = options_of(commands, None), options_of(commands, panel) if panel else {}
    command_names = {name for options in all_options.values() for name in options}
    for row in rows:
        first, *cells = row.strip("|").split(" |")
        names = [name for name in dict.fromkeys(re.findall(r"`(--[\w-]+)", first)) if name in all_options]
        without_row = {name: options for name, options in without_row.items() if name not in names}
        yield _row(names, all_options, cells, command_names)
    for name, options in without_row.items():
        help = next(iter(options.values())).help.rstrip(".")
        yield _row(
            [name], all_options, ["", f" {help[0].lower()}{help[1:]}".replace("|", "\\|")][-len(cells) :], command_names
        )


def _row(names: Sequence[str], options: dict[str, dict[str, Any]], cells: list[str], among: set[str]) -> str:
    """A row: the names, the default if the table has such a column, and the previous last cell."""
    named = ", ".join(f"`{spelled(next(iter(options[name].values())))}`" for name in names)
    by_command = options[names[0]]
    only = f" ({_listed(by_command)})" if len(by_command) < len(among) and len(by_command) <= _MAX_LISTED else ""
    default = [f" {_defaults(by_command)}".rstrip()] if len(cells) > 1 else []
    return " |".join([f"| {named}{only}", *default, cells[-1].rstrip()]) + " |\n"


def spelled(option: Any) -> str:
    """An option as a user types it, with the placeholder of its value."""
    both = "`, `".join([option.opts[0], *option.secondary_opts])
    return both if option.is_flag else f"{both} {metavar_of(option)}"


def default(option: Any) -> str:
    """The default of an option in words; empty if there is none."""
    if isinstance(option.show_default, str):
        return option.show_default
    value = getattr(option.default, "value", option.default)
    if value is None or isinstance(value, bool):
        return {None: "", False: "off", True: "on"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _defaults(options: dict[str, Any]) -> str:
    """The most common default, and any other defaults with the names of their commands."""
    by_default: dict[str, dict[str, Any]] = {}
    for command, option in options.items():
        by_default.setdefault(default(option), {})[command] = option
    common, *exceptions = sorted((text for text in by_default if text), key=lambda text: -len(by_default[text])) or [""]
    if len(exceptions) > 1:
        return "by task"
    return "; ".join([common, *(f"for {_listed(by_default[text])} {text}" for text in exceptions)])


def _listed(commands: dict[str, Any]) -> str:
    return ", ".join(f"`{command.rpartition(' ')[2]}`" for command in commands)


if __name__ == "__main__":
    for page in sorted(DOCS.glob("*.md")):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
