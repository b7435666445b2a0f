"""Queries in words: any text becomes one that FTS5 takes as words alone."""

import math
import re
import unicodedata
from collections.abc import Callable, Sequence

ROWS = 8_000  # how many chunks are scored for one query: FTS5 takes 2.5 µs for each, so that this is 20 ms
_FREQUENT = 2.2  # k1 + 1 of FTS5's BM25: how often a word counts, at most, however often it stands in a chunk
_COMMON = 1e-6  # the weight of a word that more than half of all chunks have
_WORD = re.compile(r"\S+")
_TOKEN = re.compile(r"[^\W_]+")
_NOT_QUOTED = re.compile('["\0\ud800-\udfff]')
_QUOTED = re.compile(r'"([^"]+)"')


def any_word(query: str, frequency: Callable[[Sequence[str]], dict[str, int]]) -> str:
    """What finds the chunks with any word of a query; those between quotation marks have to follow each other.

    So do the parts of one word, such as `read_file`.

    Words that very many chunks have are left out if there are rarer ones: they say little, and cost most.

    Args:
        query: Any text.
        frequency: How many chunks have each of some words.
    """
    apart = _WORD.findall(_QUOTED.sub(" ", query).replace('"', " "))
    words = [word for word in dict.fromkeys([*_QUOTED.findall(query), *apart]) if _TOKEN.search(word)]
    parts = {word: [_folded(part) for part in _TOKEN.findall(word)] for word in words}
    counts = frequency(sorted({part for found in parts.values() for part in found}))
    rows = {word: min(counts.get(part, 0) for part in parts[word]) for word in words}
    kept: list[str] = []
    total = 0
    for word in sorted(words, key=rows.__getitem__):
        total += rows[word]
        if kept and total > ROWS and rows[kept[-1]]:
            break
        kept.append(word)
    return " OR ".join(map(_phrase, kept))


def reachable(query: str, frequency: Callable[[Sequence[str]], dict[str, int]], chunks: int) -> float:
    """The BM25 of a chunk that has all words of a query, at most.

    Args:
        query: Any text.
        frequency: How many chunks have each of some words.
        chunks: How many chunks there are.
    """
    words = sorted({_folded(word) for word in _TOKEN.findall(query)})
    known = frequency(words)
    counts = [known.get(word, 0) for word in words]
    weights = (math.log((max(chunks - count, 0) + 0.5) / (count + 0.5)) for count in counts)
    return _FREQUENT * sum(max(weight, _COMMON) for weight in weights)


def phrases(query: str) -> str:
    """What finds the chunks in which a query stands word for word, or all that it puts between quotation marks.

    Empty if there is nothing like this: one word alone stands nowhere in any other way.
    """
    quoted = [part for part in _QUOTED.findall(query) if _TOKEN.search(part)]
    if not quoted and len(_TOKEN.findall(query)) < 2:
        return ""
    return " AND ".join(map(_phrase, quoted or [query]))


def _phrase(text: str) -> str:
    return '"{}"'.format(_NOT_QUOTED.sub(" ", text))


def _folded(word: str) -> str:
    """A word as the tokenizer of FTS5 stores it: in lower case, without diacritics."""
    apart = unicodedata.normalize("NFD", word.lower())
    return "".join(letter for letter in apart if not unicodedata.combining(letter))
