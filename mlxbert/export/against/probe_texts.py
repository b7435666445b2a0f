"""Texts that tell apart why vectors differ: short and long ones, capitals, accents, and several languages."""

from collections.abc import Iterator
from itertools import cycle, islice

from mlxbert.text.sample_texts import english, languages

_SPELLINGS = (
    "NASA and the WHO met in Geneva.",
    "THE TRAIN TO OXFORD LEAVES FROM PLATFORM NINE.",
    "Polish the Polish table in March, then march to Turkey.",
    "Café, naïve, Zürich, São Paulo, Łódź.",
    "e-mail: someone@example.org, price: $1,299.00 (-15%)",
    "def add(a, b):\n    return a + b",
    "one",
    "One two",
)
_LENGTHS = (16, 32, 48, 64, 96, 128, 160, 200, 256, 300, 400, 520, 700, 1000)  # sentences have about ten words


def probe_texts() -> list[str]:
    """Returns about 60 texts from one word to about 1,000 words, short and long ones mixed."""
    short = [*_SPELLINGS, *english()[:24], *languages()[::2]]
    long = [" ".join(_words(number, count)) for number, count in enumerate(_LENGTHS)]
    long += [" ".join(_words(number + 40, count)).title() for number, count in enumerate(_LENGTHS[2:10:3])]
    for number, text in enumerate(long):  # so that requests and batches have texts of all lengths
        short.insert(3 * number + 2, text)
    return short


def _words(start: int, count: int) -> Iterator[str]:
    """Yields the first words of sentences, beginning with another sentence for each text."""
    sentences = english()
    first = start * 7 % len(sentences)
    words = (word for text in cycle([*sentences[first:], *sentences[:first]]) for word in text.split())
    return islice(words, count)
