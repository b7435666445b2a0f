"""Vectors of texts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    unknown_tokens: int = 0
    only_unknown: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The result with the shortest decimal numbers that are these float32 values."""
        whole = self.embedding.dtype.kind == "i"
        numbers = self.embedding.tolist() if whole else [float(number) for number in self.embedding.astype("U16")]
        found = {"text": self.text, "embedding": numbers, "tokens": self.tokens, "truncated": self.truncated}
        return found | ({"unknown_tokens": self.unknown_tokens} if self.unknown_tokens else {})
