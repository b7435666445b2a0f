"""`mlxbert replaced`."""

from typing import Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input
from mlxbert.cli.options import FileOptions, RecordOptions, ServedOptions, Window
from mlxbert.cli.output.file import check_output
from mlxbert.cli.views import tokens as view
from mlxbert.options import Option


def replaced(
    model: ServedOptions,
    source: RecordOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None,
    overflow: Annotated[Window, Option("Overlong texts. What happens to texts too long for the model.")] = "window",
) -> None:
    """Show which tokens of a text look replaced.

    Needs an ELECTRA discriminator. The score is the probability that a token is a replacement.

    Example: mlxbert replaced "The chef ate the meal." --model google/electra-small-discriminator
    """
    check_output(out.output, out.overwrite, sources=source.input)
    opened = open_input(texts or (), source, "text")
    loaded = session.load_or_ask("replaced", model)
    given: dict[str, Any] = {"overflow": overflow}
    results = session.results("replaced", loaded, opened, model, given)
    session.stream(
        opened, results, view.draw_replaced, out, task=session.OutputManifest("replaced", loaded, model, given)
    )
