"""The `mlxbert` program: its commands, and how errors become exit codes.

The exit code is 0 for success, 1 for failure, 2 for wrong usage, and 128 + n after signal n, such as 130 after Ctrl-C.
No user error ends in a traceback.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from mlxbert import rooms
from mlxbert.cli import signals
from mlxbert.cli.program import Command, CommandGroup, explain, explain_command
from mlxbert.cli.session import set_up_notes
from mlxbert.cli.shared_options import flatten
from mlxbert.cli.views import console
from mlxbert.cli.views.help import HelpRow
from mlxbert.cli.views.json_lines import OutputClosedError
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.mac_files import PRIVACY, is_forbidden
from mlxbert.machine.device_errors import device_errors
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.version import __version__

_ABOUT = "BERT encoders on Apple's MLX: embed, fill masks, fine-tune, look inside."

# The modules of the commands in the order of the help, the most used first. Only the command that runs is imported:
# importing all of them takes longer than most commands run.
_TASKS = [name for name, entry in CATALOGUE.items() if entry.about is not None]
_HERE = "mlxbert.cli.commands"
_ALIKE = {*_TASKS} - {"embed", "rerank"}  # tasks whose commands do nothing but show one result per item
_PANELS = {
    "Use a model": {
        name: f"{_HERE}.{'tasks' if name in _ALIKE else name}" for name in (_TASKS[0], "similarity", *_TASKS[1:])
    },
    "Explore many texts": {},
    "Serve other programs": {},
    "Search your files": {},
    "Train a model": {},
    "Look inside": {"inspect": f"{_HERE}.inspect", "tokenize": f"{_HERE}.tokenize"},
    "Models and machine": {"models": f"{_HERE}.models"},
}
_PANELS = {panel: modules | rooms.commands(panel) for panel, modules in _PANELS.items()}
_PANELS["Models and machine"]["help"] = ""  # made below
_MODULES = {name: module for modules in _PANELS.values() for name, module in modules.items()}
_NAMES = [name for name in _MODULES if " " not in name]
# The variable with the number of this process, if `mlx.launch` started several, and the part of a room for them.
_RANK, _PROCESSES = "MLX_RANK", "work for several processes"


class _Program(CommandGroup):
    """The top-level command group; its help begins with `first_steps`."""

    first_steps = (
        HelpRow("search your notes", "", 'mlxbert search "who repairs the boiler" ~/notes'),
        HelpRow("sort your tickets", "", "mlxbert classify --input tickets.csv --labels billing,login"),
        HelpRow("serve a model", "", "mlxbert serve"),
    )

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in _NAMES if name in self.commands]


def make_app(first: str | None = None) -> typer.Typer:
    """Builds the program. If `first` names a command, only that command is added, and none for the version."""
    app = typer.Typer(
        name="mlxbert",
        cls=_Program,
        help=_ABOUT,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    needed = [first] if first in {*_NAMES} - {"help"} else [] if first in ("--version", "-V") else [*_NAMES]
    panels = {name: panel for panel, modules in _PANELS.items() for name in modules}
    for name in needed:
        if name in _ALIKE:
            _add(app, name, _module(name).task_command(name), panels[name])
        elif name != "help":
            _add_own(app, name, panels[name])
    app.command("help", cls=Command, rich_help_panel=panels["help"])(explained)
    return app


def _add_own(app: typer.Typer, name: str, panel: str) -> None:
    """Adds the command or the group of commands in a module of its own."""
    module = _module(name)
    if not hasattr(module, "COMMANDS"):
        return _add(app, name, getattr(module, name.replace("-", "_")), panel)
    group = typer.Typer(help=module.ABOUT, cls=CommandGroup, no_args_is_help=True)
    app.add_typer(group, name=name, rich_help_panel=panel)
    added = {words.partition(" ")[2]: words for words in _MODULES if words.startswith(f"{name} ")}
    added_commands = {word: getattr(_module(words), words.replace(" ", "_")) for word, words in added.items()}
    for command, function in (module.COMMANDS | added_commands).items():
        _add(group, command, function)


def _module(name: str) -> Any:
    return importlib.import_module(_MODULES[name])


def _add(group: typer.Typer, name: str, function: Callable[..., None], panel: str | None = None) -> None:
    group.command(name, cls=Command, rich_help_panel=panel)(flatten(function, set_up_notes))


def _words(context: typer.Context) -> list[str]:
    """Returns the commands that may follow the words typed after `mlxbert help`, for completion."""
    command: Any = context.find_root().command
    for word in context.params["words"] or ():
        command = getattr(command, "commands", {}).get(word)
    return [*getattr(command, "commands", ())]


def explained(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="The command.", autocompletion=_words)
    ] = None,
) -> None:
    """Explain a command and all its options.

    Example: mlxbert help embed
    """
    explain_command(context, words or ())


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"mlxbert {__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Declares the options of the program itself."""


