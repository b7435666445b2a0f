"""`mlxbert explain`."""

from pathlib import Path
from typing import Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import ComputingOptions, OutputOptions
from mlxbert.cli.views import console
from mlxbert.explore import views
from mlxbert.explore.options import ExplainOptions
from mlxbert.explore.pages import explanation
from mlxbert.option_declarations import Option, OutputPath


def explain(
    model: ComputingOptions,
    out: OutputOptions,
    chosen: ExplainOptions,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text.")],
    pair: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="A second text.")] = None,
    output: Annotated[
        Path | None, Option("Write a page (.html) or numbers (.json).", "FILE", short="-o"), OutputPath("file")
    ] = None,
    overwrite: Annotated[bool, Option("Replace an existing file.")] = False,
) -> None:
    """Show which words of a text decided a result.

    The score of a label, a tag, a word or a similarity is shared out among the words of the text. Words with a positive
    share speak for it, those with a negative share against it. The shares of integrated gradients add up to the
    difference between the score of the text and that of a text without content, except for the gap, which is shown.

    Example: mlxbert explain "How do I get my money back?" "You can return any item for a full refund."
    """
    explanation.check(output, overwrite)
    loaded = session.load(None, model)
    from mlxbert.explore.explain import explain as task

    result = task(loaded, text, pair, **vars(chosen))
    if result.truncated:
        console.say("note", "the text is longer than the model's maximum, so only its beginning is explained")
    if output is None:
        session.show_object(result.to_dict(), lambda: views.draw_explanation(result), out)
    else:
        explanation.write(result, output, str(loaded.source))
