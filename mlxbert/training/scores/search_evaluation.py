"""`mlxbert.evaluate_search`, by vectors; `mlxbert.evaluate_reranking`: what a cross-encoder adds to it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mlxbert.counterparts import not_one_of
from mlxbert.data.retrieval import Retrieval, read_retrieval
from mlxbert.model import Model
from mlxbert.options import COUNT
from mlxbert.progress import OnProgress
from mlxbert.readers.text_lines import UTF8
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.embed import stacked
from mlxbert.tasks.options import SimilarityOptions
from mlxbert.tasks.query_ranking import nearest
from mlxbert.tasks.rerank import check_one_score, rerank
from mlxbert.tasks.similarity import embed_tasks
from mlxbert.text.usage import Usage
from mlxbert.training.scores.evaluation_summary import Evaluation
from mlxbert.training.scores.retrieval_metrics import RETRIEVAL, RetrievalScores, retrieval_scores

TOP_K = 100
_DEPTH = 1000  # documents of each query that MAP is over, as in trec_eval


def evaluate_search(
    model: Model,
    *,
    data: str | Path | Iterable[Any],
    split: str = "test",
    metric: str | None = None,
    format: str | None = None,
    batch_tokens: int | None = None,
) -> Evaluation:
    """Evaluates vectors on retrieval: each query ranks all documents, see `similarity`.

    Example:
        >>> mlxbert.evaluate_search(mlxbert.load(), data="scifact").metrics["ndcg@10"]

    Args:
        model: The model whose vectors are compared.
        data: A folder of BEIR, or records of query, positives and negatives; see
            `mlxbert.data.retrieval.read_retrieval`.
        split: Which of the judgements of BEIR are read.
        metric: The main metric, one of `ndcg@10`, `map`, `mrr@10`, `recall@10` and `recall@100`; `None` for the first.
        format: The format of files of records, where their endings do not say it.
        batch_tokens: Tokens per batch, padding included.

    Returns:
        An evaluation whose `examples` are queries with relevant documents. `map` is over the first 1,000 documents.

    Raises:
        ArgumentError: An argument is invalid.
        InputError: The data cannot be used.
    """
    check_model(model)
    metric = RETRIEVAL[0] if metric is None else metric
    _check_metric(metric)
    found, usage = read_retrieval(data, split=split, format=format), Usage()
    scores = retrieval_scores(_search(model, found, _DEPTH, batch_tokens, usage), found.judgements)
    return _evaluation("embed", scores, metric, {}, model=model.source, data=found.files, truncated=usage.truncated)


def evaluate_reranking(
    model: Model,
    embedder: Model,
    *,
    data: str | Path | Iterable[Any],
    split: str = "test",
    top_k: int = TOP_K,
    metric: str = RETRIEVAL[0],
    format: str | None = None,
    no_header: bool = False,
    encoding: str = UTF8,
    batch_tokens: int | None = None,
    on_progress: OnProgress | None = None,
) -> Evaluation:
    """Evaluates a cross-encoder on retrieval: an embedder finds documents, the cross-encoder reranks them.

    Example:
        >>> found = mlxbert.evaluate_reranking(mlxbert.load("my-reranker"), mlxbert.load(), data="scifact", top_k=50)
        >>> found.metrics["before_ndcg@10"], found.metrics["ndcg@10"]

    Args:
        model: The cross-encoder.
        embedder: The model whose vectors find the first documents, see `similarity`.
        data: A folder of BEIR, or records of query, positives and negatives; see
            `mlxbert.data.retrieval.read_retrieval`.
        split: Which of the judgements of BEIR are read.
        top_k: How many documents of each query are reranked; others do not count, before or after.
        metric: The main metric, one of `ndcg@10`, `map`, `mrr@10`, `recall@10` and `recall@100`.
        format: The format of files of records, where their endings do not say it.
        no_header: Whether the first row of a .csv or .tsv is data; its columns are then called `1`, `2`, …
        encoding: The encoding of text files.
        batch_tokens: Tokens per batch, padding included.
        on_progress: Called with how many queries are done, and of how many.

    Returns:
        An evaluation whose `examples` are queries with relevant documents. `metrics` has every metric after reranking,
        and, as `before_…`, of the embedder alone.

    Raises:
        ArgumentError: An argument is invalid.
        CheckpointError: A model is of another kind.
        InputError: The data cannot be used.
    """
    for one in (model, embedder):
        check_model(one)
    COUNT.check_whole("top_k", top_k)
    _check_metric(metric)
    model.require("classify")
    check_one_score(model)
    found = read_retrieval(data, split=split, format=format, header=not no_header, encoding=encoding)
    before = _search(embedder, found, top_k, batch_tokens)
    after: dict[str, list[str]] = {}
    usage = Usage()
    for number, (query, names) in enumerate(before.items()):
        if on_progress is not None:
            on_progress(number, len(before))
        texts = [found.documents[name] for name in names]
        ranked = rerank(model, found.queries[query], texts, batch_tokens=batch_tokens, usage=usage)
        after[query] = [names[one.index] for one in ranked]
    if on_progress is not None:
        on_progress(len(before), len(before))
    scores, first = (retrieval_scores(ranked, found.judgements) for ranked in (after, before))
    more = {f"before_{name}": value for name, value in first.means().items()}
    return _evaluation("rerank", scores, metric, more, model=model.source, data=found.files, truncated=usage.truncated)


def _evaluation(task: str, scores: RetrievalScores, metric: str, more: Mapping[str, float], **about: Any) -> Evaluation:
    """The evaluation of rankings; `more` are metrics next to theirs, `about` is what else it says."""
    means = scores.means()
    return Evaluation(
        task=task,
        examples=len(scores.queries),
        metric=metric,
        score=means[metric],
        interval=scores.interval(metric),
        metrics={**means, **more},
        **about,
    )


def _check_metric(metric: str) -> None:
    if metric not in RETRIEVAL:
        raise not_one_of("metric", metric, RETRIEVAL)


def _search(
    embedder: Model, data: Retrieval, depth: int, batch_tokens: int | None, usage: Usage | None = None
) -> dict[str, list[str]]:
    """The documents nearest to each query that has judgements, the nearest first."""
    embedder.require("embed")
    names, queries = [*data.documents], [query for query in data.queries if query in data.judgements]
    asking, task = embed_tasks(embedder, SimilarityOptions(batch_tokens=batch_tokens), usage)
    asked = stacked(asking, [data.queries[query] for query in queries], "raise")
    best, _ = nearest(task.similarity, asked, stacked(task, [*data.documents.values()], "raise"), depth)
    return {query: [names[number] for number in row] for query, row in zip(queries, best.tolist(), strict=True)}
