"""Words for masks."""

from dataclasses import dataclass, field

from mlxbert.results.brief import Brief
from mlxbert.results.json import NOT_IN_JSON, UNLESS_SET, omit_if
from mlxbert.results.result import Result


@dataclass(frozen=True)
class Fill(Brief):
    """One word for one mask.

    Attributes:
        token: The token as it reads: "paris", "##s" for an ending, " Paris" where the vocabulary has the space, too.
        token_id: Its row in the vocabulary.
        score: Its probability over the whole vocabulary, 0 to 1.
        text: The given text with this mask filled; other masks stay. `None` where it is left out: on demand, and from
            the 50th mask of a text on, as each would repeat the whole text.
    """

    token: str
    token_id: int
    score: float
    text: str | None = field(default=None, metadata=omit_if(lambda text: text is None))


@dataclass(frozen=True)
class Mask(Brief):
    """A masked place and what may stand there, the most probable first."""

    position: int
    start: int
    end: int
    fills: tuple[Fill, ...]


@dataclass(frozen=True)
class FillMask(Result):
    """The fills of every mask of a text, in the order of the text.

    Attributes:
        truncated: Whether the end of the text was cut off; false if windows covered the text.
        unknown_tokens: How many tokens of the text are not in the vocabulary.
        only_unknown: Whether there is no other token, masks left out.
    """

    text: str
    masks: tuple[Mask, ...]
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)
    unknown_tokens: int = field(default=0, metadata=UNLESS_SET)
    only_unknown: bool = field(default=False, metadata=NOT_IN_JSON)
