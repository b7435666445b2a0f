"""Results of filling masks."""

from dataclasses import dataclass, field

from mlxbert.results.json import NOT_IN_JSON, OMIT_IF_NONE, OMIT_IF_ZERO
from mlxbert.results.result import Result
from mlxbert.results.short_repr import Brief


@dataclass(frozen=True)
class Fill(Brief):
    """A word that may fill a mask.

    Attributes:
        token: The token as readable text: "paris", "##s" for an ending, " Paris" if the token includes the space.
        token_id: The id in the vocabulary.
        score: The probability over the whole vocabulary, 0 to 1.
        text: The input text with this mask filled and the other masks unchanged. It is `None` if the options leave it
            out, and from the 50th mask of a text on, because each would repeat the whole text.
    """

    token: str
    token_id: int
    score: float
    text: str | None = field(default=None, metadata=OMIT_IF_NONE)


@dataclass(frozen=True)
class Mask(Brief):
    """A mask of a text and the words that may fill it, most probable first."""

    position: int
    start: int
    end: int
    fills: tuple[Fill, ...]


@dataclass(frozen=True)
class FillMask(Result):
    """The masks of a text, in order, with the words that may fill them.

    Attributes:
        truncated: Whether the text was truncated; false if windows covered it.
        unknown_tokens: The number of tokens of the text that are not in the vocabulary.
        only_unknown: Whether all tokens except masks are unknown.
    """

    text: str
    masks: tuple[Mask, ...]
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)
    unknown_tokens: int = field(default=0, metadata=OMIT_IF_ZERO)
    only_unknown: bool = field(default=False, metadata=NOT_IN_JSON)
