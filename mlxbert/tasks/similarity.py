"""Ranks texts by the similarity of their vectors to the vector of a query."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mlxbert.errors import ArgumentError, InputError
from mlxbert.lazy_numpy import np
from mlxbert.model import Model
from mlxbert.nn.unit_vectors import unit_length
from mlxbert.nn.vector_settings import VectorSettings
from mlxbert.option_declarations import declared_options
from mlxbert.results.result import Failure, Listed
from mlxbert.results.text_relations import Similarity
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.embed import EmbedTask, Vector
from mlxbert.tasks.embed_sparse import EmbedSparseTask
from mlxbert.tasks.keywords import CallOptions, takes_keywords
from mlxbert.tasks.options import EmbedOptions, RankingOptions, SimilarityOptions, SparseOptions, VectorOptions
from mlxbert.tasks.prompt_kinds import own_prompt
from mlxbert.tasks.prompted_task import check_texts, choose_prompt
from mlxbert.tasks.query_ranking import Scored, check_query, rank, scored_texts, scores_of_pairs
from mlxbert.tasks.task import Task
from mlxbert.tasks.token_vectors import token_tasks
from mlxbert.text.usage import Usage
from mlxbert.weights.vector_kinds import KINDS

Tasks = tuple[Task[Any, Any, Any, Any], Task[Any, Any, Any, Any]]  # of queries and of texts
_BLOCK = 256  # vectors in memory at a time
_OTHER_SIZE = "use the model and the `dimensions=` of the vectors, which must not be binary"
_UNSET = None, None  # neither a prompt nor its name


@takes_keywords
def similarity(
    model: Model,
    query: str,
    texts: Iterable[str | InputError],
    *,
    options: RankingOptions,
    call: CallOptions,
) -> list[Similarity] | list[Similarity | Failure]:
    """Ranks texts by the similarity of their vectors to the vector of a query.

    Queries and texts become vectors as in `embed`. The score is the cosine, unless the model's files name the dot
    product, or the negative Euclidean or Manhattan distance; cosines do not depend on `normalize`. A model that makes
    sparse vectors, but no dense ones, compares these, by dot product. Without a prompt,
    the model's own prompts for queries and for documents are used, if it has them. With a `query_prompt`, `prompt` is
    put before the texts only. With a model for late interaction, such as ColBERT, the score is MaxSim (see `maxsim`).

    Example:
        >>> ranked = mlxbert.similarity(mlxbert.load(), "A man eats.", ["He has lunch.", "It rains."], top_k=1)
        >>> ranked[0].score, ranked[0].text

    Args:
        model: Any model; see `embed`.
        query: The query.
        texts: Any number of texts to rank.
        options: See `RankingOptions`.
        call: See `CallOptions`.

    Returns:
        The texts, most similar first; equally similar texts are in the order of the input. Equal texts have equal
        scores. Failures come last, and `top_k` drops none of them.

    Raises:
        ArgumentError: An argument has an invalid value.
        InputError: A text is unusable, or the query is unusable (whatever `on_error` says).
    """
    check_model(model, query, texts)
    check_query(query, texts)
    best, failures = rank(score_texts(model, query, texts, options, call.usage, call.on_error), options.top_k)
    return Listed([*(Similarity(query, *text[:6]) for text in best), *failures])


def score_texts(
    model: Model,
    query: str,
    texts: Iterable[str | InputError],
    options: SimilarityOptions,
    usage: Usage | None = None,
    on_error: str = "return",
) -> Iterator[Scored | Failure]:
    """Yields the similarity of each text to a query, in the order of the texts (see `similarity`)."""
    check_texts(texts)
    return scored_texts(*embedding_tasks(model, options, usage), query, texts, on_error)


def score_vectors(
    model: Model,
    query: str,
    pairs: Iterable[tuple[str, "Vector"] | InputError],
    options: SimilarityOptions,
    usage: Usage | None = None,
) -> Iterator[Scored | Failure]:
    """Like `score_texts`, but takes each text with its vector (W,), float32 or int8, and embeds only the query."""
    query_task, task = embed_tasks(model, options, usage)
    (embedded_query,) = query_task.compute([query_task.prepare(query)])
    pairs, size, start = iter(pairs), len(embedded_query.embedding), 0
    while block := list(itertools.islice(pairs, _BLOCK)):
        vectors = [pair[1] for pair in block if not isinstance(pair, InputError)]
        if other := next((len(vector) for vector in vectors if len(vector) != size), None):
            raise InputError(
                f"the vectors have {other} values, but {model.source} needs {size} values", hint=_OTHER_SIZE
            )
        stacked = np.array(vectors, np.float32).reshape(-1, size)
        if task.similarity == "cosine":
            unit_length(stacked, out=stacked)
        scores = iter(scores_of_pairs(task.similarity, embedded_query.embedding, stacked).tolist())
        for index, pair in enumerate(block, start):
            yield Failure(index, pair) if isinstance(pair, InputError) else Scored(next(scores), pair[0])
        start += len(block)


def prompts_of(source: str, settings: VectorSettings, options: SimilarityOptions) -> tuple[str, str]:
    """Chooses the prompt of queries and the prompt of texts; `source` is the name of the model, for messages."""
    prompts = settings.prompts
    query_prompt, text_prompt = (options.query_prompt, options.query_prompt_name), (options.prompt, options.prompt_name)
    named = text_prompt if text_prompt != _UNSET else (None, own_prompt(prompts, "document"))
    second = choose_prompt(source, settings, *named)
    if query_prompt != _UNSET:
        return choose_prompt(source, settings, *query_prompt, prefix="query_"), second
    if text_prompt != _UNSET:
        return second, second
    return choose_prompt(source, settings, None, own_prompt(prompts, "query")), second


def embedding_tasks(model: Model, options: SimilarityOptions, usage: Usage | None) -> Tasks:
    """Makes the tasks that embed queries and texts for `similarity`, for the kind of vectors that the model states."""
    check_model(model)
    make, refused = _KINDS[model.vectors[0]]
    for name in refused:
        if (value := getattr(options, name)) is not None:
            kind = KINDS[model.vectors[0]].title
            message = f"`{name}` is {value!r:.60}, but the vectors of {model.source} are {kind}"
            raise ArgumentError(message, hint=f"omit `{name}=`")
    return make(model, options, usage)


def _sparse_tasks(
    model: Model, options: SimilarityOptions, usage: Usage | None
) -> tuple[EmbedSparseTask, EmbedSparseTask]:
    first, second = prompts_of(model.source, model.sparse_embedder.config, options)
    shared: Any = {"overflow": options.overflow, "batch_tokens": options.batch_tokens}
    return (
        EmbedSparseTask(model, SparseOptions(**shared, prompt=first), usage=usage, kind="query"),
        EmbedSparseTask(model, SparseOptions(**shared, prompt=second), usage=usage, kind="document"),
    )


def embed_tasks(model: Model, options: SimilarityOptions, usage: Usage | None) -> tuple[EmbedTask, EmbedTask]:
    """Makes the tasks that embed queries and texts as dense vectors for `similarity`."""
    check_model(model)
    first, second = prompts_of(model.source, model.embedder.config, options)
    shared = {name: getattr(options, name) for name in declared_options(VectorOptions)} | {"prompt_name": None}
    if model.embedder.config.similarity == "cosine":
        shared["normalize"] = True
    query_task, task = (
        EmbedTask(model, EmbedOptions(**shared | {"prompt": text}), usage=usage) for text in (first, second)
    )
    return query_task, task


_DENSE_ONLY = "pooling", "dimensions"
# By kind of vectors: what makes the tasks, and the options that these vectors do not have.
_KINDS: Mapping[str, tuple[Callable[..., Tasks], Sequence[str]]] = {
    "dense": (embed_tasks, ()),
    "sparse": (_sparse_tasks, _DENSE_ONLY),
    "tokens": (
        token_tasks, (*_DENSE_ONLY, "normalize", "prompt", "prompt_name", "query_prompt", "query_prompt_name"),
    ),
}  # fmt: skip
