"""Scores texts for a query by the vectors of their tokens, for `similarity` and `rerank`."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from mlxbert.errors import InputError
from mlxbert.model import Model
from mlxbert.other_libraries import not_one_of
from mlxbert.results.embed import TokenVectors
from mlxbert.results.result import Failure
from mlxbert.tasks.maxsim import maxsim
from mlxbert.tasks.options import TokenVectorOptions, TruncatingOptions
from mlxbert.tasks.query_ranking import Scored
from mlxbert.tasks.token_vectors import TokenVectorsTask
from mlxbert.text.usage import Usage


def score_by_tokens(
    model: Model,
    query: str,
    texts: Iterable[str | InputError],
    options: TruncatingOptions,
    usage: Usage | None = None,
    on_error: str = "return",
) -> Iterator[Scored | Failure]:
    """Yields the MaxSim of each text for a query, in the order of the texts; only the query's vectors are kept."""
    if options.overflow == "window":
        raise not_one_of("overflow", options.overflow, ("truncate", "error"))
    chosen = TokenVectorOptions(overflow=options.overflow, batch_tokens=options.batch_tokens)
    query_task = TokenVectorsTask(model, replace(chosen, kind="query", overflow="truncate"), usage=usage)
    task = TokenVectorsTask(model, chosen, usage=usage)
    similarity = task.embedder.config.similarity
    (embedded,) = query_task.compute([query_task.job(query)])

    def scored(result: TokenVectors | Failure) -> Scored | Failure:
        if isinstance(result, Failure):
            return result
        score = float(maxsim(embedded.embeddings, [result.embeddings], similarity=similarity)[0])
        return Scored(score, result.text, result.truncated, result.unknown_tokens, logit=score)

    return map(scored, task.run(texts, on_error, early=False))


def only_of_tokens(model: Model) -> bool:
    """Whether a model gives vectors of tokens, but no vectors of texts."""
    return model.vectors[0] == "tokens"
