"""How near texts are to a query: cosines of vectors, ranked."""

import heapq
from collections.abc import Iterable
from typing import Literal, Unpack, cast, overload

from mlxbert.errors import ArgumentError, InputError
from mlxbert.model import Model
from mlxbert.results import Failure, Similarity
from mlxbert.tasks.embed import EmbedOptions, embed_stream
from mlxbert.tasks.runner import check_on_error
from mlxbert.text.batch import Usage


@overload
def similarity(
    model: Model,
    query: str,
    texts: Iterable[str | InputError],
    *,
    top_k: int | None = None,
    usage: Usage | None = None,
    on_error: Literal["raise"] = "raise",
    **options: Unpack[EmbedOptions],
) -> list[Similarity]: ...
@overload
def similarity(
    model: Model,
    query: str,
    texts: Iterable[str | InputError],
    *,
    top_k: int | None = None,
    usage: Usage | None = None,
    on_error: str,
    **options: Unpack[EmbedOptions],
) -> list[Similarity | Failure]: ...
def similarity(
    model: Model,
    query: str,
    texts: Iterable[str | InputError],
    *,
    top_k: int | None = None,
    usage: Usage | None = None,
    on_error: str = "raise",
    **options: Unpack[EmbedOptions],
) -> list[Similarity] | list[Similarity | Failure]:
    """Ranks texts by the cosine of their vectors with that of a query.

    Args:
        model: Any model; see `embed`.
        query: What the others are compared with. A prompt is put before it as before the others.
        texts: The others, any number.
        top_k: Keep only so many of the nearest, in memory too; `None` keeps all.
        usage: Counts tokens, padding, and texts that were cut, the query among them.
        on_error: `raise`, or `return` a Failure for each text that cannot be used, behind all others.
        **options: See `EmbedOptions`. Cosines do not depend on `normalize`.

    Returns:
        The nearest first; of texts equally near, the first of the input.

    Raises:
        ArgumentError: An argument outside what is possible.
        InputError: A text that cannot be used; the query in any case.
    """
    import numpy as np

    check_on_error(on_error)
    if top_k is not None and (type(top_k) is not int or top_k < 1):
        raise ArgumentError(f"top_k is {top_k!r}, expected a whole number of at least 1")
    if not isinstance(query, str):
        raise InputError(f"expected a text as query, found {type(query).__name__}")
    options["normalize"] = True
    (asked,) = embed_stream(model, [query], usage=usage, **options)
    failures: list[Failure] = []
    best: list[tuple[float, int, str, bool]] = []
    for index, found in enumerate(embed_stream(model, texts, usage=usage, on_error=on_error, **options)):
        if isinstance(found, Failure):
            failures.append(found)
            continue
        score = float(np.clip(np.dot(asked.embedding, found.embedding), -1, 1))
        entry = (score, -index, found.text, found.truncated)  # not the vector: there may be many
        if top_k is None or len(best) < top_k:
            heapq.heappush(best, entry)
        else:
            heapq.heappushpop(best, entry)
    best.sort(reverse=True)
    ranked = [
        Similarity(query, rank, -place, score, text, truncated)
        for rank, (score, place, text, truncated) in enumerate(best, 1)
    ]
    return cast(list[Similarity | Failure], ranked) + failures
