"""Finds the senses in which texts use a word: groups of places where the word has similar vectors.

The vector of a place is the hidden state of a mask in the place of the word, which shows what could stand there: on
invented words it told two meanings apart where the vectors of the word itself did not (benchmarks/senses.py). If the
model has no head that predicts words, it is the mean of the hidden states of the word's tokens. Spherical k-means
groups the vectors; their common part is subtracted first.

Shapes: N places, D size of a vector, K groups.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from mlxbert.errors import ArgumentError, InputError
from mlxbert.explore.near_vectors import spherical_kmeans
from mlxbert.explore.options import SensesOptions
from mlxbert.explore.results import Occurrence, Sense, Senses, Substitute, TypicalLine
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.model import Model
from mlxbert.nn.unit_vectors import unit_length
from mlxbert.results.embed import Words, WordVector
from mlxbert.results.text_results import FillMask
from mlxbert.tasks.argument_checks import check_inputs, check_model
from mlxbert.tasks.embed_words import EmbedWordsTask
from mlxbert.tasks.fill_mask import COMMON_MASK, FillMaskTask
from mlxbert.tasks.keywords import takes_keywords
from mlxbert.tasks.options import EmbedWordsOptions, FillMaskOptions
from mlxbert.tasks.token_task import TokenJob

if TYPE_CHECKING:
    from mlxbert.tasks.token_task import Scores
Array: TypeAlias = "NDArray[np.float32]"
Numbers: TypeAlias = "NDArray[np.int64]"

MOST_SENSES = 8  # of a word whose number of senses is not given
DISTINCT = 0.2  # silhouette from which groups are senses: pairs of words had 0.21 or more, single words up to 0.18
_STARTS, _ROUNDS = 8, 50  # of k-means
_COMPARED = 1000  # places whose silhouettes are computed
_TYPICAL, _CANDIDATES = 20, 100  # places of a sense whose masks are filled, with this number of words each


class _Place(NamedTuple):
    """An occurrence of the word: the number of its text, the text, and its offsets."""

    number: int
    text: str
    start: int
    end: int


class _MaskedText(NamedTuple):
    number: int
    text: str
    read: str  # what the model reads: the text, perhaps with masks in the place of the word
    # The offsets of the word in the text, by the place where the word, or its mask, begins in `read`.
    places: dict[int, tuple[int, int]]

    @classmethod
    def of(cls, number: int, text: str, word: "re.Pattern[str]", mask: str | None) -> "_MaskedText | None":
        """Finds the word in a text; `None` if the text does not have it."""
        read, places, last = "", dict[int, tuple[int, int]](), 0
        for match in word.finditer(text):
            read += text[last : match.start()]
            places[len(read)] = match.span()
            read += match[0] if mask is None else mask
            last = match.end()
        return cls(number, text, read + text[last:], places) if places else None


class _PlacesTask(EmbedWordsTask):
    """Computes a vector for each place of a word or a mask in a text, instead of one for each word."""

    def __init__(self, model: Model, options: SensesOptions, pattern: "re.Pattern[str]") -> None:
        chosen = EmbedWordsOptions(layer=options.layer, overflow="window", batch_tokens=options.batch_tokens)
        super().__init__(model, chosen)
        self.pattern = pattern

    def result(self, job: TokenJob, outputs: Sequence["Scores"]) -> Words:
        places = [(*match.span(), list["Scores"]()) for match in self.pattern.finditer(job.text)]
        first = 0  # a text may have many places: those before the current token are done
        for token in self.tokens(job, outputs):
            while first < len(places) and places[first][1] <= token.span[0]:
                first += 1
            for start, _, own in itertools.islice(places, first, None):
                if start >= token.span[1]:
                    break
                own.append(token.scores)
        vectors = (
            WordVector(job.text[start:end], start, end, len(own), np.stack(own).mean(axis=0))
            for start, end, own in places
            if own
        )
        return Words(job.text, tuple(vectors), job.truncated)


@takes_keywords
def senses(
    model: Model,
    word: str,
    texts: Iterable[str | InputError],
    *,
    options: SensesOptions,
) -> Senses:
    """Finds the senses in which texts use a word, with typical lines of each and the words that could stand there.

    Example:
        >>> lines = ["The river bank was muddy.", "The bank raised its rates.", "She sat on the bank of the stream."]
        >>> mlxbert.senses(mlxbert.load(), "bank", lines, senses=2).senses[0].typical

    Args:
        model: Any model; one with a masked-LM head also finds the words that could stand there.
        word: The word, or several words in a row. Only whole words are found.
        texts: Any number of texts; those without the word cost nothing.
        options: See `SensesOptions`.

    Raises:
        InputError: A text is unusable, or the word occurs too rarely.
        ArgumentError: An argument has an invalid value.
    """
    check_model(model)
    if not isinstance(word, str) or not word.strip():
        raise ArgumentError(f"`word` is {word!r:.60}, expected a word")
    pattern = re.compile(rf"(?<!\w){re.escape(word.strip())}(?!\w)", 0 if options.match_case else re.IGNORECASE)
    mask = _mask_of(model, options.mask)
    task = _PlacesTask(model, options, pattern if mask is None else re.compile(re.escape(mask)))
    number = itertools.count()
    inputs: list[_MaskedText] = []

    def with_word() -> Iterator[str]:
        for text in check_inputs(texts, "texts", "an iterable of texts"):
            index = next(number)
            if isinstance(text, InputError):
                raise text
            if not isinstance(text, str):
                raise InputError(f"text {index} is {text!r:.60}, expected a string")
            if (masked := _MaskedText.of(index, text, pattern, mask)) is not None:
                inputs.append(masked)
                yield masked.read

    places, vectors = list[_Place](), list["Array"]()
    for place, result in enumerate(task.run(with_word())):
        assert isinstance(result, Words)  # errors are raised
        one = inputs[place]
        for vector in result.words:
            if vector.start in one.places:  # a text may have a mask of its own
                places.append(_Place(one.number, one.text, *one.places[vector.start]))
                vectors.append(vector.embedding)
    total = next(number)
    _check_count(word, len(places), total, options)
    unit = centered(np.stack(vectors))
    groups, silhouette = group(unit, options.senses)
    return _result(model, (word, total), places, unit, groups, silhouette, options)


def _mask_of(model: Model, wanted: bool | None) -> str | None:
    """Returns the mask that stands in the place of the word; `None` if the word itself is read."""
    mask = model.tokenizer.mask_token
    if wanted and mask is None:
        raise ArgumentError("`mask` is True, but the model's vocabulary has no mask token")
    return mask if wanted or (wanted is None and "masked_lm" in model.network.heads) else None


def _check_count(word: str, occurrences: int, texts: int, options: SensesOptions) -> None:
    if not texts:
        raise InputError("there are no texts", hint="give texts in which the word occurs")
    if not occurrences:
        raise InputError(
            f"the word {word!r:.60} does not occur in {texts:,} texts",
            hint="only whole words are found",
        )
    if options.senses is not None and options.senses > occurrences:
        raise ArgumentError(f"`senses` is {options.senses}, but the word {word!r:.60} occurs {occurrences:,} times")
    if occurrences < 2 and options.senses is None:
        among = "one text" if texts == 1 else f"{texts:,} texts"
        raise InputError(
            f"the word {word!r:.60} occurs once in {among}, expected at least twice", hint="give more texts"
        )


def centered(vectors: "Array") -> "Array":
    """Subtracts the mean of vectors (N, D), and scales them to length 1."""
    return unit_length(vectors - vectors.mean(0))


def group(vectors: "Array", number: int | None) -> "tuple[Numbers, float]":
    """Groups vectors (N, D) of length 1 by their directions.

    Args:
        number: The number of groups; `None` for the number from 2 to `MOST_SENSES` with the largest silhouette,
            or for one group if even this silhouette is less than `DISTINCT`.

    Returns:
        The group of each vector (N,), from 0, the largest group first; and the mean silhouette.
    """
    numbers = [number] if number is not None else range(2, min(MOST_SENSES, len(vectors) - 1) + 1)
    best, best_groups = -1.0, np.zeros(len(vectors), np.int64)
    for tried in numbers:
        groups = kmeans_groups(vectors, tried)
        silhouette = mean_silhouette(vectors, groups) if tried > 1 else 0.0
        if silhouette > best:
            best, best_groups = silhouette, groups
    if (number is None and best < DISTINCT) or not best_groups.any():
        return np.zeros(len(vectors), np.int64), 0.0
    order = np.argsort(-np.bincount(best_groups), kind="stable")
    return np.argsort(order)[best_groups], best


def kmeans_groups(vectors: "Array", number: int) -> "Numbers":
    """Groups vectors (N, D) of length 1 into K groups; returns the group of each, the best of several starts."""
    rng = np.random.default_rng(0)
    best, best_groups = -np.inf, np.zeros(len(vectors), np.int64)
    for _ in range(_STARTS if number > 1 else 1):
        centers = spherical_kmeans(vectors, _first_centers(vectors, number, rng), _ROUNDS)
        similar = vectors @ centers.T
        if (score := float(similar.max(1).sum())) > best:
            best, best_groups = score, similar.argmax(1)
    return best_groups


def _first_centers(vectors: "Array", number: int, rng: "np.random.Generator") -> "Array":
    """Chooses K of the vectors, each with a probability that grows with its distance from the earlier ones."""
    chosen = [int(rng.integers(len(vectors)))]
    while len(chosen) < number:
        distances = np.maximum(1 - (vectors @ vectors[chosen].T).max(1), 0).astype(np.float64)
        distances[chosen] = 0
        total = distances.sum()
        left = np.setdiff1d(np.arange(len(vectors)), chosen)
        chosen.append(int(rng.choice(len(vectors), p=distances / total) if total > 0 else left[0]))
    return vectors[chosen]


def mean_silhouette(vectors: "Array", groups: "Numbers") -> float:
    """Computes the mean silhouette of vectors (N, D) of length 1 by cosine distance; of many, of a sample of them."""
    if len(vectors) > _COMPARED:
        sample = np.random.default_rng(0).choice(len(vectors), _COMPARED, replace=False)
        vectors, groups = vectors[sample], groups[sample]
    members = (groups[:, None] == np.unique(groups)).astype(np.float32)  # (N, K)
    sizes = members.sum(0)
    if len(sizes) < 2:
        return -1.0
    totals = (1 - vectors @ vectors.T) @ members
    own = members.astype(bool)
    size = members @ sizes
    inside = totals[own] / np.maximum(size - 1, 1)
    outside = np.where(own, np.inf, totals / sizes).min(1)
    scores = np.where(size > 1, (outside - inside) / np.maximum(np.maximum(outside, inside), 1e-9), 0)
    return float(scores.mean())


def _result(
    model: Model,
    about: tuple[str, int],
    places: Sequence[_Place],
    vectors: "Array",
    groups: "Numbers",
    silhouette: float,
    options: SensesOptions,
) -> Senses:
    """Makes the result: the groups with the lines that are closest to their centers."""
    typical: list[list[_Place]] = []
    for number in range(int(groups.max()) + 1):
        members = np.flatnonzero(groups == number)
        order = np.argsort(-(vectors[members] @ vectors[members].mean(0)), kind="stable")
        typical.append([places[place] for place in members[order]])
    substitutes = _substitutes(model, about[0], [members[:_TYPICAL] for members in typical], options)
    described = tuple(
        Sense(len(members), words, tuple(TypicalLine(*place) for place in _different(members)[: options.typical]))
        for members, words in zip(typical, substitutes, strict=True)
    )
    occurrences = (
        Occurrence(place.number, place.start, place.end, sense)
        for place, sense in zip(places, groups.tolist(), strict=True)
    )
    return Senses(*about, described, silhouette, tuple(occurrences))


def _different(places: Sequence[_Place]) -> list[_Place]:
    """Returns the first place of each text."""
    return [*{place.text: place for place in reversed(places)}.values()][::-1]


def _substitutes(
    model: Model, word: str, senses: Sequence[Sequence[_Place]], options: SensesOptions
) -> list[tuple[Substitute, ...]]:
    """Returns the words that could stand in the places of each sense; none if the model cannot predict words.

    The mean probability of a word in a sense is compared with its mean probability in all senses: words that could
    stand anywhere tell nothing.
    """
    if "masked_lm" not in model.network.heads or not model.tokenizer.mask_token:
        return [()] * len(senses)
    top_k = min(_CANDIDATES, model.tokenizer.vocab_size)
    task = FillMaskTask(model, FillMaskOptions(top_k=top_k, text=False, batch_tokens=options.batch_tokens))
    means: list[dict[str, float]] = []
    for places in senses:
        total: defaultdict[str, float] = defaultdict(float)
        texts = (place.text[: place.start] + COMMON_MASK + place.text[place.end :] for place in places)
        for place, result in zip(places, task.run(texts), strict=True):
            assert isinstance(result, FillMask)  # errors are raised
            mask = next(mask for mask in result.masks if mask.start == place.start)
            for fill in mask.fills:
                total[fill.token.strip()] += fill.score / len(places)
        means.append(total)
    return [_most_typical(word, mean, means, options.top_k) for mean in means]


def _most_typical(
    own: str, mean: Mapping[str, float], means: Sequence[Mapping[str, float]], top_k: int
) -> tuple[Substitute, ...]:
    """Returns the words, other than the word itself, whose probability says most about a sense."""
    import math

    def special(word: str) -> float:
        everywhere = sum(other.get(word, 0.0) for other in means) / len(means)
        return mean[word] * (math.log(mean[word] / everywhere) if len(means) > 1 else 1)

    words = [one for one in mean if any(map(str.isalnum, one)) and one[:2] != "##" and one.casefold() != own.casefold()]
    return tuple(Substitute(word, mean[word]) for word in sorted(words, key=special, reverse=True)[:top_k])
