"""Draws the help of a command, with a line per option and in the same order everywhere.

`mlxbert help` also shows the details of each option. typer's own help has no short form: it has 104 lines of 80 columns
for `embed`, and 193 for `finetune classify`. It also shows Python types (`<str>`), and takes 50% longer.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mlxbert.cli.views import console, rich

# typer's vendored click classes are not public, hence `Any`.
_PANELS = ("", "Input", "Data", "Index", "Zero-shot", "Vectors", "Training", "Adapters", "Saving", "Model", "Output")
_CLAUSE = re.compile(r"\.(?:\s|$)|[:;] ")
_SENTENCE = re.compile(r"\.(?:\s|$)")
_NAMES_WIDTH = 28  # the maximum width of the column of names
_WIDE, _MAX_WIDTH = 64, 100  # terminal columns needed for two columns; the maximum for readable lines
_MAX_CHOICES = 40  # characters of choices that fit a line
# typer's own texts for these options take two lines.
_COMPLETION = {
    "install_completion": "Set up completion in your shell (or name one: zsh).",
    "show_completion": "Print the completion script (or name a shell: zsh).",
}


@dataclass(frozen=True)
class HelpRow:
    """A row of the help for an option, an argument or a command: what a user types, and what it means."""

    name: str
    metavar: str
    text: str

    @property
    def left(self) -> str:
        return f"{self.name} {self.metavar}".rstrip()


def draw(path: str, command: Any, *, whole: bool) -> Iterator["rich.Text"]:
    """Draws the help of a command or a group.

    If `whole` is true, the whole text of each option is drawn; otherwise, only its first sentence.
    """
    width = min(console.stdout().width, _MAX_WIDTH)
    for row in getattr(command, "first_steps", ()):
        yield from _explained(row, width, 21 if width >= _WIDE else 6)
    yield from [rich.Text()] if hasattr(command, "first_steps") else []
    yield rich.Text.assemble(("Usage: ", "bold"), " ".join([path, "[OPTIONS]", usage(command)]).rstrip())
    about = (command.help or "").split("\n\n")
    for paragraph in about if whole else [about[0], *about[1:][-1:]]:
        yield rich.Text()
        yield from map(rich.Text, console.wrapped(paragraph, width))
    yield rich.Text()
    rows_of = panels(command, whole=whole)
    longest = max((len(row.left) for rows in rows_of.values() for row in rows), default=0)
    indent = min(longest + 4, _NAMES_WIDTH) if width >= _WIDE else 6
    for panel, rows in rows_of.items():
        yield from [rich.Text(panel, "bold")] if panel else []
        for row in rows:
            yield from _explained(row, width, indent)
    if not whole:
        yield from (rich.Text(line, "dim") for line in console.wrapped(_more(path, command), width))


def _more(path: str, command: Any) -> str:
    program, *words = path.split(maxsplit=1)
    if hasattr(command, "commands"):
        explains = " ".join([program, "help", *words, "COMMAND"])
        return f"`{path} COMMAND --help` lists the options of a command, `{explains}` explains them."
    return f"`{' '.join([program, 'help', *words])}` explains the options."


def panels(command: Any, *, whole: bool) -> dict[str, list[HelpRow]]:
    """Returns the rows of each panel, by the name of the panel.

    The panel without a name comes first. It has the required options and the options that only this command has.
    """
    commands: dict[str, list[HelpRow]] = {}
    for name in command.list_commands(None) if hasattr(command, "commands") else ():
        child = command.commands[name]
        if not child.hidden:
            commands.setdefault(child.rich_help_panel or "Commands", []).append(HelpRow(name, "", first_clause(child)))
    options: dict[str, list[HelpRow]] = {}
    for parameter in (option for option in command.params if not option.hidden):
        panel = "Options" if commands else "" if parameter.required else parameter.rich_help_panel or ""
        options.setdefault(panel, []).append(_row(parameter, whole=whole))
    return commands | {panel: options[panel] for panel in (*_PANELS, *options) if panel in options}


def first_clause(command: Any) -> str:
    """Returns the first clause of a command's help."""
    return _CLAUSE.split(command.help or "", maxsplit=1)[0]


def _row(parameter: Any, *, whole: bool) -> HelpRow:
    text = _COMPLETION.get(parameter.name, parameter.help or "")
    sentence, *rest = _SENTENCE.split(text, maxsplit=1)
    facts = "; ".join(_facts(parameter, text if whole else sentence, whole=whole))
    text = f"{sentence} ({facts})" if facts else sentence
    text += f". {rest[0]}".rstrip() if whole and rest else ""
    if parameter.param_type_name == "argument":
        return HelpRow(parameter.metavar, "", text)
    long = [name for name in parameter.opts if name.startswith("--")][:1]
    short = [name for name in parameter.opts if not name.startswith("--")]
    if parameter.secondary_opts:
        long = [f"--[no-]{name.removeprefix('--')}" for name in long]
    return HelpRow(", ".join(["/".join(long), *short]), "" if parameter.is_flag else metavar_of(parameter), text)


def metavar_of(parameter: Any) -> str:
    """Returns the placeholder for the value of an option."""
    if parameter.metavar:
        return str(parameter.metavar)
    return "N" if takes(parameter, "int") else "X" if takes(parameter, "float") else "NAME"


def takes(parameter: Any, kind: str) -> bool:
    """Whether an option takes values of the type `int` or `float`, as `kind` says, with or without bounds."""
    return parameter.type.name in (kind, f"{kind} range")


def choices_of(parameter: Any) -> list[str]:
    """Returns the possible values of an option; empty if they cannot be listed."""
    return [str(getattr(choice, "value", choice)) for choice in getattr(parameter.type, "choices", ())]


def _facts(parameter: Any, text: str, *, whole: bool) -> Iterator[str]:
    """Yields what the help adds to a parameter's description: `required`, default, choices, environment variable."""
    default = parameter.show_default
    if not isinstance(default, str):
        default = getattr(parameter.default, "value", parameter.default) if default else None
    if parameter.required and parameter.param_type_name == "option":
        yield "required"
    if default is not None and default is not False and default not in ((), ""):
        yield f"default: {'yes' if default is True else default}"
    choices = choices_of(parameter)
    listed = ", ".join(choice for choice in choices if choice != default)
    if not all(choice in text for choice in choices) and (whole or len(listed) <= _MAX_CHOICES):
        yield f"or {listed}" if default in choices else listed
    if whole and parameter.envvar:
        yield f"${parameter.envvar} sets it"


def usage(command: Any) -> str:
    """Returns the arguments of a command as the usage line shows them."""
    if hasattr(command, "commands"):
        return "COMMAND …"
    arguments = [argument for argument in command.params if argument.param_type_name == "argument"]
    return " ".join(str(argument.metavar) if argument.required else f"[{argument.metavar}]" for argument in arguments)


def _explained(row: HelpRow, width: int, indent: int) -> Iterator["rich.Text"]:
    """Draws a row of the help: the name, and the text next to it or, in a narrow terminal, below it."""
    left = rich.Text.assemble("  ", (row.name, "bold cyan"), (f" {row.metavar}" if row.metavar else "", "yellow"))
    lines = console.wrapped(row.text, width - indent)
    if left.cell_len < indent and lines:
        left.append(" " * (indent - left.cell_len) + lines.pop(0))
    yield left
    for line in lines:
        yield rich.Text(" " * indent + line)
