"""The `mlxbert` program: its commands, and how errors become exit codes.

0 success, 1 failure, 2 wrong usage, 130 interrupted. No mistake of a user ends in a traceback.
"""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer

from mlxbert import __version__
from mlxbert.cli import launched
from mlxbert.cli.commands.answer import answer
from mlxbert.cli.commands.classify import classify
from mlxbert.cli.commands.convert import convert
from mlxbert.cli.commands.embed import embed
from mlxbert.cli.commands.evaluate import (
    evaluate_answer,
    evaluate_classify,
    evaluate_embed,
    evaluate_mlm,
    evaluate_multilabel,
    evaluate_regress,
    evaluate_rerank,
    evaluate_tag,
)
from mlxbert.cli.commands.fill_mask import fill_mask
from mlxbert.cli.commands.finetune import (
    finetune_answer,
    finetune_classify,
    finetune_embed,
    finetune_multilabel,
    finetune_regress,
    finetune_rerank,
    finetune_tag,
)
from mlxbert.cli.commands.inspect import inspect
from mlxbert.cli.commands.machine import bench, doctor
from mlxbert.cli.commands.mine import mine
from mlxbert.cli.commands.models import models_download, models_list, models_path, models_remove
from mlxbert.cli.commands.next_sentence import next_sentence
from mlxbert.cli.commands.pretrain import distill, pretrain, vocabulary
from mlxbert.cli.commands.replaced import replaced
from mlxbert.cli.commands.rerank import rerank
from mlxbert.cli.commands.similarity import similarity
from mlxbert.cli.commands.tag import tag
from mlxbert.cli.commands.tokenize import tokenize
from mlxbert.cli.commands.verify import verify
from mlxbert.cli.options import flatten
from mlxbert.cli.program import Command, Group, explain, explain_command
from mlxbert.cli.session import set_up_notes
from mlxbert.cli.views import console
from mlxbert.cli.views.json_lines import OutputClosedError
from mlxbert.errors import ArgumentError, MlxbertError

_ABOUT = "BERT encoders on Apple's MLX: embed, fill masks, fine-tune, look inside."

app = typer.Typer(
    name="mlxbert",
    cls=Group,
    help=_ABOUT,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_GROUPS: dict[str, tuple[str, tuple[Callable[..., None], ...]]] = {
    "finetune": (
        "Train a model on labelled texts.",
        (
            *(finetune_classify, finetune_multilabel, finetune_regress, finetune_tag, finetune_answer),
            *(finetune_embed, finetune_rerank),
        ),
    ),
    "evaluate": (
        "Measure how good a model is on labelled texts.",
        (
            *(evaluate_classify, evaluate_multilabel, evaluate_regress, evaluate_tag, evaluate_answer),
            *(evaluate_embed, evaluate_rerank, evaluate_mlm),
        ),
    ),
    "models": (
        "Models on this machine and on the Hugging Face hub.",
        (models_list, models_download, models_path, models_remove),
    ),
}

_USING = (fill_mask, embed, similarity, rerank, classify, tag, answer, next_sentence, replaced, tokenize)
for command in (*_USING, mine, pretrain, distill, vocabulary, inspect, convert, verify, doctor, bench):
    app.command(command.__name__.replace("_", "-"), cls=Command)(flatten(command, set_up_notes))
for name, (about, commands) in _GROUPS.items():
    group = typer.Typer(help=about, cls=Group, no_args_is_help=True)
    app.add_typer(group, name=name)
    for grouped in commands:
        group.command(grouped.__name__.removeprefix(f"{name}_"), cls=Command)(flatten(grouped, set_up_notes))


@app.command("help", cls=Command)
def explained(
    context: typer.Context,
    words: Annotated[list[str] | None, typer.Argument(metavar="COMMAND", help="The command.")] = None,
) -> None:
    """Explain a command and all its options.

    Example: mlxbert help embed
    """
    explain_command(context, words or ())


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlxbert {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """The options of the program itself."""


def run(arguments: list[str] | None = None) -> int:
    """Runs the program; returns its exit status."""
    return launched.silenced(lambda: _run(arguments)) if launched.rank() else _run(arguments)


def _run(arguments: list[str] | None) -> int:
    console.set_quiet(False)
    typed = sys.argv[1:] if arguments is None else arguments
    try:
        status = app(arguments, prog_name="mlxbert", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except typer.TyperException as problem:
        if problem.format_message():  # empty if typer has shown the help instead
            message, hint = explain(problem, typed)
            console.say("error", _taskless(typed) or message)
            if hint and not _taskless(typed):
                console.say("hint", hint)
        return 2
    except MlxbertError as problem:
        console.say("error", _name_option(problem.message) if isinstance(problem, ArgumentError) else problem.message)
        if problem.hint:
            console.say("hint", problem.hint)
        return 2 if isinstance(problem, ArgumentError) else 1
    except (OutputClosedError, BrokenPipeError):  # the reader of our output has stopped
        _drop_output()
        return 0
    except OSError as problem:
        console.say("error", f"{problem.filename or 'output'}: {problem.strerror}")
        _drop_output()
        return 1
    except (KeyboardInterrupt, typer.Abort):
        return 130


def _taskless(typed: list[str]) -> str | None:
    """What is wrong with `finetune --train …`, where options stand in place of the task."""
    if typed[:1] not in (["finetune"], ["evaluate"]) or not typed[1:2] or not typed[1].startswith("-"):
        return None
    tasks = [command.__name__.removeprefix(f"{typed[0]}_") for command in _GROUPS[typed[0]][1]]
    return f"{typed[0]} needs the name of the task first, one of {', '.join(tasks)}"


def _name_option(text: str) -> str:
    """An error of the library that begins with an argument, `group_size is 7`, with the option in place of it."""
    found = _parameters(typer.main.get_command(app))
    options = {parameter.name: parameter.opts[-1] for parameter in found if parameter.opts[-1].startswith("--")}
    name, space, rest = text.partition(" ")
    return f"{options.get(name, name)}{space}{rest}"


def _parameters(command: Any) -> Iterator[Any]:
    """The parameters of a command and of those below it."""
    yield from command.params
    for below in getattr(command, "commands", {}).values():
        yield from _parameters(below)


def _drop_output() -> None:
    """Discards what is buffered for stdout: Python would try to write it again at exit, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
