"""The results of tasks about single texts: filled masks, labels and numbers, entities, tokens, and answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mlxbert.results.json import NOT_IN_JSON, OMIT_IF_NONE, OMIT_IF_ZERO, Each, listed, omit_if, plain
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


@dataclass(frozen=True)
class Label(Brief):
    """A class and its score.

    Attributes:
        label: The name of the class.
        score: The probability, 0 to 1. The scores of all classes add up to 1, unless several classes may be right.
        chosen: Whether the score reaches the threshold of the class; `None` if only one class can be right.
    """

    label: str
    score: float
    chosen: bool | None = field(default=None, metadata=OMIT_IF_NONE)


@dataclass(frozen=True)
class Classification(Result):
    """The classes of a text or a pair of texts, most probable first.

    Attributes:
        pair: The second text, if there are two.
        truncated: Whether a text was truncated.
    """

    text: str
    labels: tuple[Label, ...]
    pair: str | None = None
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the JSON. It has no `pair` for a single text, and no `chosen` if only one class can be right."""
        return _texts(self) | {"labels": each(self.labels, plain)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Converts JSON to a result (see `Result.from_dict`); if it has no labels, the result is a `Regression`."""
        return super().from_dict(values) if "labels" in values else Regression.from_dict(values)


@dataclass(frozen=True)
class Regression(Result):
    """The number that a model computes for a text or a pair of texts.

    Attributes:
        value: The number; if the model has several outputs, the first one.
        values: All numbers by the names of the outputs, in the model's order; empty if there is only one output.
        pair: The second text, if there are two.
        truncated: Whether a text was truncated.
    """

    text: str
    value: float
    values: tuple[tuple[str, float], ...] = ()
    pair: str | None = None
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the JSON, with `value` for a single output, or with `values` for several."""
        several = [{"label": name, "value": plain(value)} for name, value in self.values]
        return _texts(self) | ({"values": several} if several else {"value": plain(self.value)})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """See `Result.from_dict`."""
        several = [(output["label"], output["value"]) for output in values.get("values", ())]
        return super().from_dict({"value": several[0][1] if several else None, **values, "values": several})


def _texts(result: Classification | Regression) -> dict[str, Any]:
    return {"text": result.text} | ({} if result.pair is None else {"pair": result.pair})


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


@dataclass(frozen=True)
class Span(Brief):
    """A part of a text that may be the answer.

    Attributes:
        answer: The part of the text.
        start: The offset of the start in the text.
        end: The offset of the end in the text, exclusive.
        score: The probability of this span among all spans of its window, 0 to 1.
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
        answer: The answer. If the text has none, `answer`, `start` and `end` are `None`.
        start: The offset of the start of the answer in the text.
        end: The offset of its end, exclusive.
        score: The probability of the best span, 0 to 1, even if that span is not the answer.
        no_answer_score: The probability that the text has no answer; for a text of several windows, the smallest one.
        spans: The best spans, best first, even if there is no answer.
        context: The text that was searched.
        truncated: Whether the text was truncated; false if windows covered it.
    """

    question: str
    answer: str | None
    start: int | None
    end: int | None
    score: float
    no_answer_score: float
    spans: tuple[Span, ...] = field(default=(), metadata=omit_if(lambda spans: len(spans) < 2))
    context: str = field(default="", repr=False, metadata=NOT_IN_JSON)
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Converts JSON to an answer (see `Result.from_dict`). Without `spans`, the answer becomes the only span."""
        span = {name: values[name] for name in ("answer", "start", "end", "score")}
        return super().from_dict({"spans": [span] if span["answer"] is not None else [], **values})
