"""How texts relate to others: what follows, is near, answers, or only seems to."""

from dataclasses import dataclass, field

from mlxbert.results.json import NOT_IN_JSON, UNLESS_SET
from mlxbert.results.result import Result


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
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)


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
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)
    unknown_tokens: int = field(default=0, metadata=UNLESS_SET)


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
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)


@dataclass(frozen=True)
class Reranked(Result):
    """How well a text answers a query, as a cross-encoder judges the two together.

    Attributes:
        rank: Place in the order of scores, from 1.
        index: Place of the text in the input, from 0.
        score: A probability from 0 to 1, or any number, as the files of the model say.
        logit: The output of the model, which texts are ranked by: float32 has one probability, 1.0, for all large ones.
        truncated: Whether the query or the text was cut to fit into the model.
    """

    query: str
    rank: int
    index: int
    score: float
    text: str
    logit: float
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)


@dataclass(frozen=True)
class Mined(Result):
    """A query with the texts that belong to it, and hard negatives.

    Attributes:
        query: The query.
        positives: The texts that belong to it.
        negatives: Texts that do not, the most similar first; there may be fewer than asked for.
    """

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
