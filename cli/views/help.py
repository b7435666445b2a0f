"""The help of a command: options in the same order everywhere; what many commands share is listed if room is short.

typer's own help has neither: of `embed` it is 104 lines of 80 columns (this one: 19), of `finetune classify` 193 (23),
it shows types of Python (`<str>`), and it takes half as long again.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from mlxbert.cli.views import console, rich

# The commands of typer's own click are not public, hence `Any`.
HEIGHT = 23  # lines of a terminal, less one for the prompt
_PANELS = ("Commands", "", "Zero-shot", "Vectors", "Data", "Training", "Adapters", "Saving", "Input", "Model", "Output")
_CLAUSE = re.compile(r"\.(?:\s|$)|[:;] ")
_NAMES = 29  # columns of the names of options, where they have columns
_WIDE, _WIDEST = 64, 100  # columns of a terminal that has room for two columns; of lines that are read easily


@dataclass(frozen=True)
class _Row:
    """An option, an argument or a command: what is typed, what it does, its choices and default."""

    name: str
    metavar: str
    text: str
    more: str


def draw(path: str, command: Any, *, whole: bool) -> Iterator["rich.Text"]:
    """The help of a command or a group: all if `whole`, else as many panels as fit on a terminal of 24 lines."""
    panels = dict(sorted(_panels(command).items(), key=lambda panel: _PANELS.index(panel[0])))
    width = min(console.stdout().width, _WIDEST)
    shown = _lines(path, command, panels, panels, width)
    explained, last = list(panels), "Commands" if "Commands" in panels else ""
    while not whole and len(shown) > HEIGHT and explained and explained[-1] != last:
        explained.pop()
        shown = _lines(path, command, panels, explained, width)
    yield from shown


def _panels(command: Any) -> dict[str, list[_Row]]:
    """The rows of each panel; those without a panel are the command's own, and what is required stands there."""
    found: dict[str, list[_Row]] = {}
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            found.setdefault("Commands", []).append(_Row(name, "", _first(child), ""))
    for parameter in command.params:
        if not parameter.hidden:
            panel = "" if parameter.required else parameter.rich_help_panel or ""
            found.setdefault(panel, []).append(_row(parameter))
    return found


def _first(command: Any) -> str:
    """What a command does: the beginning of its first sentence."""
    return _CLAUSE.split(command.help or "", maxsplit=1)[0]


def _row(parameter: Any) -> _Row:
    if parameter.param_type_name == "argument":
        return _Row(parameter.metavar, "", parameter.help or "", _more(parameter))
    long = [name for name in parameter.opts if name.startswith("--")]
    short = [name for name in parameter.opts if not name.startswith("--")]
    if parameter.secondary_opts:
        long = [f"--[no-]{name.removeprefix('--')}" for name in long]
    name = "/".join(long)
    metavar = "" if parameter.is_flag else metavar_of(parameter)
    return _Row(", ".join([name, *short]), metavar, parameter.help or "", _more(parameter))


def metavar_of(parameter: Any) -> str:
    """What stands for the value of an option."""
    if parameter.metavar:
        return str(parameter.metavar)
    return "N" if takes(parameter, "int") else "X" if takes(parameter, "float") else "NAME"


def takes(parameter: Any, kind: str) -> bool:
    """Whether the values of an option are of a kind, `int` or `float`, perhaps within limits."""
    return parameter.type.name in (kind, f"{kind} range")


def choices_of(parameter: Any) -> list[str]:
    """The values that an option can have; none if they cannot be listed."""
    return [str(getattr(choice, "value", choice)) for choice in getattr(parameter.type, "choices", ())]


def _more(parameter: Any) -> str:
    default = parameter.show_default
    if not isinstance(default, str):
        default = getattr(parameter.default, "value", parameter.default) if default else None
        default = "yes" if default is True else default
    named = "" if default is None or default is False or default == () else f"default: {default}"
    needed = "required" if parameter.required and parameter.param_type_name == "option" else ""
    variable = f"or ${parameter.envvar}" if parameter.envvar else ""
    choices = choices_of(parameter)
    explained = all(choice in (parameter.help or "") for choice in choices)
    bits = ["" if explained else ", ".join(choices), needed, named, variable]
    return "; ".join(filter(None, bits))


def _lines(
    path: str, command: Any, panels: dict[str, list[_Row]], explained: Collection[str], width: int
) -> list["rich.Text"]:
    """All lines of the help, with some panels explained and the others listed."""
    group = hasattr(command, "commands")
    found = [rich.Text.assemble(("Usage: ", "bold"), " ".join([path, "[OPTIONS]", usage(command)]).rstrip())]
    for paragraph in (command.help or "").split("\n\n"):
        gap = [] if paragraph.startswith("Example: ") and len(found) > 3 else [rich.Text()]
        found += [*gap, *map(rich.Text, console.wrapped(paragraph, width))]
    found.append(rich.Text())
    for panel, rows in panels.items():
        if panel in explained:
            found += [rich.Text(panel, "bold")] if panel else []
            indent = _NAMES if width >= _WIDE else 6
            indent = max(len(row.name) for row in rows) + 4 if panel == "Commands" else indent
            found += [line for row in rows for line in _explained(row, width, indent)]
    for panel, rows in panels.items():
        if panel not in explained:
            found += _listed(panel, rows, width)
    if not group and set(panels) - set(explained):
        words = path.split(maxsplit=1)
        last = f"`{' '.join([words[0], 'help', *words[1:]])}` explains all options."
        found += [rich.Text(line, "dim") for line in console.wrapped(last, width)]
    return found


def usage(command: Any) -> str:
    """The arguments of a command."""
    if hasattr(command, "commands"):
        return "COMMAND …"
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    return " ".join(str(one.metavar) if one.required else f"[{one.metavar}]" for one in arguments)


def _explained(row: _Row, width: int, indent: int) -> Iterator["rich.Text"]:
    """The name of a row and what it does, next to it or, on a narrow terminal, below it."""
    left = rich.Text.assemble("  ", (row.name, "bold cyan"), (f" {row.metavar}" if row.metavar else "", "yellow"))
    text = f"{row.text.rstrip('.')} ({row.more})." if row.more else row.text
    lines = console.wrapped(text, width - indent)
    if left.cell_len + 2 <= indent and lines:
        left.append(" " * (indent - left.cell_len) + lines.pop(0))
    yield left
    for line in lines:
        yield rich.Text(" " * indent + line)


def _listed(panel: str, rows: list[_Row], width: int) -> Iterator["rich.Text"]:
    names = ", ".join(row.name.replace(", ", "/").replace(" ", "\0") for row in rows)
    first, *others = console.wrapped(names, width - 10)
    yield rich.Text.assemble((f"{panel or 'Options':<10}", "bold"), first)
    for line in others:
        yield rich.Text(" " * 10 + line)
