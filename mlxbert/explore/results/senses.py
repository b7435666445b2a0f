"""The senses in which texts use a word."""

from dataclasses import dataclass

from mlxbert.results.result import Result
from mlxbert.results.short_repr import Brief


@dataclass(frozen=True)
class Occurrence(Brief):
    """A place where a word occurs.

    Attributes:
        index: The number of the text, from 0.
        start: The first code point of the word in the text.
        end: The code point after the word.
        sense: The number of the sense, from 0, that the word has there.
    """

    index: int
    start: int
    end: int
    sense: int


@dataclass(frozen=True)
class TypicalLine(Brief):
    """A typical line of a sense: the text around the word.

    Attributes:
        index: The number of the text, from 0.
        text: The whole text.
        start: The first code point of the word in the text.
        end: The code point after the word.
    """

    index: int
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Substitute(Brief):
    """A word that could stand in the place of another one.

    Attributes:
        word: The word.
        score: Its probability there, the mean of the typical lines.
    """

    word: str
    score: float


@dataclass(frozen=True)
class Sense(Brief):
    """A group of places where a word has the same meaning.

    Attributes:
        count: The number of places.
        substitutes: The words that could stand there, the most typical of this sense first; empty if the model has no
            head that predicts words.
        typical: The most typical lines.
    """

    count: int
    substitutes: tuple[Substitute, ...]
    typical: tuple[TypicalLine, ...]


@dataclass(frozen=True)
class Senses(Result):
    """The senses in which texts use a word.

    Attributes:
        word: The word.
        texts: The number of texts.
        senses: The senses, the most frequent first.
        silhouette: How distinct the senses are, from -1 to 1: the mean silhouette of the vectors. 0 for a single sense.
        occurrences: Every place where the word occurs, in the order of the texts.
    """

    word: str
    texts: int
    senses: tuple[Sense, ...]
    silhouette: float
    occurrences: tuple[Occurrence, ...]
