"""Measures how well a passage has the words of a query."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mlxbert.search.word_search import terms_of

SPAN = 12  # words: in an answer, the words of the query stand closer together than in a passage about the subject
BOUNDARY = "\0"  # a word between parts of a passage, which no phrase crosses
_FORM = 0.5  # of the weight of a word, for another form of it: "billed" in place of "billing"
_STEM = 3  # characters that two forms of a word share at least, such as "dog" and "dogs"
# What may follow the stem in two forms of a word, and the characters of the stem at least. Of the pairs in an English
# dictionary that differ so, few have vectors that are far apart (see docs/search.md), unlike corner and corn.
_ENDINGS = (
    (3, {"", "s", "es"}), (3, {"y", "ies", "ied", "ying"}), (4, {"", "e", "s", "es", "ed", "ing", "n", "en"}),
    (6, {"", "e", "s", "es", "er", "en", "em", "ern"}),
)  # fmt: skip
_LONGEST = 4  # characters of an ending
_OTHER = 4, 2  # in other scripts, whose endings are not listed: characters of the stem at least, and after it at most
_SATURATION, _BY_LENGTH, _LENGTH = 1.2, 0.75, 200  # k1 and b of BM25, and the words of a passage of usual length
_NOTHING = 0.2  # the weight of words that say nothing: a passage that has all of "the" is not what one looks for
_DIGIT = re.compile(r"\d")


class WordMatch(NamedTuple):
    """How well a passage has the words of a query."""

    # The BM25 score of the passage as a share of the weights of all words: nearly 1 for a passage of usual length with
    # each word once, at most 2.2.
    bm25: float
    closeness: float  # the largest share of the weights that `SPAN` words in a row have, from 0 to nearly 1
    is_phrase: bool  # whether the passage has the quoted phrases of the query, or the whole query, word for word


class WordMatcher:
    """Compares passages with the words and quoted phrases of a query.

    Args:
        weights: The weight of each word or phrase, given as the folded words that must follow each other; see
            `word_search.word_weights`.
        phrases: What a passage must have to contain the query word for word; see `word_search.phrases`.
    """

    def __init__(self, weights: Mapping[tuple[str, ...], float], phrases: Iterable[tuple[str, ...]] = ()) -> None:
        total = sum(weights.values()) + _NOTHING
        self._terms, self._weights = [*weights], [weight / total for weight in weights.values()]
        self._phrases = [f" {' '.join(phrase)} ".replace("* ", "") for phrase in phrases]
        self._starts: dict[str, list[int]] = {}  # the terms whose first word has these first characters
        self._beginnings: list[int] = []  # terms that are single characters of scripts without spaces
        for number, term in enumerate(self._terms):
            if term[0].endswith("*"):
                self._beginnings.append(number)
            else:
                self._starts.setdefault(term[0][:_STEM], []).append(number)
        self._seen: set[str] = set()
        self._matching: dict[str, list[tuple[int, bool]]] = {}  # of the words seen: terms, and whether it is a form

    def match(self, words: Sequence[str]) -> WordMatch:
        """Compares a passage, given as its folded words, with the query."""
        self._look_up({*words} - self._seen)
        matching = self._matching
        places = [
            (place, number, is_form)
            for place, word in enumerate(words)
            if word in matching
            for number, is_form in matching[word]
            if len(term := self._terms[number]) == 1 or _follows(words[place : place + len(term)], term)
        ]
        if not places:
            return WordMatch(0.0, 0.0, False)
        text = f" {' '.join(words)} "
        is_phrase = bool(self._phrases) and all(phrase in text for phrase in self._phrases)
        return WordMatch(self._bm25(places, len(words)), self._closeness(places), is_phrase)

    def _look_up(self, words: set[str]) -> None:
        """Finds the terms that words match or begin."""
        self._seen |= words
        starts = self._starts
        for word in words if self._beginnings else [word for word in words if word[:_STEM] in starts]:
            terms = [(number, False) for number in self._beginnings if word.startswith(self._terms[number][0][:-1])]
            for number in starts.get(word[:_STEM], ()):
                term = self._terms[number]
                if term[0] == word:
                    terms.append((number, False))
                elif len(term) == 1 and _is_form(term[0], word):
                    terms.append((number, True))
            if terms:
                self._matching[word] = terms

    def _bm25(self, places: Sequence[tuple[int, int, bool]], length: int) -> float:
        forms = {number for _, number, is_form in places if is_form}
        counts = dict.fromkeys(forms, _FORM) | Counter(number for _, number, is_form in places if not is_form)
        half = _SATURATION * (1 - _BY_LENGTH + _BY_LENGTH * length / _LENGTH)
        return sum(
            self._weights[number] * (1 + _SATURATION) * count / (count + half) for number, count in counts.items()
        )

    def _closeness(self, places: Sequence[tuple[int, int, bool]]) -> float:
        """Returns the largest weight of a span; each term counts once in a span, its forms where it is missing."""
        weights, inside = self._weights, (Counter[int](), Counter[int]())  # of the words, of their other forms
        best = total = 0.0
        first = 0
        for place, number, is_form in places:
            while place - places[first][0] >= SPAN:
                _, gone, was_form = places[first]
                inside[was_form][gone] -= 1
                total -= 0.0 if inside[was_form][gone] else weights[gone] * _added(was_form, inside[not was_form][gone])
                first += 1
            total += 0.0 if inside[is_form][number] else weights[number] * _added(is_form, inside[not is_form][number])
            inside[is_form][number] += 1
            best = max(best, total)
        return best


def _added(is_form: bool, others: int) -> float:
    """Returns the share of its weight by which the first word of a term, or the first form of it, raises a span."""
    if is_form:
        return 0.0 if others else _FORM
    return 1 - _FORM if others else 1.0


def _is_form(term: str, word: str) -> bool:
    """Whether two words that begin with the same `_STEM` characters can be forms of one word."""
    longer = max(len(term), len(word))
    if not term.isascii():
        stem = max(_OTHER[0], longer - _OTHER[1])
        return term[:stem] == word[:stem] and not _DIGIT.search(term + word)
    return any(
        term[:stem] == word[:stem] and {term[stem:], word[stem:]} <= endings
        for least, endings in _ENDINGS
        for stem in range(max(least, longer - _LONGEST), longer)
    )


def other_forms(query: str, words: Iterable[str]) -> list[str]:
    """Returns the words of a passage that count as forms of words of a query that the passage does not have.

    Args:
        query: The query. Words of its phrases have no other forms.
        words: The folded words of the passage.
    """
    distinct = dict.fromkeys(words)
    missing = [term[0] for term in terms_of(query) if len(term) == 1 and term[0] not in distinct]
    return [word for word in distinct if any(word[:_STEM] == term[:_STEM] and _is_form(term, word) for term in missing)]


def _follows(words: Sequence[str], term: Sequence[str]) -> bool:
    """Whether words begin with the words of a phrase, whose last word may be the beginning of a word."""
    if len(words) < len(term) or any(a != b for a, b in zip(words[:-1], term[:-1], strict=True)):
        return False
    last = term[-1]
    return words[-1].startswith(last[:-1]) if last.endswith("*") else words[-1] == last
