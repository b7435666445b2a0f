"""`mlxbert next-sentence`."""

from typing import Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input, pairs
from mlxbert.cli.options import Cut, FileOptions, InputOptions, ModelOptions
from mlxbert.cli.output.file import check_output
from mlxbert.cli.views import next_sentence as view
from mlxbert.errors import ArgumentError


def next_sentence(
    model: ModelOptions,
    source: InputOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="A B", help="Two texts.")] = None,
    overflow: Annotated[Cut, typer.Option(help="What to do with a pair too long for the model.")] = Cut.truncate,
) -> None:
    """Say whether text B follows text A.

    From a file: the fields or columns a and b. The score is the probability that B is the next sentence.

    Example: mlxbert next-sentence "The man went to the store." "He bought a gallon of milk."
    """
    if texts and len(texts) != 2:
        raise ArgumentError(f"there are {len(texts)} texts, expected two: A and B", hint="quote each text")
    check_output(out.output, out.overwrite, source=source.input)
    opened = open_input(texts or (), source, ("a", "b"))
    loaded = session.load("next-sentence", model)
    from mlxbert.tasks.next_sentence import next_sentence as task

    session.stream(
        opened,
        lambda records: task(
            loaded,
            pairs(records),
            overflow=overflow.value,
            batch_tokens=model.batch_tokens,
            on_error=opened.on_error,
        ),
        session.View(view.draw),
        out,
        task=session.Task("next-sentence", loaded, model, {"overflow": overflow.value}),
    )
