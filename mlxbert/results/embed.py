"""Vectors of texts and words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlxbert.results.json import NOT_IN_JSON, OMIT_IF_ZERO
from mlxbert.results.result import Result
from mlxbert.results.short_repr import Brief

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Embedding(Result):
    """A text as a vector.

    Attributes:
        embedding: float32 (D,); int8 if `embed_stream` was called with the `output_dtype` `int8` or `binary`.
        tokens: The number of tokens that the model read, special tokens included.
        truncated: Whether the text was truncated.
        unknown_tokens: The number of tokens of the text that are not in the vocabulary.
        only_unknown: Whether all tokens are unknown.
    """

    text: str
    embedding: "NDArray[np.float32]"
    tokens: int
    truncated: bool = False
    unknown_tokens: int = field(default=0, metadata=OMIT_IF_ZERO)
    only_unknown: bool = field(default=False, metadata=NOT_IN_JSON)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Embedding":
        """See `Result.from_dict`; the vector may already be an array."""
        return cls(**{**values, "embedding": _vector(values["embedding"])})


@dataclass(frozen=True, eq=False)
class WordVector(Brief):
    """A word in its context as a vector.

    Attributes:
        word: The part of the text from `start` to `end`.
        tokens: The number of tokens of the word; the vector is the mean of their vectors.
        embedding: float32 (D,).
    """

    word: str
    start: int
    end: int
    tokens: int
    embedding: "NDArray[np.float32]"


@dataclass(frozen=True, eq=False)
class Words(Result):
    """The words of a text with their vectors, in order.

    Attributes:
        truncated: Whether the text was truncated; false if windows covered it.
    """

    text: str
    words: tuple[WordVector, ...]
    truncated: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Words":
        """See `Result.from_dict`."""
        words = tuple(WordVector(**{**word, "embedding": _vector(word["embedding"])}) for word in values["words"])
        return cls(values["text"], words, values["truncated"])


def _vector(numbers: Any) -> "NDArray[Any]":
    """Converts a JSON list to an array: int8 for integers, float32 for other numbers; returns an array unchanged."""
    import numpy as np

    integers = isinstance(numbers, list) and bool(numbers) and type(numbers[0]) is int
    return np.asarray(numbers, np.int8 if integers else None if isinstance(numbers, np.ndarray) else np.float32)
