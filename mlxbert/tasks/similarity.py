"""How similar texts are to a query by their vectors, ranked."""

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, overload

from mlxbert.errors import InputError
from mlxbert.model import Model
from mlxbert.nn.embedder import SMALLEST_NORM
from mlxbert.results.embed import Embedding
from mlxbert.results.html import Listed
from mlxbert.results.related import Similarity
from mlxbert.results.result import Failure
from mlxbert.tasks.arguments import check_model
from mlxbert.tasks.embed import EmbedOptions, EmbedTask, check_texts, choose_prompt
from mlxbert.tasks.prompts import own_prompt
from mlxbert.tasks.ranking import Scored, check_query, rank, scores_of_pairs
from mlxbert.tasks.runner import check_on_error
from mlxbert.tasks.task import check_top_k
from mlxbert.text.usage import Usage

if TYPE_CHECKING:
    from mlxbert.tasks.embed import Vector

_SIDES = "query_", ""
_BLOCK = 256  # vectors in memory at a time
_OTHER_SIZE = "name the model and the dimensions that made the vectors; binary vectors are not ranked"
_NONE = None, None  # neither a prompt nor the name of one


class SimilarityOptions(EmbedOptions, total=False):
    """How a query and the texts it is compared with become vectors; see `similarity`."""

    query_prompt: str | None
    query_prompt_name: str | None


# fmt: off
@overload
def similarity(
    model: Model, query: str, texts: Iterable[str | InputError], *, top_k: int | None = None,
    usage: Usage | None = None, on_error: Literal["raise"] = "raise",
    pooling: str | None = None, normalize: bool | None = None, dimensions: int | None = None,
    prompt: str | None = None, prompt_name: str | None = None, query_prompt: str | None = None,
    query_prompt_name: str | None = None, overflow: str = "truncate", batch_tokens: int | None = None,
) -> list[Similarity]: ...
@overload
def similarity(
    model: Model, query: str, texts: Iterable[str | InputError], *, top_k: int | None = None,
    usage: Usage | None = None, on_error: str,
    pooling: str | None = None, normalize: bool | None = None, dimensions: int | None = None,
    prompt: str | None = None, prompt_name: str | None = None, query_prompt: str | None = None,
    query_prompt_name: str | None = None, overflow: str = "truncate", batch_tokens: int | None = None,
) -> list[Similarity | Failure]: ...
# fmt: on
def similarity(
    model: Model,
    query: str,
    texts: Iterable[str | InputError],
    *,
    top_k: int | None = None,
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
) -> list[Similarity] | list[Similarity | Failure]:
    """Ranks texts by how similar their vectors are to that of a query.

    The score is the cosine, unless the model's files name the dot product, or the negative Euclidean or Manhattan
    distance. Where no prompt is given, the model's own prompts for queries and for documents are used, if it has them.

    Example:
        >>> found = mlxbert.similarity(mlxbert.load(), "A man eats.", ["He has lunch.", "It rains."], top_k=1)
        >>> found[0].score, found[0].text

    Args:
        model: Any model; see `embed`.
        query: The text that the others are compared with.
        texts: The others, any number.
        top_k: Keep only the most similar, in memory too; `None` keeps all.
        usage: Counts tokens, padding, and truncated texts, including the query.
        on_error: `raise`, or `return` a Failure for each text that cannot be used, after all others.
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
        The most similar text first; equally similar ones in the order of the input. Equal texts have equal scores.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text cannot be used; raised for the query whatever `on_error` says.
    """
    check_on_error(on_error)
    check_top_k(top_k)
    check_model(model, query, texts)
    check_query(query, texts)
    options: SimilarityOptions = {
        "pooling": pooling, "normalize": normalize, "dimensions": dimensions, "prompt": prompt,
        "prompt_name": prompt_name, "query_prompt": query_prompt, "query_prompt_name": query_prompt_name,
        "overflow": overflow, "batch_tokens": batch_tokens,
    }  # fmt: skip
    best, failures = rank(score_texts(model, query, texts, options, usage, on_error), top_k)
    return Listed([*(Similarity(query, *one[:6]) for one in best), *failures])


def score_texts(
    model: Model,
    query: str,
    texts: Iterable[str | InputError],
    options: SimilarityOptions,
    usage: Usage | None = None,
    on_error: str = "return",
) -> Iterator[Scored | Failure]:
    """How similar each text is to a query, in the order of the texts; see `similarity`."""
    asking, task = embed_tasks(model, options, usage)
    check_texts(texts)
    (asked,) = asking.compute([asking.prepare(query)])

    def scored(found: Embedding | Failure) -> Scored | Failure:
        """Without the vector: there may be many."""
        if isinstance(found, Failure):
            return found
        score = float(scores_of_pairs(task.similarity, asked.embedding, found.embedding))
        return Scored(score, found.text, found.truncated, found.unknown_tokens)

    return map(scored, task.run(texts, on_error, early=False))  # they are ranked when all are there


def score_vectors(
    model: Model,
    query: str,
    pairs: Iterable[tuple[str, "Vector"] | InputError],
    options: SimilarityOptions,
    usage: Usage | None = None,
) -> Iterator[Scored | Failure]:
    """The same of texts that have their vectors (W,) already, float32 or int8; only the query is embedded."""
    import numpy as np

    asking, task = embed_tasks(model, options, usage)
    (asked,) = asking.compute([asking.prepare(query)])
    pairs, size, start = iter(pairs), len(asked.embedding), 0
    while block := list(itertools.islice(pairs, _BLOCK)):
        vectors = [pair[1] for pair in block if not isinstance(pair, InputError)]
        if other := next((len(vector) for vector in vectors if len(vector) != size), None):
            raise InputError(f"the vectors have {other} values, those of {model.source} have {size}", hint=_OTHER_SIZE)
        stacked = np.array(vectors, np.float32).reshape(-1, size)
        if task.similarity == "cosine":
            stacked /= np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), SMALLEST_NORM)
        scores = iter(scores_of_pairs(task.similarity, asked.embedding, stacked).tolist())
        for index, pair in enumerate(block, start):
            yield Failure(index, pair) if isinstance(pair, InputError) else Scored(next(scores), pair[0])
        start += len(block)


def embed_tasks(model: Model, options: SimilarityOptions, usage: Usage | None) -> tuple[EmbedTask, EmbedTask]:
    """The tasks that make the vectors of queries, and of the texts that they are compared with by `similarity`."""
    check_model(model)
    given: dict[str, Any] = dict(options)
    of_query, of_texts = ((given.pop(f"{side}prompt", None), given.pop(f"{side}prompt_name", None)) for side in _SIDES)
    own = model.embedder.config.prompts
    second = choose_prompt(model, *(of_texts if of_texts != _NONE else (None, own_prompt(own, "document"))))
    if of_query != _NONE:
        first = choose_prompt(model, *of_query, prefix="query_")
    elif of_texts != _NONE:
        first = second
    else:
        first = choose_prompt(model, None, own_prompt(own, "query"))
    if model.embedder.config.similarity == "cosine":
        given["normalize"] = True
    return EmbedTask(model, usage=usage, prompt=first, **given), EmbedTask(model, usage=usage, prompt=second, **given)
