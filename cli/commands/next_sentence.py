"""`mlxbert next-sentence`."""

from typing import Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input
from mlxbert.cli.options import FileOptions, NoWindow, PairInputOptions, ServedOptions
from mlxbert.cli.output.file import check_output
from mlxbert.cli.views import console, next_sentence as view
from mlxbert.errors import ArgumentError
from mlxbert.options import Option


def next_sentence(
    model: ServedOptions,
    source: PairInputOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="A B", help="Two texts.")] = None,
    overflow: Annotated[NoWindow, Option("Overlong pairs. What happens to pairs too long for the model.")] = "truncate",
) -> None:
    """Predict whether text B follows text A.

    In a file, the pairs are the fields or columns a and b, or those that --text-column and --pair-column name. The
    score is the probability that B is the next sentence.

    Example: mlxbert next-sentence "The man went to the store." "He bought a gallon of milk."
    """
    if texts and len(texts) != 2:
        raise ArgumentError(
            f"found {console.counted(len(texts), 'text')}, expected two: A and B", hint="quote each text"
        )
    check_output(out.output, out.overwrite, sources=source.input)
    opened = open_input(texts or (), source, ("a", "b"))
    loaded = session.load_or_ask("next-sentence", model)
    given: dict[str, Any] = {"overflow": overflow}
    results = session.results("next-sentence", loaded, opened, model, given)
    session.stream(opened, results, view.draw, out, task=session.OutputManifest("next-sentence", loaded, model, given))
