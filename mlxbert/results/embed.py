"""Vectors of texts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlxbert.results.brief import Brief
from mlxbert.results.json import NOT_IN_JSON, UNLESS_SET
from mlxbert.results.result import Result

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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
    unknown_tokens: int = field(default=0, metadata=UNLESS_SET)
    only_unknown: bool = field(default=False, metadata=NOT_IN_JSON)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Embedding":
        """See `Result.from_dict`; the vector may be an array already."""
        return cls(**{**values, "embedding": _vector(values["embedding"])})


@dataclass(frozen=True, eq=False)
class WordVector(Brief):
    """A word in its context as a vector.

    Attributes:
        word: The part of the text from `start` to `end`.
        tokens: How many tokens the word has; the vector is their mean.
        embedding: float32 (D,).
    """

    word: str
    start: int
    end: int
    tokens: int
    embedding: "NDArray[np.float32]"


@dataclass(frozen=True, eq=False)
class Words(Result):
    """The words of a text as vectors, in their order.

    Attributes:
        truncated: Whether the end of the text was cut off; false if windows covered the text.
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
    """The array of numbers as JSON has them: whole ones are int8."""
    import numpy as np

    whole = isinstance(numbers, list) and bool(numbers) and type(numbers[0]) is int
    return np.asarray(numbers, np.int8 if whole else None if isinstance(numbers, np.ndarray) else np.float32)
