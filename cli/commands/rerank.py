"""`mlxbert rerank`."""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.options import FileOptions, Overflow, RecordOptions, ServedOptions
from mlxbert.cli.output.file import check_output
from mlxbert.cli.ranking import open_ranking, write_ranking
from mlxbert.cli.views import vectors as view
from mlxbert.options import Option

if TYPE_CHECKING:
    from mlxbert.cli.remote import RemoteModel
    from mlxbert.model import Model
    from mlxbert.text.usage import Usage


def rerank(
    model: ServedOptions,
    source: RecordOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="QUERY TEXT…", help="A query, and texts.")] = None,
    top_k: Annotated[int | None, Option("Show only the N best.")] = None,
    prompt: Annotated[
        str | None, Option("What texts are judged by, for models that are given an instruction.", "TEXT")
    ] = None,
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
    from mlxbert.tasks.ranking import reranked

    check_output(out.output, out.overwrite, sources=source.input)
    opened = open_ranking(texts or (), source)
    loaded = session.load_or_ask("rerank", model)

    def score(query: str, others: Iterator[Any], usage: "Usage") -> Iterator[Any]:
        if session.is_remote(loaded):
            return loaded.scores("rerank", query, others, usage, prompt=prompt, overflow=overflow)
        from mlxbert.tasks.options import RerankOptions
        from mlxbert.tasks.ranking import with_query
        from mlxbert.tasks.rerank import RerankTask

        options = RerankOptions(prompt=prompt, overflow=overflow, batch_tokens=model.batch_tokens)
        task = RerankTask(loaded, options, usage=usage)
        task.check_query(query)
        return task.run(with_query(query, others), "return")

    draw = functools.partial(view.draw_ranked, bars=_gives_probabilities(loaded))
    given = {"texts": texts, "top_k": top_k, "prompt": prompt, "overflow": overflow}
    made_of = session.OutputManifest("rerank", loaded, model, given)
    write_ranking(texts or (), opened, out, draw, top_k, made_of, score, reranked)


def _gives_probabilities(model: "Model | RemoteModel") -> bool:
    if session.is_remote(model):
        return bool(model.facts["probabilities"])
    from mlxbert.weights.cross_encoder import gives_probabilities

    return gives_probabilities(model.files)
