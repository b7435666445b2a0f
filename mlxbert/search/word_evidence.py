"""Measures how well a passage has the words of a query."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

SPAN = 12  # words: the words of an answer stand closer together than those of a passage that shares its subject
_FORM = 0.6  # of the weight of a word, for another form of it: "billed" in place of "billing"
_STEM = 3  # characters that two forms of a word share at least
_PLURAL = 2  # further characters of a form of a word of three characters: "dogs", "buses"
_ENDING = 4  # further characters of forms of longer words, of which half of the longer one is shared
_SATURATION, _BY_LENGTH, _LENGTH = 1.2, 0.75, 200  # k1 and b of BM25, and the words of a passage of usual length


class WordMatch(NamedTuple):
    """How well a passage has the words of a query.

    Attributes:
        frequency: The BM25 score of the passage as a share of the weights of all words: 1 for a passage of usual length
            with each word once, more with more of them, at most 2.2.
        closeness: The largest share of the weights that `SPAN` words in a row have, from 0 to 1.
    """

    frequency: float
    closeness: float


class WordMatcher:
    """Compares passages with the words and quoted phrases of a query.

    Args:
        weights: The weight of each word or phrase, given as the folded words that must follow each other; see
            `word_search.word_weights`.
    """

    def __init__(self, weights: Mapping[tuple[str, ...], float]) -> None:
        total = sum(weights.values()) or 1.0
        self._weights = [weight / total for weight in weights.values()]
        self._matches = _Matches(weights)

    def match(self, words: Sequence[str]) -> WordMatch:
        """Compares a passage, given as its folded words, with the query."""
        matches = self._matches
        places = [
            (place, number, share)
            for place, word in enumerate(words)
            if (terms := matches[word])
            for number, term, share in terms
            if len(term) == 1 or _follows(words[place : place + len(term)], term)
        ]
        return WordMatch(self._frequency(places, len(words)), self._closeness(places))

    def _frequency(self, places: Sequence[tuple[int, int, float]], length: int) -> float:
        counts: dict[int, float] = {}
        for _, number, share in places:
            counts[number] = counts.get(number, 0.0) + 1.0 if share == 1.0 else max(counts.get(number, 0.0), share)
        half = _SATURATION * (1 - _BY_LENGTH + _BY_LENGTH * length / _LENGTH)
        return sum(
            self._weights[number] * (1 + _SATURATION) * count / (count + half) for number, count in counts.items()
        )

    def _closeness(self, places: Sequence[tuple[int, int, float]]) -> float:
        best = total = 0.0
        first, inside = 0, dict[int, list[float]]()
        for place, number, share in places:
            while place - places[first][0] >= SPAN:
                total += self._changed(inside, *places[first][1:], step=-1)
                first += 1
            total += self._changed(inside, number, share, step=1)
            best = max(best, total)
        return min(best, 1.0)

    def _changed(self, inside: dict[int, list[float]], number: int, share: float, *, step: int) -> float:
        """Adds a word to a span, or removes it, and returns by how much the weight of the span changes."""
        shares = inside.setdefault(number, [])
        before = max(shares, default=0.0)
        shares.append(share) if step > 0 else shares.remove(share)
        return self._weights[number] * (max(shares, default=0.0) - before)


class _Matches(dict[str, list[tuple[int, tuple[str, ...], float]]]):
    """Maps a word to the terms of a query that it matches or begins, and looks each word up on first use.

    A term has its number and a share: 1, or less for another form of a word.

    Args:
        terms: The terms.
    """

    def __init__(self, terms: Iterable[tuple[str, ...]]) -> None:
        super().__init__()
        self._stems: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        self._beginnings: list[tuple[int, tuple[str, ...]]] = []  # single characters of scripts without spaces
        for number, term in enumerate(terms):
            if term[0].endswith("*"):
                self._beginnings.append((number, term))
            else:
                self._stems.setdefault(term[0][:_STEM], []).append((number, term))

    def __missing__(self, word: str) -> list[tuple[int, tuple[str, ...], float]]:
        self[word] = terms = [
            (number, term, 1.0 if term[0] == word else _FORM)
            for number, term in self._stems.get(word[:_STEM], ())
            if term[0] == word or (len(term) == 1 and _is_form(term[0], word))
        ]
        terms += [(number, term, 1.0) for number, term in self._beginnings if word.startswith(term[0][:-1])]
        return terms


def _is_form(term: str, word: str) -> bool:
    """Whether two words that begin with the same `_STEM` characters can be forms of one word."""
    if not (term.isalpha() and word.isalpha()):  # 20042 does not count for 20041
        return False
    shorter, longer = sorted((len(term), len(word)))
    shared = next((place for place in range(shorter) if term[place] != word[place]), shorter)
    if shared == shorter == _STEM:
        return longer - shared <= _PLURAL
    return shared > _STEM and 2 * shared >= longer and longer - shared <= _ENDING


def _follows(words: Sequence[str], term: Sequence[str]) -> bool:
    """Whether words are those of a phrase, whose last word may be the beginning of a word."""
    if len(words) < len(term) or any(a != b for a, b in zip(words[:-1], term[:-1], strict=True)):
        return False
    last = term[-1]
    return words[-1].startswith(last[:-1]) if last.endswith("*") else words[-1] == last
