"""Vectors of texts and words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlxbert.lazy_numpy import NDArray, np
from mlxbert.results.json import NOT_IN_JSON, OMIT_IF_ZERO, Each, listed, plain
from mlxbert.results.result import Failure, Result
from mlxbert.results.short_repr import Brief


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
class SparseEmbedding(Result):
    """A text as a sparse vector, which has K values that are not 0. In JSON, `embedding` maps tokens to values.

    Attributes:
        ids: The ids of the tokens with a value, in ascending order, int32 (K,).
        values: Their values, float32 (K,).
        names: Their spelling in the vocabulary.
        tokens: The number of tokens that the model read, special tokens included.
        truncated: Whether the text was truncated.
        unknown_tokens: The number of tokens of the text that are not in the vocabulary.
        only_unknown: Whether all tokens are unknown.
    """

    text: str
    ids: "NDArray[np.int32]"
    values: "NDArray[np.float32]"
    names: Sequence[str]
    tokens: int
    truncated: bool = False
    unknown_tokens: int = field(default=0, metadata=OMIT_IF_ZERO)
    only_unknown: bool = field(default=False, metadata=NOT_IN_JSON)

    def weights(self, top_k: int | None = None) -> dict[str, float]:
        """Returns the values of the `top_k` heaviest tokens (by default of all), heaviest first, by token."""
        return {self.names[place]: float(self.values[place]) for place in self._order()[:top_k]}

    def _order(self) -> "NDArray[np.int64]":
        return (-self.values).argsort(kind="stable")

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the fields; `embedding` maps each token to its value, heaviest first; `ids` is in the same order."""
        order = self._order()
        ids, values, names = self.ids[order].tolist(), self.values[order], [self.names[place] for place in order]
        numbers = plain(values)
        unknown = {"unknown_tokens": self.unknown_tokens} if self.unknown_tokens else {}
        return {
            "text": self.text, "embedding": dict(zip(names, numbers, strict=True)), "ids": ids, "tokens": self.tokens,
            "truncated": self.truncated, **unknown,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "SparseEmbedding":
        """See `Result.from_dict`."""
        others = {name: value for name, value in values.items() if name not in ("embedding", "ids")}
        ids, names = np.array(values["ids"], np.int32), [*values["embedding"]]
        order, numbers = np.argsort(ids), np.array([*values["embedding"].values()], np.float32)
        return cls(ids=ids[order], values=numbers[order], names=tuple(names[place] for place in order), **others)


@dataclass(frozen=True, eq=False)
class TokenVectors(Result):
    """A text as one vector per token.

    Attributes:
        embeddings: float32 (T, W) for T tokens that have a vector; float16 or int8 with that `output_dtype`.
        tokens: The number of tokens that the model read, special tokens included.
        truncated: Whether the text was truncated.
        unknown_tokens: The number of tokens of the text that are not in the vocabulary.
        only_unknown: Whether all tokens are unknown.
    """

    text: str
    embeddings: "NDArray[Any]"
    tokens: int
    truncated: bool = False
    unknown_tokens: int = field(default=0, metadata=OMIT_IF_ZERO)
    only_unknown: bool = field(default=False, metadata=NOT_IN_JSON)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TokenVectors":
        """See `Result.from_dict`."""
        return cls(**{**values, "embeddings": _vector(values["embeddings"])})


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
    first = numbers
    while isinstance(first, list) and first:
        first = first[0]
    integers = type(first) is int
    return np.asarray(numbers, np.int8 if integers else None if isinstance(numbers, np.ndarray) else np.float32)


def stack_vectors(results: Sequence[Embedding | Failure], width: int, dtype: str) -> "NDArray[Any]":
    """Returns the vectors of N results as an array (N, D).

    Args:
        results: The results; a failure is a row of NaN, or of 0 in int8.
        dtype: NumPy's name for the dtype.
    """
    stacked = np.full((len(results), width), np.nan if np.dtype(dtype).kind == "f" else 0, dtype=dtype)
    for row, result in enumerate(results):
        if not isinstance(result, Failure):
            assert result.embedding.shape == (width,), f"a vector of {result.embedding.shape}, expected ({width},)"
            stacked[row] = result.embedding
    return stacked
