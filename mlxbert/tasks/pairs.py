"""How similar the texts of pairs are, and every query to every text. N queries, M texts."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, overload

from mlxbert.errors import ArgumentError, InputError
from mlxbert.model import Model
from mlxbert.results.related import PairSimilarity
from mlxbert.results.result import Failure
from mlxbert.tasks.arguments import check_inputs, check_model
from mlxbert.tasks.embed import check_texts, choose_prompt, stacked
from mlxbert.tasks.ranking import scores_of_all, scores_of_pairs
from mlxbert.tasks.runner import check_on_error, run
from mlxbert.tasks.similarity import SimilarityOptions, embed_tasks
from mlxbert.tasks.task import Job
from mlxbert.text.usage import Usage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Pair = tuple[str, str]
PairJob = tuple[Job[str], Job[str]]


# fmt: off
@overload
def similarity_pairs(
    model: Model, pairs: Pair, *, usage: Usage | None = None,
    pooling: str | None = None, normalize: bool | None = None, dimensions: int | None = None,
    prompt: str | None = None, prompt_name: str | None = None, query_prompt: str | None = None,
    query_prompt_name: str | None = None, overflow: str = "truncate", batch_tokens: int | None = None,
) -> PairSimilarity: ...
@overload
def similarity_pairs(
    model: Model, pairs: Iterable[Pair | InputError], *, usage: Usage | None = None,
    on_error: Literal["raise"] = "raise",
    pooling: str | None = None, normalize: bool | None = None, dimensions: int | None = None,
    prompt: str | None = None, prompt_name: str | None = None, query_prompt: str | None = None,
    query_prompt_name: str | None = None, overflow: str = "truncate", batch_tokens: int | None = None,
) -> Iterator[PairSimilarity]: ...
@overload
def similarity_pairs(
    model: Model, pairs: Iterable[Pair | InputError], *, usage: Usage | None = None, on_error: str,
    pooling: str | None = None, normalize: bool | None = None, dimensions: int | None = None,
    prompt: str | None = None, prompt_name: str | None = None, query_prompt: str | None = None,
    query_prompt_name: str | None = None, overflow: str = "truncate", batch_tokens: int | None = None,
) -> Iterator[PairSimilarity | Failure]: ...
# fmt: on
def similarity_pairs(
    model: Model,
    pairs: Pair | Iterable[Pair | InputError],
    *,
    usage: Usage | None = None,
    on_error: str = "raise",
    pooling: str | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    query_prompt: str | None = None,
    query_prompt_name: str | None = None,
    overflow: str = "truncate",
    batch_tokens: int | None = None,
) -> PairSimilarity | Iterator[PairSimilarity | Failure]:
    """Computes how similar the two texts of each pair are; the first text is the query, see `similarity`.

    Example:
        >>> pairs = [("A man eats.", "He has lunch."), ("A man eats.", "It rains.")]
        >>> [result.score for result in mlxbert.similarity_pairs(mlxbert.load(), pairs)]

    Args:
        model: Any model; see `embed`.
        pairs: One pair, a tuple of two texts; or any number of pairs.
        usage: Counts tokens, padding, and truncated texts, two for each pair.
        on_error: `raise`, or `return` a Failure in place of a pair that cannot be used.
        pooling: As in `embed`, and so are the following ones.
        normalize: Cosines do not depend on it, other scores do.
        dimensions: Keep only the first values of vectors.
        prompt: Put before each text.
        prompt_name: The name of one of the model's own prompts, instead of `prompt`.
        query_prompt: Put before the query; `prompt` is then put before the other texts only.
        query_prompt_name: The name of one of the model's own prompts, instead of `query_prompt`.
        overflow: A text too long for the model: `truncate`, `window` or `error`.
        batch_tokens: Tokens per batch, padding included.

    Returns:
        One result for one pair; for several an iterator in their order, in constant memory.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: Not a pair of texts, or too long with `overflow="error"`.
    """
    check_on_error(on_error)
    check_model(model, pairs)
    options: SimilarityOptions = {
        "pooling": pooling, "normalize": normalize, "dimensions": dimensions, "prompt": prompt,
        "prompt_name": prompt_name, "query_prompt": query_prompt, "query_prompt_name": query_prompt_name,
        "overflow": overflow, "batch_tokens": batch_tokens,
    }  # fmt: skip
    first, second = embed_tasks(model, options, usage)

    def prepare(pair: Pair) -> PairJob:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InputError(f"expected a pair of texts, found {pair!r:.60}", hint="a pair is a tuple: (a, b)")
        return first.prepare(pair[0]), second.prepare(pair[1])

    @contextmanager
    def together(pairs: Sequence[Pair]) -> Iterator[None]:
        usable = [pair for pair in pairs if isinstance(pair, tuple | list) and len(pair) == 2]
        with first.together([a for a, _ in usable]), second.together([b for _, b in usable]):
            yield

    def compute(jobs: Sequence[PairJob]) -> Iterator[PairSimilarity]:
        found = zip(first.results([a for a, _ in jobs]), second.results([b for _, b in jobs]), strict=True)
        return (
            PairSimilarity(
                a.text,
                b.text,
                float(scores_of_pairs(first.similarity, a.embedding, b.embedding)),
                a.truncated or b.truncated,
            )
            for a, b in found
        )

    if isinstance(pairs, tuple) and len(pairs) == 2 and all(isinstance(text, str) for text in pairs):
        return next(compute([prepare((str(pairs[0]), str(pairs[1])))]))
    return run(
        check_inputs(pairs, "pairs", "one or an iterable of them"), prepare, compute, on_error, together=together
    )


def similarity_matrix(
    model: Model,
    queries: Sequence[str],
    texts: Sequence[str] | None = None,
    *,
    usage: Usage | None = None,
    on_error: str = "raise",
    pooling: str | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    query_prompt: str | None = None,
    query_prompt_name: str | None = None,
    overflow: str = "truncate",
    batch_tokens: int | None = None,
) -> "NDArray[np.float32]":
    """Computes how similar every query is to every text, see `similarity`.

    Example:
        >>> model = mlxbert.load()
        >>> cosines = mlxbert.similarity_matrix(model, ["A man eats.", "It rains."], ["He has lunch."])  # (2, 1)
        >>> cosines = mlxbert.similarity_matrix(model, ["A man eats.", "It rains."])  # (2, 2)

    Args:
        model: Any model; see `embed`.
        queries: N texts.
        texts: M texts to compare them with; `None` for the queries themselves, which are then no queries: all of them
            get the same prompt, that of `embed`.
        usage: Counts tokens, padding and truncated texts.
        on_error: `raise`; or `return` NaN for all scores of a text that cannot be used. The log says why.
        pooling: As in `embed`, and so are the following ones.
        normalize: Cosines do not depend on it, other scores do.
        dimensions: Keep only the first values of vectors.
        prompt: Put before each text.
        prompt_name: The name of one of the model's own prompts, instead of `prompt`.
        query_prompt: Put before the query; `prompt` is then put before the other texts only.
        query_prompt_name: The name of one of the model's own prompts, instead of `query_prompt`.
        overflow: A text too long for the model: `truncate`, `window` or `error`.
        batch_tokens: Tokens per batch, padding included.

    Returns:
        float32 (N, M).

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text cannot be used.
    """
    check_on_error(on_error)
    check_model(model, queries, texts)
    asked = list(check_texts(queries, "queries"))
    if texts is None and (query_prompt is not None or query_prompt_name is not None):
        raise ArgumentError("there is a prompt for queries but no texts, expected texts= to compare the queries with")
    if texts is None and prompt is None and prompt_name is None:
        prompt = choose_prompt(model, None, None)
    options: SimilarityOptions = {
        "pooling": pooling, "normalize": normalize, "dimensions": dimensions, "prompt": prompt,
        "prompt_name": prompt_name, "query_prompt": query_prompt, "query_prompt_name": query_prompt_name,
        "overflow": overflow, "batch_tokens": batch_tokens,
    }  # fmt: skip
    first, second = embed_tasks(model, options, usage)
    rows = stacked(first, asked, on_error)
    columns = rows if texts is None else stacked(second, list(check_texts(texts)), on_error)
    return scores_of_all(first.similarity, rows, columns)
