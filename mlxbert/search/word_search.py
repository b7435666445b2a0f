"""Word search: the words and phrases of any query, and the query of FTS5 for them."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

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
        query: Any text.
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
        query: Any text.
        frequency: Returns the number of chunks that contain each word, as for `any_word`.
        chunks: The number of chunks.
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
