"""`mlxbert.dedupe` and `mlxbert.paraphrase_mining`: which texts repeat others, exactly or by meaning."""

import logging
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from mlxbert.explore.near_vectors import checked_texts, unit_vectors
from mlxbert.explore.options import DedupeOptions, ParaphraseOptions
from mlxbert.explore.results import DuplicateGroup, Duplicates, SimilarPair
from mlxbert.model import Model
from mlxbert.progress import OnProgress
from mlxbert.tasks.keywords import takes_keywords
from mlxbert.tasks.options import TaskOptions
from mlxbert.text.equal_texts import details, equal_key

_LOG = logging.getLogger("mlxbert")


@takes_keywords
def dedupe(
    model: Model | None,
    texts: Iterable[str],
    *,
    options: DedupeOptions,
    vectors: Any = None,
    computing: TaskOptions,
    on_progress: OnProgress | None = None,
) -> Duplicates:
    """Finds texts that repeat others: equal texts, and texts with similar vectors.

    Equal texts may differ in case, white space, and the forms of dashes and quotes.

    Texts with other numbers, dates, signs, symbols, units or negations never repeat each other.

    A text with tokens that the model does not know, such as some emojis, repeats another text only if both are equal:
    to the model, different texts of unknown tokens are the same.

    The texts are looked at in the order of preference. A text whose vector is similar to that of a text that was kept
    before is a duplicate of the most similar one; otherwise, the text is kept. So each duplicate is similar to the text
    that is kept in its place, and each text is either kept or in exactly one group. Vectors are scaled to length 1.

    Example:
        >>> duplicates = mlxbert.dedupe(mlxbert.load(), ["It rains.", "Snow is cold.", "it  rains."])
        >>> duplicates.kept  # [0, 1]

    Args:
        model: The model that computes the vectors; `None` if `vectors` are given, or with `exact=True`.
        texts: The texts.
        options: See `DedupeOptions`.
        vectors: The vectors of the texts, (N, W), if they are computed already.
        computing: See `TaskOptions`.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Returns:
        The groups of texts that repeat each other.

    Raises:
        ArgumentError: An argument is invalid.
        InputError: A text is unusable.
    """
    from mlxbert.explore.near_vectors import find_leaders

    listed = checked_texts(texts)
    order: Sequence[int] = range(len(listed))
    if options.prefer == "longest":
        order = sorted(order, key=lambda index: (-len(listed[index]), index))
    same: dict[str, list[int]] = {}  # the indices of equal texts, in the order of preference
    for index in order:
        same.setdefault(equal_key(listed[index]), []).append(index)
    distinct = list(same.values())
    if options.exact or not distinct:
        return _duplicates(len(listed), distinct, range(len(distinct)), [1.0] * len(distinct))
    first = [indices[0] for indices in distinct]
    if vectors is not None:
        vectors = unit_vectors(model, listed, vectors)[first]
    else:
        chosen: Any = [listed[index] for index in first]
        vectors = unit_vectors(model, chosen, batch_tokens=computing.batch_tokens, on_progress=on_progress)
    chosen_leaders, similarities = [*range(len(first))], [1.0] * len(first)
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, index in enumerate(first):
        groups.setdefault(details(listed[index]), []).append(number)
    for group in groups.values():
        leaders, scores = find_leaders(vectors[group], options.threshold, all_pairs=options.all_pairs)
        for number, leader, score in zip(group, leaders.tolist(), scores.tolist(), strict=True):
            chosen_leaders[number], similarities[number] = group[leader], score
    if model is not None:
        for number in _indistinct(model, [listed[index] for index in first], chosen_leaders):
            chosen_leaders[number], similarities[number] = number, 1.0
    return _duplicates(len(listed), distinct, chosen_leaders, similarities)


def _indistinct(model: Model, texts: Sequence[str], leaders: Sequence[int]) -> list[int]:
    """Returns the numbers of the texts that have another leader, but have unknown tokens, or whose leader has some."""
    tokenizer = model.embed_tokenizer

    @cache
    def has_unknown(number: int) -> bool:
        return tokenizer.unknown([tokenizer.encode(texts[number], overflow="truncate")])[0] > 0

    numbers = [
        number
        for number, leader in enumerate(leaders)
        if leader != number and (has_unknown(number) or has_unknown(leader))
    ]
    if numbers:
        _LOG.warning(
            "kept because of tokens that the model does not know, so that it cannot tell texts apart: %s",
            f"{len(numbers):,} texts" if len(numbers) > 1 else "1 text",
        )
    return numbers


def _duplicates(
    count: int, distinct: Sequence[Sequence[int]], leaders: Iterable[int], scores: Iterable[float]
) -> Duplicates:
    """Joins the equal texts whose leader is the same.

    Args:
        distinct: The indices of equal texts, the preferred one first.
        leaders: For each entry of `distinct`, the number of the entry that is kept in its place.
        scores: For each entry of `distinct`, its similarity to that entry.
    """
    groups: dict[int, list[tuple[int, float]]] = {}  # for each kept text, its duplicates
    for indices, leader, score in zip(distinct, leaders, scores, strict=True):
        kept = distinct[leader][0]
        groups.setdefault(kept, []).extend((index, score) for index in indices if index != kept)
    sorted_groups = ((kept, sorted(others)) for kept, others in sorted(groups.items()) if others)
    return Duplicates(count, tuple(DuplicateGroup(kept, *zip(*others, strict=True)) for kept, others in sorted_groups))


@takes_keywords
def paraphrase_mining(
    model: Model | None,
    texts: Iterable[str],
    *,
    options: ParaphraseOptions,
    vectors: Any = None,
    computing: TaskOptions,
    on_progress: OnProgress | None = None,
) -> list[SimilarPair]:
    """Finds the most similar pairs among many texts, most similar first. All pairs are compared, in blocks.

    Example:
        >>> pairs = mlxbert.paraphrase_mining(mlxbert.load(), ["It rains.", "Snow is cold.", "Rain falls."])
        >>> pairs[0].first, pairs[0].second  # (0, 2)

    Args:
        model: The model that computes the vectors; `None` if `vectors` are given.
        texts: The texts.
        options: See `ParaphraseOptions`.
        vectors: The vectors of the texts, (N, W), if they are computed already.
        computing: See `TaskOptions`.
        on_progress: Called with the number of texts embedded so far and the number of all texts.

    Raises:
        ArgumentError: An argument is invalid.
        InputError: A text is unusable.
    """
    from mlxbert.explore.near_vectors import similar_pairs

    listed = checked_texts(texts)
    if not listed:
        return []
    units = unit_vectors(model, listed, vectors, batch_tokens=computing.batch_tokens, on_progress=on_progress)
    first, second, scores = similar_pairs(units, options.min_score, options.max_pairs)
    return [SimilarPair(*pair) for pair in zip(scores.tolist(), first.tolist(), second.tolist(), strict=True)]
