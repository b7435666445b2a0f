"""Finds passages that say the same as another one, so that a search shows each text once."""

import re

_WORD = re.compile(r"\w+")
_SHARED = 0.75  # of the words of two passages together


class DistinctTexts:
    """Texts that differ from each other by more than some words."""

    def __init__(self) -> None:
        self._words: list[frozenset[str]] = []

    def add(self, text: str) -> int | None:
        """Adds a text, unless it is nearly equal to an earlier one; returns the number of that one, from 0."""
        words = frozenset(_WORD.findall(text.casefold())) or frozenset((text,))
        for number, others in enumerate(self._words):
            fewer, more = sorted((len(words), len(others)))
            if fewer >= _SHARED * more:
                shared = len(words & others)
                if shared >= _SHARED * (len(words) + len(others) - shared):
                    return number
        self._words.append(words)
        return None
