"""Word search: the words and phrases of any query, the query of FTS5 for them, and how well a passage has them."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from mlxbert.search.folding import folded, is_single, is_unspaced
from mlxbert.text.equal_texts import PLAIN_QUOTES

ROWS = 8_000  # chunks scored per query: FTS5 takes 2.5 µs per chunk, 20 ms in total
_WORD = re.compile(r"\S+")
_QUOTED = re.compile(r'"([^"]+)"')


def chosen_terms(query: str, frequency: Callable[[Sequence[str]], dict[str, int]]) -> list[tuple[str, ...]]:
    """Returns the words and quoted phrases of a query to search for, each as the words that must follow each other.

    The parts of a word such as `read_file` must follow each other, too. In scripts without spaces, each pair of
    characters is a word. A last word that ends with `*` may be the beginning of a word.

    Very frequent words are left out if there are rarer ones: they are the least informative and the most expensive.

    Args:
        frequency: Returns the number of chunks that contain each word. A word may end with `*`: then any word that
            begins so counts.
    """
    terms = terms_of(query)
    counts = frequency(_words(terms))
    rows = {term: min(counts.get(word, 0) for word in term) for term in terms}
    kept: list[tuple[str, ...]] = []
    total = 0
    for term in sorted(terms, key=rows.__getitem__):
        total += rows[term]
        if kept and total > ROWS and rows[kept[-1]]:
            break
        kept.append(term)
    return kept


def any_word(query: str, frequency: Callable[[Sequence[str]], dict[str, int]]) -> str:
    """Makes the FTS5 query that finds the chunks with at least one of the `chosen_terms` of a query."""
    return " OR ".join(map(match_of, chosen_terms(query, frequency)))


def word_weights(
    query: str, frequency: Callable[[Sequence[str]], dict[str, int]], chunks: int
) -> dict[tuple[str, ...], float]:
    """Returns the words and quoted phrases of a query, each as the words that must follow each other, with weights.

    The weight is the inverse document frequency of the rarest word, which is above 0 in an index of one chunk, too.

    Args:
        frequency: Returns the number of chunks that contain each word, as for `any_word`.
    """
    terms = terms_of(query)
    counts = frequency(_words(terms))
    fewest = {term: min(counts.get(word, 0) for word in term) for term in terms}
    return {term: math.log1p((max(chunks - count, 0) + 0.5) / (count + 0.5)) for term, count in fewest.items()}


def phrases(query: str) -> list[tuple[str, ...]]:
    """Returns the quoted phrases of a query or, if it has none, the query as one phrase.

    There are none in a query that is a single unquoted word: as a phrase, the word would match the same chunks as in
    the query of `any_word`.
    """
    query = query.translate(PLAIN_QUOTES)
    quoted = [phrase for part in _QUOTED.findall(query) if (phrase := _open_ended(folded(part).split()))]
    unquoted = _open_ended(folded(query).split())
    return quoted or ([unquoted] if len(unquoted) > 1 else [])


def every_phrase(query: str) -> str:
    """Makes the FTS5 query for chunks with all `phrases` of a query; it is empty if there are none."""
    return " AND ".join(map(match_of, phrases(query)))


def words_of(query: str) -> list[str]:
    """Returns the words of a query that the index has; a single character of a script without spaces begins one."""
    return [word.rstrip("*") for word in _words(terms_of(query))]


def match_of(term: Sequence[str]) -> str:
    """Returns the FTS5 query for words that follow each other; `*` must be outside of the quotation marks."""
    text = " ".join(term)
    return f'"{text[:-1]}"*' if text.endswith("*") else f'"{text}"'


def terms_of(query: str) -> list[tuple[str, ...]]:
    """Returns the quoted phrases and the words of a query, each as the words that must follow each other."""
    query = query.translate(PLAIN_QUOTES)
    quoted = [_open_ended(folded(part).split()) for part in _QUOTED.findall(query)]
    unquoted = _WORD.findall(_QUOTED.sub(" ", query).replace('"', " "))
    terms = [*quoted, *(term for word in unquoted for term in _parts(folded(word).split()))]
    return [term for term in dict.fromkeys(terms) if term]


def _parts(words: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yields the terms for a part of a query that has no space.

    A pair of characters of scripts without spaces is a term of its own.
    """
    for unspaced, group in groupby(words, is_unspaced):
        run = [*group]
        if unspaced:
            yield from (_open_ended(run[max(place - 1, 0) : place + 1])[-1:] for place in range(len(run)))
        else:
            yield tuple(run)


def _open_ended(words: Sequence[str]) -> tuple[str, ...]:
    """Returns the words of a phrase such that, in scripts without spaces, any character may follow the last one.

    In a text, the last character is a word of its own only if no other character follows. The pair before that word
    has the character too; a character without a pair before it becomes the beginning of a word.
    """
    if not words or not is_single(words[-1]):
        return tuple(words)
    is_paired = len(words) > 1 and is_unspaced(words[-2]) and not is_single(words[-2])
    return tuple(words[:-1]) if is_paired else (*words[:-1], f"{words[-1]}*")


def _words(terms: Sequence[Sequence[str]]) -> list[str]:
    return sorted({word for term in terms for word in term})


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
