"""`mlxbert tag`."""

import functools
from typing import Annotated, Any, Literal

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_input
from mlxbert.cli.options import FileOptions, RecordOptions, ServedOptions, Window
from mlxbert.cli.output.file import check_output
from mlxbert.cli.views import tag as view
from mlxbert.labels.schemes import marks_entities, types_of
from mlxbert.options import Option

Aggregation = Literal["none", "simple", "first", "average", "max"]  # those of transformers


def tag(
    model: ServedOptions,
    source: RecordOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None,
    aggregation: Annotated[
        Aggregation | None,
        Option("How to join tokens. As transformers does; by default words are tagged as in training."),
    ] = None,
    overflow: Annotated[Window, Option("Overlong texts. What happens to texts too long for the model.")] = "window",
) -> None:
    """Find entities in texts, or tag words: with a fine-tuned model.

    The model decides what is found: names of persons and places, or the part of speech of every word. Long texts are
    processed in overlapping windows.

    Example: mlxbert tag "Angela Merkel visited Paris." --model dslim/bert-base-NER
    """
    check_output(out.output, out.overwrite, sources=source.input)
    opened = open_input(texts or (), source, "text")
    loaded = session.load_or_ask("tag", model)
    given: dict[str, Any] = {"aggregation": aggregation, "overflow": overflow}
    results = session.results("tag", loaded, opened, model, given)
    names = loaded.labels.names if loaded.labels else ()
    draw = functools.partial(view.draw, labels=types_of(names), words=not marks_entities(names))
    session.stream(opened, results, draw, out, task=session.OutputManifest("tag", loaded, model, given))
