"""`mlxbert rerank`."""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.options import InputOptions, ModelOptions, OutputOptions, Overflow
from mlxbert.cli.ranking import open_ranking, write_ranking
from mlxbert.cli.views import vectors as view
from mlxbert.errors import MissingHeadError
from mlxbert.options import Option

_EXAMPLE = "cross-encoder/ms-marco-MiniLM-L6-v2"

if TYPE_CHECKING:
    from mlxbert.text.batch import Usage


def rerank(
    model: ModelOptions,
    source: InputOptions,
    out: OutputOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="QUERY TEXT…", help="A query, and texts.")] = None,
    top_k: Annotated[int | None, Option("Show only the N best.")] = None,
    overflow: Annotated[
        Overflow, Option("Overlong pairs. What happens to pairs too long for the model; window takes the best window.")
    ] = "truncate",
) -> None:
    """Rank texts by how well they answer a query.

    Needs a cross-encoder, which reads the query and a text together; this is slower than similarity but more accurate.
    The texts may come from a file or a pipe. If no query is given, the first text of the file is the query. The index
    in the output counts the texts, from 0. In a terminal, the 20 best texts of a file are shown.

    Example: mlxbert rerank "who wrote emma" --input answers.txt --model cross-encoder/ms-marco-MiniLM-L6-v2
    """
    opened = open_ranking(texts or (), source)
    try:
        loaded = session.load("classify", model)
    except MissingHeadError as problem:
        problem.hint = f"rerank needs a cross-encoder, for example {_EXAMPLE}"
        raise
    from mlxbert.tasks.rerank import rerank as task
    from mlxbert.weights.cross_encoder import gives_probabilities

    def rank(query: str, others: Iterator[Any], top_k: int | None, usage: "Usage", on_error: str) -> Any:
        how: dict[str, Any] = {"overflow": overflow, "batch_tokens": model.batch_tokens, "on_error": on_error}
        return task(loaded, query, others, top_k=top_k, usage=usage, **how)

    draw = functools.partial(view.draw_ranked, bars=gives_probabilities(loaded.files))
    write_ranking(texts or (), opened, out, draw, top_k, rank)