def run(arguments: list[str] | None = None) -> int:
    """Runs the program; returns its exit status."""
    try:
        launched = _RANK in os.environ and rooms.has_part(_PROCESSES)
        status = rooms.part(_PROCESSES).run(lambda: _run(arguments)) if launched else _run(arguments)
    except (KeyboardInterrupt, typer.Abort):
        return signals.status(130)
    return signals.status(status) if status else 0  # after a signal, a closed terminal is not reported as an error


def _run(arguments: list[str] | None) -> int:
    console.set_quiet(False)
    typed = sys.argv[1:] if arguments is None else arguments
    if re.match("--(install|show)-completion[ =]", " ".join(typed)):  # makes these options take the name of a shell
        from typer._completion_shared import Shells

        os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"
        Shells.__str__ = str.__str__  # type: ignore[method-assign]  # typer prints it: Shells.bash
    app = make_app(typed[0] if typed else None)
    try:
        _check_launch(typed)
        with device_errors():
            status = app(arguments, prog_name="mlxbert", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except typer.TyperException as problem:
        if problem.format_message():  # empty if typer has printed the help instead
            message, hint = explain(problem, typed)
            console.say("error", _wordless(typed) or message)
            if hint and not _wordless(typed):
                console.say("hint", hint)
        return 2
    except MlxbertError as problem:
        _say(problem, problem.message)
        return 2 if isinstance(problem, ArgumentError) else 1
    except (OutputClosedError, BrokenPipeError, SystemExit) as problem:  # the reader of our output has closed it
        if isinstance(problem, SystemExit) and not isinstance(problem.__context__, BrokenPipeError):
            raise
        _drop_output()
        return signals.status(0)
    except OSError as problem:
        _say(problem, f"{problem.filename or 'output'}: {problem.strerror}")
        _drop_output()
        return 1


def _check_launch(typed: list[str]) -> None:
    """Raises an error if `mlx.launch` started a command whose processes would all do the same."""
    if _RANK in os.environ:
        rooms.part(_PROCESSES).check_command(typed)


def _say(problem: MlxbertError | OSError, message: str) -> None:
    """Prints an error and its hint. If macOS privacy settings caused the error, the hint says where to change them.

    This applies only to errors that name a file. A connection error, for instance one caused by a firewall, names none.
    """
    console.say("error", message)
    hint = problem.hint if isinstance(problem, MlxbertError) else None
    cause: BaseException | None = problem
    while cause is not None:
        if is_forbidden(cause) and getattr(cause, "filename", None) is not None:
            hint = PRIVACY
        cause = cause.__cause__ or cause.__context__
    if hint:
        console.say("hint", hint)


def _wordless(typed: list[str]) -> str | None:
    """Returns an error message if an option was typed instead of a word, as in `finetune --train …`; else `None`."""
    if len(typed) < 2 or not _MODULES.get(typed[0]) or not typed[1].startswith("-"):
        return None
    words = getattr(_module(typed[0]), "COMMANDS", ())
    return f"{typed[0]} needs one of {', '.join(words)} before its options" if words else None


def _drop_output() -> None:
    """Discards the buffered output, because Python would try to write it again at exit and report an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
