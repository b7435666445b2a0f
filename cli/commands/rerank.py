"""`mlxbert rerank`."""

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.output.resumable_file import check_output
from mlxbert.cli.ranking_command import open_ranking, write_ranking
from mlxbert.cli.shared_options import FileOptions, RecordOptions, ServedOptions, with_options
from mlxbert.cli.views import vectors as view
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.tasks.options import RerankOptions

if TYPE_CHECKING:
    from mlxbert.cli.session import RemoteModel
    from mlxbert.model import Model
    from mlxbert.text.usage import Usage


def _rerank(
    model: ServedOptions,
    source: RecordOptions,
    out: FileOptions,
    chosen: RerankOptions,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="QUERY TEXT…", help="The query, then the texts to rank.")
    ] = None,
) -> None:
    from mlxbert.tasks.query_ranking import reranked

    check_output(out.output, out.overwrite, sources=source.input)
    records = open_ranking(texts or (), source)
    loaded = session.load_or_ask(_ENTRY.name, model)
    settings = chosen.deciding()
    del settings["top_k"]  # `write_ranking` applies it

    def score(query: str, candidates: Iterator[Any], usage: "Usage") -> Iterator[Any]:
        if session.is_remote(loaded):
            return loaded.scores(_ENTRY.name, query, candidates, usage, **settings)
        from mlxbert.tasks.keywords import CallOptions
        from mlxbert.tasks.rerank import score_pairs

        return score_pairs(loaded, query, candidates, chosen, CallOptions(usage=usage, on_error="return"))

    draw = functools.partial(view.draw_ranked, bars=_gives_probabilities(loaded))
    manifest = session.OutputManifest(_ENTRY.name, loaded, model, {"texts": texts, **chosen.deciding()})
    write_ranking(texts or (), records, out, draw, chosen.top_k, manifest, score, reranked)


_ENTRY = CATALOGUE["rerank"]
rerank = with_options(_rerank, _ENTRY.about or "", ())


def _gives_probabilities(model: "Model | RemoteModel") -> bool:
    if session.is_remote(model):
        return bool(model.facts["probabilities"])
    from mlxbert.tasks.rerank import ranks_by_tokens
    from mlxbert.weights.rerankers import gives_probabilities

    return not ranks_by_tokens(model) and gives_probabilities(model.files)
