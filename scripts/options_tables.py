"""Writes what the tables of options in docs/ say of names, units and defaults: `python scripts/options_tables.py`.

A comment before a table names its commands and, after a semicolon, a panel of their help:
`<!-- options: finetune; Training -->`, where `finetune` stands for all of its tasks. Each row begins with one or more
options. Its first cell and its default are made of their declarations; the last cell is prose, and stays as it is. With
a panel the table is complete: an option without a row gets one, with its help.
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
_SOME = 3  # commands that are named; an option of more is one of all


def options_of(commands: str, panel: str | None) -> dict[str, dict[str, Any]]:
    """The options of some commands: by what is typed, and then by command."""
    found: dict[str, dict[str, Any]] = {}
    for name in (part.strip() for part in commands.split(",")):
        for command in (one for one in COMMANDS if one == name or one.startswith(f"{name} ")):
            for option in COMMANDS[command].params:
                if option.param_type_name == "option" and panel in (None, option.rich_help_panel):
                    found.setdefault(option.opts[0], {})[command] = option
    return found


def written(text: str) -> str:
    """The text of a page with its tables as they should be."""
    return TABLE.sub(lambda found: found[1] + "".join(_rows(found[4].splitlines(), found[2], found[3])), text)


def _rows(rows: Sequence[str], commands: str, panel: str | None) -> Iterator[str]:
    known, missing = options_of(commands, None), options_of(commands, panel) if panel else {}
    among = {name for options in known.values() for name in options}
    for row in rows:
        first, *cells = row.strip("|").split(" |")
        names = [name for name in dict.fromkeys(re.findall(r"`(--[\w-]+)", first)) if name in known]
        missing = {name: options for name, options in missing.items() if name not in names}
        yield _row(names, known, cells, among)
    for name, options in missing.items():
        help = next(iter(options.values())).help.rstrip(".")
        yield _row([name], known, ["", f" {help[0].lower()}{help[1:]}".replace("|", "\\|")][-len(cells) :], among)


def _row(names: Sequence[str], known: dict[str, dict[str, Any]], cells: list[str], among: set[str]) -> str:
    """A row: the names, the default where the table has one, and what was there."""
    named = ", ".join(f"`{spelled(next(iter(known[name].values())))}`" for name in names)
    some = known[names[0]]
    only = f" ({_listed(some)})" if len(some) < len(among) and len(some) <= _SOME else ""
    default = [f" {_defaults(some)}".rstrip()] if len(cells) > 1 else []
    return " |".join([f"| {named}{only}", *default, cells[-1].rstrip()]) + " |\n"


def spelled(option: Any) -> str:
    """An option as it is typed, with what stands for its value."""
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
    """The default of most commands, and others with the names of their commands."""
    by_default: dict[str, dict[str, Any]] = {}
    for command, option in options.items():
        by_default.setdefault(default(option), {})[command] = option
    usual, *others = sorted((one for one in by_default if one), key=lambda one: -len(by_default[one])) or [""]
    if len(others) > 1:
        return "by task"
    return "; ".join([usual, *(f"for {_listed(by_default[one])} {one}" for one in others)])


def _listed(commands: dict[str, Any]) -> str:
    return ", ".join(f"`{command.rpartition(' ')[2]}`" for command in commands)


if __name__ == "__main__":
    for page in sorted(DOCS.glob("*.md")):
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
