"""Entities, and tags of words and tokens."""

from dataclasses import asdict, dataclass
from typing import Any

from mlxbert.results.brief import Brief
from mlxbert.results.result import Each, PartedResult, listed


@dataclass(frozen=True)
class Entity(Brief):
    """A part of a text and what it is.

    Attributes:
        label: The type of an entity, or the tag of a word or token.
        text: The part of the text from `start` to `end`.
        score: Its probability, 0 to 1; of several words their mean.
    """

    label: str
    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True)
class Tagged(PartedResult):
    """The entities of a text in their order, or its words, or its tokens.

    Attributes:
        truncated: Whether the end of the text was cut off; looking at it through windows is not cutting.
    """

    text: str
    entities: tuple[Entity, ...]
    truncated: bool = False

    def to_dict(self, each: Each = listed) -> dict[str, Any]:
        """The text with its entities."""
        return {"text": self.text, "entities": each(self.entities, asdict)}
