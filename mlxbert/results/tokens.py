"""Tokens of texts."""

from dataclasses import dataclass, field

from mlxbert.results.json import NOT_IN_JSON
from mlxbert.results.result import Result
from mlxbert.results.short_repr import Brief


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
    """A token with the probability that it is a replacement.

    Attributes:
        token: The token in the spelling of the vocabulary.
        score: The probability that the token is a replacement, 0 to 1.
        replaced: Whether the score is above 0.5.
    """

    token: str
    position: int
    start: int
    end: int
    score: float
    replaced: bool


@dataclass(frozen=True)
class Replaced(Result):
    """The tokens of a text, without special tokens.

    Attributes:
        truncated: Whether the text was truncated; false if windows covered it.
    """

    text: str
    tokens: tuple[ReplacedToken, ...]
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)
