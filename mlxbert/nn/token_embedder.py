"""Turns hidden states into token vectors, which late interaction compares (ColBERT, arXiv:2004.12832).

Shapes: B batch, L length, D hidden size, W size of a vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mlxbert.machine.device import mx, nn
from mlxbert.nn.embedder import Dense, Normalize
from mlxbert.nn.vector_settings import VectorSettings

MAXSIM, MEAN_MAXSIM = "maxsim", "meanmaxsim"
TOKEN_SIMILARITIES = (MAXSIM, MEAN_MAXSIM)  # as in sentence-transformers

TOKEN_LAYERS = "token_embedder"  # the part of a network that holds a `TokenEmbedder` while it is trained


@dataclass(frozen=True, kw_only=True)
class TokenSide:
    """How texts of one kind, queries or documents, become inputs, and which of their tokens have a vector."""

    marker: str = ""  # a token that is inserted after the first token of the input; empty for none
    prompt: str = ""  # text that is put before each text
    length: int | None = None  # maximum input length in tokens; `None` for the maximum of the model
    # Shorter inputs are filled up to this number of tokens, whose vectors count like those of the text; 0 does not
    # fill.
    expand: int = 0
    # The token that inputs are filled with; `None` for the mask token or, without one, the end token.
    filler: str | None = None
    attend: bool = False  # whether the text attends to the tokens that fill the input
    skipped: tuple[str, ...] = ()  # tokens that have no vector
    skips_unknown: bool = False  # whether a word in `skipped` that is not in the vocabulary skips the unknown token
    kept: tuple[int, ...] | None = None  # the ids of the only tokens that have a vector; `None` for all
    skip_first: bool = False  # whether the first token of the input has no vector

    @property
    def limit(self) -> int | None:
        """Maximum input length in tokens, those that fill it included; `None` for the maximum of the model."""
        return max(self.length or 0, self.expand) or None


@dataclass(frozen=True, kw_only=True)
class TokenConfig(VectorSettings):
    """How a model turns texts into token vectors."""

    query: TokenSide  # the side of queries
    document: TokenSide
    # `maxsim`, the sum over the tokens of a query of the largest dot product with a token of the document; or
    # `meanmaxsim`, their mean.
    similarity: str = MAXSIM

    def side(self, kind: str | None) -> TokenSide:
        """Returns the side of a kind of text, `query` or `document`; `None` counts as a document."""
        return self.query if kind == "query" else self.document


class TokenEmbedder(nn.Module):
    """Turns hidden states into token vectors.

    Attributes:
        config: The configuration.
        layers: The layers after the encoder: `Dense` and `Normalize`.
        size: The number of values in a vector, W.
    """

    def __init__(self, config: TokenConfig, width: int, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.config, self.layers = config, list(layers)
        dense = [layer for layer in layers if isinstance(layer, Dense)]
        self.size: int = dense[-1].linear.weight.shape[0] if dense else width

    @property
    def unit(self) -> bool:
        """Whether the vectors have length 1."""
        return bool(self.layers) and isinstance(self.layers[-1], Normalize)

    def __call__(self, hidden: mx.array) -> mx.array:
        """(B, L, D) → (B, L, W), float32."""
        x = hidden.astype(mx.float32)
        for layer in self.layers:
            x = layer(x)
        return x
