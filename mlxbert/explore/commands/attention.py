"""`mlxbert attention`."""

from pathlib import Path
from typing import Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.shared_options import ComputingOptions, OutputOptions
from mlxbert.errors import ArgumentError
from mlxbert.explore import views
from mlxbert.explore.pages.attention import check, write
from mlxbert.option_declarations import Bounds, Option, OutputPath
from mlxbert.tasks.options import TokenizeOptions


def attention(
    model: ComputingOptions,
    out: OutputOptions,
    chosen: TokenizeOptions,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The text.")],
    layer: Annotated[
        int | None,
        Option(
            "Layer, counted from 0; -1 is the last. The table of all layers shows their mean.",
            usual="all",
            bounds=Bounds(-1_000, 1_000),
        ),
    ] = None,
    head: Annotated[
        int | None,
        Option(
            "Attention head, counted from 0. With all heads, a table shows their mean.",
            usual="all",
            bounds=Bounds(-10_000, 10_000),
        ),
    ] = None,
    rollout: Annotated[
        bool,
        Option("Multiply the layers. A row says how much of each token has reached this token, by the means of heads."),
    ] = False,
    output: Annotated[
        Path | None, Option("Write a page (.html) or numbers (.json, .npz).", "FILE", short="-o"), OutputPath("file")
    ] = None,
    overwrite: Annotated[bool, Option("Replace an existing file.")] = False,
) -> None:
    """Show which tokens each token of a text attends to.

    Each row is a token, and its columns are the tokens that it attends to. An .html page lets you choose the layer and
    head.

    Example: mlxbert attention "The bank of the river." --output bank.html
    """
    check(output, overwrite)
    if rollout and head is not None:
        raise ArgumentError("--head cannot be combined with --rollout, which is computed from the mean of all heads")
    loaded = session.load(None, model, heads=())
    from mlxbert.explore.attention import attention as task

    weights = task(loaded, text, layers=layer, heads=head, rollout=rollout, **vars(chosen))
    if output is None:
        session.show_object(weights.to_dict(), lambda: views.draw_attention(weights), out)
    else:
        write(weights, output, str(loaded.source))
