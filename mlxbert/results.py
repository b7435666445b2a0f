"""What tasks return: frozen dataclasses, one per line of the JSON output.

Offsets are `[start, end)` in code points of the text that was given. `position` counts tokens from the first special
token on, as if the model took a text of any length.
"""

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from mlxbert.errors import MlxbertError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Result:
    """Base of all results."""

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dicts and lists, as the command line prints it; whether it was cut is counted there."""
        return _without_counted(asdict(self))


def _without_counted(values: dict[str, Any]) -> dict[str, Any]:
    """The values without those that the command line counts, and without a number of unknown tokens that is 0."""
    left_out = {"truncated", "only_unknown"} | ({"unknown_tokens"} if not values.get("unknown_tokens") else set())
    return {name: value for name, value in values.items() if name not in left_out}


@dataclass(frozen=True)
class Failure:
    """Stands in the place of a result whose input could not be used.

    Attributes:
        index: Place of the input in the stream, from 0.
        error: Why.
    """

    index: int
    error: MlxbertError

    def to_dict(self) -> dict[str, Any]:
        """`{"index": …, "error": …}`."""
        return {"index": self.index, "error": self.error.message}


@dataclass(frozen=True)
class Fill:
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
class Mask:
    """A masked place and what may stand there, the most probable first."""

    position: int
    start: int
    end: int
    fills: tuple[Fill, ...]


@dataclass(frozen=True)
class FillMask(Result):
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

    def to_dict(self) -> dict[str, Any]:
        """The result, its fills without a text that is left out."""
        masks = [asdict(mask) | {"fills": [_without_none(asdict(fill)) for fill in mask.fills]} for mask in self.masks]
        return _without_counted({"text": self.text, "masks": masks, "unknown_tokens": self.unknown_tokens})


@dataclass(frozen=True)
class NextSentence(Result):
    """Whether `b` follows `a`.

    Attributes:
        score: Probability that `b` is the next sentence, 0 to 1.
        truncated: Whether the pair was cut to fit into the model; the command line counts these.
    """

    a: str
    b: str
    is_next: bool
    score: float
    truncated: bool = False


@dataclass(frozen=True)
class Label:
    """A class and its score.

    Attributes:
        label: The name of the class.
        score: Its probability, 0 to 1: among all classes, or, where several may be right, on its own.
        chosen: Where several may be right, whether the score reaches the threshold of the class; else `None`.
    """

    label: str
    score: float
    chosen: bool | None = None


@dataclass(frozen=True)
class Classification(Result):
    """The classes of a text or of a pair of texts, the most probable first.

    Attributes:
        pair: The second text, if there are two.
        truncated: Whether a text was cut to fit into the model.
    """

    text: str
    labels: tuple[Label, ...]
    pair: str | None = None
    truncated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The result without `pair` for a single text, and without `chosen` where one class is right."""
        labels = [_without_none(asdict(label)) for label in self.labels]
        return _without_none({"text": self.text, "pair": self.pair}) | {"labels": labels}


