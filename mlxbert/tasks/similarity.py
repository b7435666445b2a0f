"""How similar texts are to a query by their vectors, ranked."""

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mlxbert.errors import InputError
from mlxbert.model import Model
from mlxbert.nn.embedder import SMALLEST_NORM
from mlxbert.options import declared_options
from mlxbert.results.embed import Embedding
from mlxbert.results.notebook import Listed
from mlxbert.results.related import Similarity
from mlxbert.results.result import Failure
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.embed import EmbedTask, check_texts, choose_prompt
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.options import EmbedOptions, RankingOptions, SimilarityOptions, VectorOptions
from mlxbert.tasks.prompt_kinds import own_prompt
from mlxbert.tasks.query_ranking import Scored, check_query, rank, scores_of_pairs
from mlxbert.text.usage import Usage

if TYPE_CHECKING:
    from mlxbert.tasks.embed import Vector

_BLOCK = 256  # vectors in memory at a time
_OTHER_SIZE = "name the model and the dimensions that made the vectors; binary vectors are not ranked"
_NONE = None, None  # neither a prompt nor the name of one


@takes_keywords
def similarity(
    model: Model,
    query: str,
    texts: Iterable[str | InputError],
    *,
    options: RankingOptions,
    call: CallOptions,
) -> list[Similarity] | list[Similarity | Failure]:
    """Ranks texts by how similar their vectors are to that of a query.

    Queries and texts become vectors as in `embed`. The score is the cosine, unless the model's files name the dot
    product, or the negative Euclidean or Manhattan distance; cosines do not depend on `normalize`. Without a prompt,
    the model's own prompts for queries and for documents are used, if it has them. With a `query_prompt`, `prompt` is
    put before the texts only.

    Example:
        >>> found = mlxbert.similarity(mlxbert.load(), "A man eats.", ["He has lunch.", "It rains."], top_k=1)
        >>> found[0].score, found[0].text

    Args:
        model: Any model; see `embed`.
        query: The text that the others are compared with.
        texts: The others, any number.
        options: See `RankingOptions`.
        call: See `CallOptions`.

    Returns:
        The most similar text first; equally similar ones in the order of the input. Equal texts have equal scores.
        Failures follow after all others, and `top_k` drops none of them.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text cannot be used; raised for the query whatever `on_error` says.
    """
    check_model(model, query, texts)
    check_query(query, texts)
    best, failures = rank(score_texts(model, query, texts, options, call.usage, call.on_error), options.top_k)
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
    own = model.embedder.config.prompts
    of_query, of_texts = (options.query_prompt, options.query_prompt_name), (options.prompt, options.prompt_name)
    second = choose_prompt(model, *(of_texts if of_texts != _NONE else (None, own_prompt(own, "document"))))
    if of_query != _NONE:
        first = choose_prompt(model, *of_query, prefix="query_")
    elif of_texts != _NONE:
        first = second
    else:
        first = choose_prompt(model, None, own_prompt(own, "query"))
    shared = {name: getattr(options, name) for name in declared_options(VectorOptions)} | {"prompt_name": None}
    if model.embedder.config.similarity == "cosine":
        shared["normalize"] = True
    asking, task = (
        EmbedTask(model, EmbedOptions(**shared | {"prompt": text}), usage=usage) for text in (first, second)
    )
    return asking, task
