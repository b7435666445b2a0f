"""Words for masks."""

from dataclasses import asdict, dataclass
from typing import Any

from mlxbert.results.brief import Brief
from mlxbert.results.result import Each, PartedResult, listed, without_counted, without_none


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
    text: str | None = None


@dataclass(frozen=True)
class Mask(Brief):
    """A masked place and what may stand there, the most probable first."""

    position: int
    start: int
    end: int
    fills: tuple[Fill, ...]


@dataclass(frozen=True)
class FillMask(PartedResult):
    """The fills of every mask of a text, in the order of the text.

    Attributes:
        truncated: Whether the end of the text was cut off; looking at it through windows is not cutting.
        unknown_tokens: How many tokens of the text are not in the vocabulary.
        only_unknown: Whether there is no other token, masks left out.
    """

    text: str
    masks: tuple[Mask, ...]
    truncated: bool = False
    unknown_tokens: int = 0
    only_unknown: bool = False

    def to_dict(self, each: Each = listed) -> dict[str, Any]:
        """The result, its fills without a text that is left out."""

        def shown(mask: Mask) -> dict[str, Any]:
            return {**vars(mask), "fills": each(mask.fills, lambda fill: without_none(asdict(fill)))}

        masks = each(self.masks, shown)
        return without_counted({"text": self.text, "masks": masks, "unknown_tokens": self.unknown_tokens})
