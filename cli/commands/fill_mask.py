"""`mlxbert fill-mask`."""

from typing import Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input, single
from mlxbert.cli.options import FileOptions, InputOptions, ModelOptions, Window
from mlxbert.cli.output.file import check_output
from mlxbert.cli.views import fill_mask as view
from mlxbert.errors import ArgumentError


def fill_mask(
    model: ModelOptions,
    source: InputOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts with [MASK] in them.")] = None,
    top_k: Annotated[int | None, typer.Option(min=1, help="Words per mask; 5, or all targets.")] = None,
    targets: Annotated[str | None, typer.Option(metavar="A,B", help="Only these words compete.")] = None,
    overflow: Annotated[Window, typer.Option(help="What to do with a text too long for the model.")] = Window.window,
) -> None:
    """Find the words that may stand where a text says [MASK].

    Several masks are filled independently, each while the others stay masked. A text too long for the model is looked
    at through a window around each mask. Scores are probabilities over the whole vocabulary.

    Example: mlxbert fill-mask "Tokyo is the largest city in [MASK]." --top-k 3
    """
    check_output(out.output, out.overwrite, source=source.input)
    opened = open_input(texts or (), source, ("text",))
    loaded = session.load("fill-mask", model)
    from mlxbert.tasks.fill_mask import fill_mask as task

    words = None if targets is None else _split(targets)
    given: dict[str, Any] = {"top_k": top_k, "targets": words, "overflow": overflow.value}
    session.stream(
        opened,
        lambda records: task(
            loaded,
            single(records),
            **given,
            batch_tokens=model.batch_tokens,
            on_error=opened.on_error,
        ),
        session.View(view.draw),
        out,
        task=session.Task("fill-mask", loaded, model, given),
    )


def _split(targets: str) -> list[str]:
    words = [word.strip() for word in targets.split(",")]
    if not all(words):
        raise ArgumentError(f"target '' is not in the vocabulary: --targets {targets!r} has an empty word")
    return words
