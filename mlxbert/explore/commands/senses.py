"""`mlxbert senses`."""

from collections.abc import Iterator
from typing import Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input
from mlxbert.cli.shared_options import InputOptions, ModelOptions, OutputOptions
from mlxbert.cli.views import progress
from mlxbert.errors import ArgumentError
from mlxbert.explore import views
from mlxbert.explore.options import SensesOptions


def senses(
    model: ModelOptions,
    source: InputOptions,
    out: OutputOptions,
    chosen: SensesOptions,
    word: Annotated[str, typer.Argument(metavar="WORD", help="The word, or several words in quotes.")],
) -> None:
    """Find the senses in which texts use a word.

    Each place of the word in the texts has a vector that depends on the words around it; similar vectors are a sense.
    A sense is shown with its typical lines, and with words that could stand there if the model predicts words. Only
    whole words are found, in upper or lower case.

    Example: mlxbert senses bank --input notes.txt
    """
    if not word.strip():
        raise ArgumentError(f"WORD is {word!r}, expected a word")
    records = open_input((), source, "text")
    loaded = session.load(None, model)
    from mlxbert.explore.senses import senses as task

    with progress.records(records.size, shown=True) as update:

        def texts() -> Iterator[str]:
            for count, record in enumerate(records, 1):
                if record.problem is not None:
                    raise record.located(record.problem)
                update(records.done, count)
                yield record.text

        result = task(loaded, word, texts(), **vars(chosen))
    session.show_object(result.to_dict(), lambda: views.draw_senses(result), out)
