"""Results about the relation of texts: next sentence, similarity, relevance, and mined negatives."""

from dataclasses import dataclass, field

from mlxbert.results.json import NOT_IN_JSON, OMIT_IF_ZERO
from mlxbert.results.result import Result


@dataclass(frozen=True)
class NextSentence(Result):
    """Whether `b` follows `a`.

    Attributes:
        score: The probability that `b` is the next sentence, 0 to 1.
        truncated: Whether the pair was truncated; the command line counts such pairs.
    """

    a: str
    b: str
    is_next: bool
    score: float
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)


@dataclass(frozen=True)
class Similarity(Result):
    """The similarity of a text to a query.

    Attributes:
        rank: The rank by similarity, from 1.
        index: The index of the text in the input, from 0.
        score: The cosine of the vectors, -1 to 1, or another score if the model's files name one (see
            `mlxbert.similarity`).
        truncated: Whether the text was truncated.
        unknown_tokens: The number of tokens of the text that are not in the vocabulary.
    """

    query: str
    rank: int
    index: int
    score: float
    text: str
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)
    unknown_tokens: int = field(default=0, metadata=OMIT_IF_ZERO)


@dataclass(frozen=True)
class PairSimilarity(Result):
    """The similarity of the two texts of a pair.

    Attributes:
        score: The cosine of the vectors, -1 to 1, or another score if the model's files name one (see
            `mlxbert.similarity`).
        truncated: Whether a text was truncated.
    """

    a: str
    b: str
    score: float
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)


@dataclass(frozen=True)
class Reranked(Result):
    """The relevance of a text for a query, as judged by a cross-encoder.

    Attributes:
        rank: The rank by logit, from 1.
        index: The index of the text in the input, from 0.
        score: A probability from 0 to 1, or any number, depending on the files of the model.
        logit: The output of the model. It decides the rank, since the probabilities of all large logits round to 1.0 in
            float32.
        truncated: Whether the query or the text was truncated.
    """

    query: str
    rank: int
    index: int
    score: float
    text: str
    logit: float
    truncated: bool = field(default=False, metadata=NOT_IN_JSON)