@dataclass(frozen=True)
class Regression(Result):
    """The number that a model gives a text or a pair of texts.

    Attributes:
        value: The number; the first one of a model with several outputs.
        values: All numbers by the names of the outputs, in the model's order, where there are several; else empty.
        pair: The second text, if there are two.
        truncated: Whether a text was cut to fit into the model.
    """

    text: str
    value: float
    values: tuple[tuple[str, float], ...] = ()
    pair: str | None = None
    truncated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The result with `value`, or with `values` where there are several."""
        several = [{"label": name, "value": value} for name, value in self.values]
        found = {"values": several} if several else {"value": self.value}
        return _without_none({"text": self.text, "pair": self.pair}) | found


@dataclass(frozen=True)
class Span:
    """A part of a text that may be the answer.

    Attributes:
        answer: The part.
        start: Where it begins in the text.
        end: Where it ends, exclusive.
        score: Its probability among all parts of the window that it was found in, 0 to 1.
    """

    answer: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Answer(Result):
    """The answer to a question in a text, if there is one.

    Attributes:
        question: The question.
        answer: The answer; `None` if the text has none. The same for `start` and `end`.
        start: Where it begins in the text.
        end: Where it ends, exclusive.
        score: The probability of the best span, 0 to 1, even if it is not given as the answer.
        no_answer_score: The probability that the text has no answer; the smallest of all windows.
        spans: The best spans, the best first, even if there is no answer.
        context: The text.
        truncated: Whether the end of the text was cut off; looking at it through windows is not cutting.
    """

    question: str
    answer: str | None
    start: int | None
    end: int | None
    score: float
    no_answer_score: float
    spans: tuple[Span, ...] = ()
    context: str = field(default="", repr=False)
    truncated: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The result without the text, and with `spans` if there are several."""
        names = ("question", "answer", "start", "end", "score", "no_answer_score")
        several = {"spans": [asdict(span) for span in self.spans]} if len(self.spans) > 1 else {}
        return {name: getattr(self, name) for name in names} | several


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Entity:
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
class Tagged(Result):
    """The entities of a text in their order, or its words, or its tokens.

    Attributes:
        truncated: Whether the end of the text was cut off; looking at it through windows is not cutting.
    """

    text: str
    entities: tuple[Entity, ...]
    truncated: bool = False


@dataclass(frozen=True, eq=False)
class Embedding(Result):
    """A text as a vector.

    Attributes:
        embedding: float32 (D,), or int8 where `embed_stream` was asked for another `output_dtype`.
        tokens: How many tokens the model took, special tokens included.
        truncated: Whether the text was cut to fit into the model.
        unknown_tokens: How many tokens of the text are not in the vocabulary.
        only_unknown: Whether there is no other token.
    """

    text: str
    embedding: "NDArray[np.float32]"
    tokens: int
    truncated: bool = False
    unknown_tokens: int = 0
    only_unknown: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The result with the shortest decimal numbers that are these float32 values."""
        whole = self.embedding.dtype.kind == "i"
        numbers = self.embedding.tolist() if whole else [float(number) for number in self.embedding.astype("U16")]
        found = {"text": self.text, "embedding": numbers, "tokens": self.tokens, "truncated": self.truncated}
        return found | ({"unknown_tokens": self.unknown_tokens} if self.unknown_tokens else {})


@dataclass(frozen=True)
class Similarity(Result):
    """How near a text is to a query.

    Attributes:
        rank: Place in the order of nearness, from 1.
        index: Place of the text in the input, from 0.
        score: Cosine of the two vectors, -1 to 1, or what the model's files name instead, see `mlxbert.similarity`.
        truncated: Whether the text was cut to fit into the model.
        unknown_tokens: How many tokens of the text are not in the vocabulary.
    """

    query: str
    rank: int
    index: int
    score: float
    text: str
    truncated: bool = False
    unknown_tokens: int = 0


@dataclass(frozen=True)
class Reranked(Result):
    """How well a text answers a query, as a cross-encoder judges the two together.

    Attributes:
        rank: Place in the order of scores, from 1.
        index: Place of the text in the input, from 0.
        score: A probability from 0 to 1, or any number, as the files of the model say.
        truncated: Whether the query or the text was cut to fit into the model.
    """

    query: str
    rank: int
    index: int
    score: float
    text: str
    truncated: bool = False


@dataclass(frozen=True)
class PairSimilarity(Result):
    """How near the two texts of a pair are.

    Attributes:
        score: Cosine of the two vectors, -1 to 1, or what the model's files name instead, see `mlxbert.similarity`.
        truncated: Whether a text was cut to fit into the model.
    """

    a: str
    b: str
    score: float
    truncated: bool = False


@dataclass(frozen=True)
class ReplacedToken:
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
        truncated: Whether the end of the text was cut off; looking at it through windows is not cutting.
    """

    text: str
    tokens: tuple[ReplacedToken, ...]
    truncated: bool = False


@dataclass(frozen=True)
class Token:
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
    truncated: bool = False
