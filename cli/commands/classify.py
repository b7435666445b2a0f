"""`mlxbert classify`."""

import functools
from typing import Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import open_texts
from mlxbert.cli.options import FileOptions, ModelOptions, Overflow, PairInputOptions
from mlxbert.cli.output.file import check_output
from mlxbert.cli.views import classify as view


def classify(
    model: ModelOptions,
    source: PairInputOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None,
    pair: Annotated[str | None, typer.Option(metavar="TEXT", help="A second text, for each of the texts.")] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Labels per text; by default all, at a terminal 5.")
    ] = None,
    overflow: Annotated[
        Overflow, typer.Option(help="What to do with a text too long for the model.")
    ] = Overflow.truncate,
) -> None:
    """Classify texts, or pairs of texts, with a fine-tuned model.

    The model decides what is printed: the probability of each label, of which one or, in a multilabel model, several
    are chosen; or a number.

    Example: mlxbert classify "I loved it." --model distilbert/distilbert-base-uncased-finetuned-sst-2-english
    """
    check_output(out.output, out.overwrite, source=source.input)
    opened = open_texts(texts or (), source, pair)
    loaded = session.load("classify", model)
    from mlxbert.tasks.classify import classify as task

    given: dict[str, Any] = {"top_k": top_k, "overflow": overflow.value}
    how = given | {"batch_tokens": model.batch_tokens, "on_error": opened.on_error}
    results = task(loaded, opened.records, **how)
    draw = functools.partial(view.draw, most=top_k or view.MOST, known=loaded.labels)
    made_of = session.Task("classify", loaded, model, given | {"pair": pair})
    session.stream(opened, results, draw, out, task=made_of)
