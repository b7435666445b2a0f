"""Vectors of texts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlxbert.results.brief import Brief
from mlxbert.results.result import Each, PartedResult, Result, listed

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
    unknown_tokens: int = 0
    only_unknown: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The result with the shortest decimal numbers that are these float32 values."""
        found = {
            "text": self.text,
            "embedding": _numbers(self.embedding),
            "tokens": self.tokens,
            "truncated": self.truncated,
        }
        return found | ({"unknown_tokens": self.unknown_tokens} if self.unknown_tokens else {})

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
class Words(PartedResult):
    """The words of a text as vectors, in their order.

    Attributes:
        truncated: Whether the end of the text was cut off; looking at it through windows is not cutting.
    """

    text: str
    words: tuple[WordVector, ...]
    truncated: bool = False

    def to_dict(self, each: Each = listed) -> dict[str, Any]:
        """The result with the shortest decimal numbers that are these float32 values."""
        words = each(self.words, lambda word: vars(word) | {"embedding": _numbers(word.embedding)})
        return {"text": self.text, "words": words, "truncated": self.truncated}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Words":
        """See `Result.from_dict`."""
        words = tuple(WordVector(**{**word, "embedding": _vector(word["embedding"])}) for word in values["words"])
        return cls(values["text"], words, values["truncated"])


def _numbers(vector: "NDArray[Any]") -> list[float]:
    """The shortest decimal numbers that are these float32 values; int8 as it is."""
    return vector.tolist() if vector.dtype.kind == "i" else [float(number) for number in vector.astype("U16")]


def _vector(numbers: Any) -> "NDArray[Any]":
    """The array of numbers as `_numbers` gives them: whole ones are int8."""
    import numpy as np

    whole = isinstance(numbers, list) and bool(numbers) and type(numbers[0]) is int
    return np.asarray(numbers, np.int8 if whole else None if isinstance(numbers, np.ndarray) else np.float32)
