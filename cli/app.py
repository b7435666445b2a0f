"""The `mlxbert` program: its commands, and how errors become exit codes.

0 done, 1 the work failed, 2 wrong usage, 130 interrupted. Nothing a user can cause ends in a traceback.
"""

import os
import signal
import sys
from typing import Annotated

# While Python still imports, an interrupt would end in a traceback; the default action ends the process quietly.
signal.signal(signal.SIGINT, signal.SIG_DFL)

import typer  # noqa: E402

from mlxbert import __version__  # noqa: E402
from mlxbert.cli import render  # noqa: E402
from mlxbert.cli.doctor import doctor  # noqa: E402
from mlxbert.cli.fill_mask import fill_mask  # noqa: E402
from mlxbert.cli.inspect import inspect  # noqa: E402
from mlxbert.cli.models import models_list  # noqa: E402
from mlxbert.cli.next_sentence import next_sentence  # noqa: E402
from mlxbert.cli.options import flatten  # noqa: E402
from mlxbert.cli.tokenize import tokenize  # noqa: E402
from mlxbert.errors import ArgumentError, MlxbertError  # noqa: E402

app = typer.Typer(
    name="mlxbert",
    help="BERT encoders on Apple's MLX: fill-mask, next-sentence prediction, and a look inside.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models = typer.Typer(help="The models on this machine.", no_args_is_help=True)
app.add_typer(models, name="models")

for command in (fill_mask, next_sentence, tokenize, inspect, doctor):
    app.command(command.__name__.replace("_", "-"))(flatten(command))
models.command("list")(flatten(models_list))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mlxbert {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """BERT encoders on Apple's MLX: fill-mask, next-sentence prediction, and a look inside."""


def run(arguments: list[str] | None = None) -> int:
    """Runs the program and gives its exit status."""
    try:
        status = app(arguments, standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except typer.TyperException as problem:
        render.say("error", problem.format_message())
        return 2
    except MlxbertError as problem:
        render.say("error", problem.message)
        if problem.hint:
            render.say("hint", problem.hint)
        return 2 if isinstance(problem, ArgumentError) else 1
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as problem:
        render.say("error", f"{problem.filename or 'output'}: {problem.strerror}")
        return 1
    except (KeyboardInterrupt, typer.Abort):
        render.say("error", "interrupted")
        return 130


def main() -> None:
    """Entry point of the console script."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run())
