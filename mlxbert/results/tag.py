"""Entities, and tags of words and tokens."""

from dataclasses import dataclass, field

from mlxbert.results.json import NOT_IN_JSON
from mlxbert.results.result import Result
from mlxbert.results.short_repr import Brief


@dataclass(frozen=True)
class Entity(Brief):
    """A part of a text with its label.

    Attributes:
        label: The type of an entity, or the tag of a word or token.
        text: The part of the text from `start` to `end`.
        score: The probability, 0 to 1; for several words, the mean of their probabilities.
    """

    label: str
    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True)
class Tagged(Result):
    """The entities, words or tokens of a text with their labels, in order.

    Attributes:
        truncated: Whether the text was truncated; false if windows covered it.
    """

    text: str
    entities: tuple[Entity, ...]
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)
