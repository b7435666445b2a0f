"""Evaluates search: `mlxbert.evaluate_search` for vectors, `mlxbert.evaluate_reranking` for cross-encoders."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from mlxbert.lazy_numpy import NDArray, np
from mlxbert.model import Model
from mlxbert.option_declarations import COUNT
from mlxbert.other_libraries import not_one_of
from mlxbert.progress import OnProgress
from mlxbert.readers.text_lines import UTF8
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.embed import EmbedTask, stacked
from mlxbert.tasks.embed_sparse import EmbedSparseTask
from mlxbert.tasks.options import SimilarityOptions
from mlxbert.tasks.query_ranking import nearest
from mlxbert.tasks.rerank import check_one_score, rerank
from mlxbert.tasks.similarity import embedding_tasks
from mlxbert.tasks.sparse_scores import SparseMatrix
from mlxbert.tasks.token_vectors import TokenVectorsTask
from mlxbert.text.usage import Usage
from mlxbert.train.data.retrieval import Retrieval, read_retrieval
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.scores.metrics import RETRIEVAL, RetrievalScores, retrieval_scores

TOP_K = 100
_DEPTH = 1000  # number of documents per query that count for MAP, as in trec_eval


def evaluate_search(
    model: Model,
    *,
    data: str | Path | Iterable[Any],
    split: str = "test",
    metric: str | None = None,
    format: str | None = None,
    batch_tokens: int | None = None,
) -> Evaluation:
    """Evaluates a model's vectors on retrieval: all documents are ranked for each query, as by `similarity`.

    Example:
        >>> mlxbert.evaluate_search(mlxbert.load(), data="scifact").metrics["ndcg@10"]

    Args:
        model: The model whose vectors are compared.
        data: A BEIR folder, or records with a query, positives and negatives (see
            `mlxbert.train.data.retrieval.read_retrieval`).
        split: The split of the BEIR folder whose judgements are read.
        metric: The main metric: `ndcg@10` (the default if it is `None`), `map`, `mrr@10`, `recall@10` or `recall@100`.
        format: The format of the files with records, if their extensions do not name it.
        batch_tokens: Tokens per batch, padding included.

    Returns:
        An evaluation. Its `examples` is the number of queries with relevant documents. `map` covers the first 1,000
        documents.

    Raises:
        ArgumentError: An argument is invalid.
        InputError: The data cannot be used.
    """
    check_model(model)
    metric = RETRIEVAL[0] if metric is None else metric
    _check_metric(metric)
    retrieval, usage = read_retrieval(data, split=split, format=format), Usage()
    scores = retrieval_scores(_search(model, retrieval, _DEPTH, batch_tokens, usage), retrieval.judgements)
    return _evaluation("embed", scores, metric, {}, model=model.source, data=retrieval.files, truncated=usage.truncated)


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
    """Evaluates a cross-encoder on retrieval: an embedder finds documents, and the cross-encoder reranks them.

    Example:
        >>> result = mlxbert.evaluate_reranking(mlxbert.load("my-reranker"), mlxbert.load(), data="scifact", top_k=50)
        >>> result.metrics["before_ndcg@10"], result.metrics["ndcg@10"]

    Args:
        model: The cross-encoder.
        embedder: The model whose vectors find the candidates, as by `similarity`.
        data: A BEIR folder, or records with a query, positives and negatives (see
            `mlxbert.train.data.retrieval.read_retrieval`).
        split: The split of the BEIR folder whose judgements are read.
        top_k: The number of documents per query that are reranked. Other documents count neither before nor after
            reranking.
        metric: The main metric, one of `ndcg@10`, `map`, `mrr@10`, `recall@10` and `recall@100`.
        format: The format of the files with records, if their extensions do not name it.
        no_header: Whether the first row of a .csv or .tsv file is data; the columns are then called `1`, `2`, …
        encoding: The encoding of text files.
        batch_tokens: Tokens per batch, padding included.
        on_progress: Called with the number of finished queries and the number of all queries.

    Returns:
        An evaluation. Its `examples` is the number of queries with relevant documents. Its `metrics` has every metric
        after reranking and, with the prefix `before_`, before reranking.

    Raises:
        ArgumentError: An argument is invalid.
        CheckpointError: `model` is not a cross-encoder, or `embedder` makes no vectors.
        InputError: The data cannot be used.
    """
    for each in (model, embedder):
        check_model(each)
    top_k = COUNT.check_whole("top_k", top_k)
    _check_metric(metric)
    model.require("classify")
    check_one_score(model)
    retrieval = read_retrieval(data, split=split, format=format, header=not no_header, encoding=encoding)
    before = _search(embedder, retrieval, top_k, batch_tokens)
    after: dict[str, list[str]] = {}
    usage = Usage()
    for number, (query, names) in enumerate(before.items()):
        if on_progress is not None:
            on_progress(number, len(before))
        texts = [retrieval.documents[name] for name in names]
        ranked = rerank(model, retrieval.queries[query], texts, batch_tokens=batch_tokens, usage=usage)
        after[query] = [names[text.index] for text in ranked]
    if on_progress is not None:
        on_progress(len(before), len(before))
    scores, first = (retrieval_scores(ranking, retrieval.judgements) for ranking in (after, before))
    more = {f"before_{name}": value for name, value in first.means().items()}
    about = {"model": model.source, "data": retrieval.files, "truncated": usage.truncated}
    return _evaluation("rerank", scores, metric, more, **about)


def _evaluation(task: str, scores: RetrievalScores, metric: str, more: Mapping[str, float], **about: Any) -> Evaluation:
    """Makes the evaluation of rankings. `more` holds further metrics, `about` further fields of `Evaluation`."""
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


def _nearest_dense(
    query_task: EmbedTask, task: EmbedTask, queries: list[str], documents: list[str], depth: int
) -> "NDArray[np.int64]":
    """Returns the indices of the documents nearest to each query, the nearest first."""
    vectors = stacked(query_task, queries, "raise"), stacked(task, documents, "raise")
    return nearest(task.similarity, *vectors, depth)[0]


def _nearest_sparse(
    query_task: EmbedSparseTask, task: EmbedSparseTask, queries: list[str], documents: list[str], depth: int
) -> "NDArray[np.int64]":
    """Returns the indices of the documents nearest to each query, the nearest first."""
    rows = SparseMatrix.of(cast(Any, task.run(documents, early=False)), task.model.config.vocab_size)
    scores = (rows.scores(task.similarity, cast(Any, query)) for query in query_task.run(queries, early=False))
    return np.array([np.argsort(-row, kind="stable")[:depth] for row in scores], np.int64)


def _nearest_by_tokens(
    query_task: TokenVectorsTask, task: TokenVectorsTask, queries: list[str], documents: list[str], depth: int
) -> "NDArray[np.int64]":
    """Returns the indices of the documents with the highest MaxSim for each query, the best first."""
    sides = (query_task, queries), (task, documents)
    rows, columns = ([cast(Any, one).embeddings for one in each.run(texts, early=False)] for each, texts in sides)
    return nearest(task.similarity, cast(Any, rows), cast(Any, columns), depth)[0]


_NEAREST: Any = {"dense": _nearest_dense, "sparse": _nearest_sparse, "tokens": _nearest_by_tokens}


def _search(
    embedder: Model, data: Retrieval, depth: int, batch_tokens: int | None, usage: Usage | None = None
) -> dict[str, list[str]]:
    """Returns the documents nearest to each query that has judgements, the nearest first."""
    embedder.require("embed")
    names, queries = [*data.documents], [query for query in data.queries if query in data.judgements]
    asked, documents = [data.queries[query] for query in queries], [*data.documents.values()]
    tasks = embedding_tasks(embedder, SimilarityOptions(batch_tokens=batch_tokens), usage)
    best = _NEAREST[embedder.vectors[0]](*tasks, asked, documents, depth)
    return {query: [names[number] for number in row] for query, row in zip(queries, best.tolist(), strict=True)}
