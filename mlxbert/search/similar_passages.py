"""Finds passages that say the same as another one, so that a search shows each text once."""

import re
from collections import deque

from mlxbert.search.folding import folded

_LONG = 20  # words from which a text may differ in a few words: in a shorter one, each of them matters
_SHARED = 0.9  # of the words of two long texts together
_COMPARED = 50  # long texts that are compared with each new one
_DIGIT = re.compile(r"\d")


class DistinctTexts:
    """Texts that differ from each other by more than case, marks and punctuation; long ones, by more than some words.

    Texts with different numbers are never alike.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # of the texts, by their words
        self._long: deque[tuple[int, frozenset[str]]] = deque(maxlen=_COMPARED)
        self._count = 0

    def add(self, text: str) -> int | None:
        """Adds a text, unless it is like an earlier one; returns the number of the earlier one, from 0."""
        key = " ".join(folded(text).split()) or text
        number = self._numbers.get(key)
        words = frozenset(key.split())
        if number is None and len(words) >= _LONG:
            number = next((number for number, others in self._long if _are_alike(words, others)), None)
        if number is not None:
            return number
        self._numbers[key] = self._count
        if len(words) >= _LONG:
            self._long.append((self._count, words))
        self._count += 1
        return None


def _are_alike(words: frozenset[str], others: frozenset[str]) -> bool:
    shared = len(words & others)
    if shared < _SHARED * (len(words) + len(others) - shared):
        return False
    return not any(map(_DIGIT.search, words ^ others))
