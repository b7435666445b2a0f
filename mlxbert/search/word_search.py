"""Word search: converts any text to a query of FTS5 that has only words and phrases."""

import math
import re
import unicodedata
from collections.abc import Callable, Sequence

ROWS = 8_000  # chunks scored per query: FTS5 takes 2.5 µs per chunk, 20 ms in total
_COMMON = 1e-6  # the weight of a word in more than half of all chunks
_WORD = re.compile(r"\S+")
_TOKEN = re.compile(r"[^\W_]+")
_NOT_QUOTED = re.compile('["\0\ud800-\udfff]')
_QUOTED = re.compile(r'"([^"]+)"')


def any_word(query: str, frequency: Callable[[Sequence[str]], dict[str, int]]) -> str:
    """Makes the FTS5 query that finds the chunks with at least one word or quoted phrase of a query.

    The words of a quoted phrase must follow each other, and so must the parts of a word such as `read_file`.

    Very frequent words are left out if there are rarer ones: they are the least informative and the most expensive.

    Args:
        query: Any text.
        frequency: Returns the number of chunks that contain each word.
    """
    unquoted = _WORD.findall(_QUOTED.sub(" ", query).replace('"', " "))
    words = [word for word in dict.fromkeys([*_QUOTED.findall(query), *unquoted]) if _TOKEN.search(word)]
    parts = {word: [_folded(part) for part in _TOKEN.findall(word)] for word in words}
    counts = frequency(sorted({part for folded in parts.values() for part in folded}))
    rows = {word: min(counts.get(part, 0) for part in parts[word]) for word in words}
    kept: list[str] = []
    total = 0
    for word in sorted(words, key=rows.__getitem__):
        total += rows[word]
        if kept and total > ROWS and rows[kept[-1]]:
            break
        kept.append(word)
    return " OR ".join(map(_phrase, kept))


def complete_score(query: str, frequency: Callable[[Sequence[str]], dict[str, int]], chunks: int) -> float:
    """Returns the BM25 score of a chunk of average length that has each word of a query once.

    Args:
        query: Any text.
        frequency: Returns the number of chunks that contain each word.
        chunks: The number of chunks.
    """
    words = sorted({_folded(word) for word in _TOKEN.findall(query)})
    numbers = frequency(words)
    counts = [numbers.get(word, 0) for word in words]
    weights = (math.log((max(chunks - count, 0) + 0.5) / (count + 0.5)) for count in counts)
    return sum(max(weight, _COMMON) for weight in weights)


def phrases(query: str) -> str:
    """Makes the FTS5 query for chunks with all quoted phrases of a query or, if it has none, the query as one phrase.

    The result is empty for a query that is a single unquoted word: as a phrase, the word would match the same chunks
    as in the query of `any_word`.
    """
    quoted = [part for part in _QUOTED.findall(query) if _TOKEN.search(part)]
    if not quoted and len(_TOKEN.findall(query)) < 2:
        return ""
    return " AND ".join(map(_phrase, quoted or [query]))


def _phrase(text: str) -> str:
    return '"{}"'.format(_NOT_QUOTED.sub(" ", text))


def _folded(word: str) -> str:
    """Converts a word to the form of FTS5's tokenizer: lowercase, without diacritics."""
    decomposed = unicodedata.normalize("NFD", word.lower())
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))
