"""Tokens of texts."""

from dataclasses import dataclass, field

from mlxbert.results.brief import Brief
from mlxbert.results.json import NOT_IN_JSON
from mlxbert.results.result import Result


@dataclass(frozen=True)
class Token(Brief):
    """One token as the model sees it; `start == end == 0` for a token that stands for no text."""

    token: str
    id: int
    segment: int
    position: int
    start: int
    end: int


@dataclass(frozen=True)
class Tokens(Result):
    """A text as the model sees it."""

    text: str
    tokens: tuple[Token, ...]
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)


@dataclass(frozen=True)
class ReplacedToken(Brief):
    """A token, and how much it looks as if it stood in the place of another.

    Attributes:
        token: The token as the vocabulary spells it.
        score: Probability that it is a replacement, 0 to 1.
        replaced: Whether that is more than a half.
    """

    token: str
    position: int
    start: int
    end: int
    score: float
    replaced: bool


@dataclass(frozen=True)
class Replaced(Result):
    """The tokens of a text, special ones left out.

    Attributes:
        truncated: Whether the end of the text was cut off; false if windows covered the text.
    """

    text: str
    tokens: tuple[ReplacedToken, ...]
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)
