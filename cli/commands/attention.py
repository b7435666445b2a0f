"""`mlxbert attention`."""

from pathlib import Path
from typing import Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.options import ComputingOptions, NoWindow, OutputOptions
from mlxbert.cli.output.attention import check, write
from mlxbert.cli.views import attention as view
from mlxbert.options import Option, Written


def attention(
    model: ComputingOptions,
    out: OutputOptions,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text.")],
    pair: Annotated[str | None, Option("A second text, in segment B.", "TEXT")] = None,
    layer: Annotated[
        int | None, Option("A layer, from 0; -1 is the last. A table shows their mean.", usual="all")
    ] = None,
    head: Annotated[int | None, Option("A head, from 0. A table shows their mean.", usual="all")] = None,
    overflow: Annotated[NoWindow, Option("Overlong texts. What happens to texts too long for the model.")] = "error",
    output: Annotated[
        Path | None, Option("Write a page (.html) or numbers (.json, .npz).", "FILE", short="-o"), Written("file")
    ] = None,
    overwrite: Annotated[bool, Option("Replace an existing file.")] = False,
) -> None:
    """Show which tokens each token of a text attends to.

    A row is a token, its columns the tokens that it attends to. In a .html page you choose the layer and the head.

    Example: mlxbert attention "The bank of the river." --output bank.html
    """
    check(output, overwrite)
    loaded = session.load(None, model, heads=())
    from mlxbert.tasks.attention import attention as task

    found = task(loaded, text, pair=pair, layers=layer, heads=head, overflow=overflow)
    if output is None:
        session.show_object(found.to_dict(), lambda: view.draw(found), out)
    else:
        write(found, output, str(loaded.source))
