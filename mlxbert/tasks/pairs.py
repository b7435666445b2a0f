"""Computes the similarity of the two texts of each pair, or of every query to every text.

Shapes: N queries, M texts.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, cast

from mlxbert.errors import ArgumentError, InputError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.model import Model
from mlxbert.results.embed import Embedding
from mlxbert.results.result import Failure
from mlxbert.results.text_relations import PairSimilarity
from mlxbert.tasks.argument_checks import check_inputs, check_model
from mlxbert.tasks.embed import stacked
from mlxbert.tasks.keywords import CallOptions, UsageOptions, takes_keywords
from mlxbert.tasks.options import SimilarityOptions
from mlxbert.tasks.prompted_task import check_texts, choose_prompt
from mlxbert.tasks.query_ranking import scores_of_all
from mlxbert.tasks.runner import check_on_error, run
from mlxbert.tasks.similarity import embed_tasks, embedding_tasks
from mlxbert.tasks.task import PreparedItem, usable

Pair = tuple[str, str]
PairJob = tuple[PreparedItem[str], PreparedItem[str]]


@takes_keywords
def similarity_pairs(
    model: Model, pairs: Pair | Iterable[Pair | InputError], *, options: SimilarityOptions, call: CallOptions
) -> PairSimilarity | Iterator[PairSimilarity | Failure]:
    """Computes the similarity of the two texts of each pair; the first text is the query (see `similarity`).

    Example:
        >>> pairs = [("A man eats.", "He has lunch."), ("A man eats.", "It rains.")]
        >>> [result.score for result in mlxbert.similarity_pairs(mlxbert.load(), pairs)]

    Args:
        model: Any model; see `embed`.
        pairs: One pair, a tuple of two texts; or any number of pairs.
        options: See `SimilarityOptions`.
        call: See `CallOptions`.

    Returns:
        One result for one pair; for several an iterator in their order, in constant memory.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: The input is not a pair of texts, or is too long with `overflow="error"`.
    """
    check_model(model, pairs)
    tasks: Any = embedding_tasks(model, options, call.usage)
    first, second = tasks

    def prepare(pair: Pair) -> PairJob:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"expected a pair of texts, found {pair!r:.60}", hint="a pair is a tuple: (a, b)")
        return first.prepare(pair[0]), second.prepare(pair[1])

    @contextmanager
    def together(pairs: Sequence[Pair]) -> Iterator[None]:
        usable = [pair for pair in pairs if isinstance(pair, tuple | list) and len(pair) == 2]
        with first.together([a for a, _ in usable]), second.together([b for _, b in usable]):
            yield

    def compared(a: Embedding | InputError, b: Embedding | InputError) -> PairSimilarity | InputError:
        if isinstance(a, InputError) or isinstance(b, InputError):
            return a if isinstance(a, InputError) else cast(InputError, b)
        return PairSimilarity(a.text, b.text, first.score(a, b), a.truncated or b.truncated)

    def compute(jobs: Sequence[PairJob]) -> Iterator[PairSimilarity | InputError]:
        embedded = zip(first.results([a for a, _ in jobs]), second.results([b for _, b in jobs]), strict=True)
        return (compared(a, b) for a, b in embedded)

    if isinstance(pairs, tuple) and len(pairs) == 2 and all(isinstance(text, str) for text in pairs):
        return usable(next(compute([prepare((str(pairs[0]), str(pairs[1])))])))
    return run(
        check_inputs(pairs, "pairs", "one pair or an iterable of pairs"),
        prepare,
        compute,
        call.on_error,
        together=together,
    )


@takes_keywords
def similarity_matrix(
    model: Model,
    queries: Sequence[str],
    texts: Sequence[str] | None = None,
    *,
    options: SimilarityOptions,
    call: UsageOptions,
    on_error: Literal["raise", "return"] = "raise",
) -> "NDArray[np.float32]":
    """Computes the similarity of every query to every text (see `similarity`).

    Example:
        >>> model = mlxbert.load()
        >>> cosines = mlxbert.similarity_matrix(model, ["A man eats.", "It rains."], ["He has lunch."])  # (2, 1)
        >>> cosines = mlxbert.similarity_matrix(model, ["A man eats.", "It rains."])  # (2, 2)

    Args:
        model: Any model; see `embed`.
        queries: N texts.
        texts: M texts to compare the queries with; `None` compares the queries with each other, all with the prompt of
            `embed` instead of a prompt for queries.
        on_error: `raise`; or `return` NaN for all scores of an unusable text. The log says why.
        options: See `SimilarityOptions`.
        call: See `UsageOptions`.

    Returns:
        float32 (N, M).

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text is unusable.
    """
    check_on_error(on_error)
    check_model(model, queries, texts)
    query_texts = list(check_texts(queries, "queries"))
    if texts is None and (options.query_prompt is not None or options.query_prompt_name is not None):
        raise ArgumentError("a prompt for queries needs `texts`, the texts to compare the queries with")
    if texts is None and options.prompt is None and options.prompt_name is None:
        options = replace(options, prompt=choose_prompt(model.source, model.embedder.config, None, None))
    first, second = embed_tasks(model, options, call.usage)
    rows = stacked(first, query_texts, on_error)
    columns = rows if texts is None else stacked(second, list(check_texts(texts)), on_error)
    return scores_of_all(first.similarity, rows, columns)
