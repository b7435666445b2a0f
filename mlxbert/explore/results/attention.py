"""The attention between the tokens of a text."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlxbert.results.json import Each, listed
from mlxbert.results.notebook import grid
from mlxbert.results.result import Result
from mlxbert.results.tokens import Token

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Attention(Result):
    """The attention weights of a text: how much of its attention each token gives to every token.

    Attributes:
        text: The text.
        pair: The second text, if there is one.
        tokens: The tokens, special ones included.
        layers: The numbers of the layers, from 0.
        heads: The numbers of the heads, from 0; empty for a rollout.
        weights: float32 (layers, heads, tokens, tokens); they add up to 1 along the last axis. For a rollout, (layers,
            1, tokens, tokens).
        truncated: Whether the text was truncated.
        rollout: Whether the weights are those of a rollout: the product of all layers up to each one.
    """

    text: str
    pair: str | None
    tokens: tuple[Token, ...]
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    weights: "NDArray[np.float32]"
    truncated: bool = False
    rollout: bool = False

    @property
    def mean(self) -> "NDArray[np.float32]":
        """The mean over layers and heads, (tokens, tokens); of a rollout, its last layer."""
        if self.rollout:
            return self.weights[self.layers.index(max(self.layers)), 0]
        average: NDArray[np.float32] = self.weights.mean(axis=(0, 1))
        return average

    def _repr_html_(self) -> str:
        names = [token.token for token in self.tokens]
        return grid(["", *names], [[name, *row] for name, row in zip(names, self.mean.tolist(), strict=True)])

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns the JSON of the command line, with weights rounded to six decimals."""
        pair = {} if self.pair is None else {"pair": self.pair}
        return {
            "text": self.text, **pair, "tokens": [token.token for token in self.tokens], "layers": [*self.layers],
            "heads": [*self.heads], "attention": self.weights.astype(float).round(6).tolist(),
            **({"truncated": True} if self.truncated else {}), **({"rollout": True} if self.rollout else {}),
        }  # fmt: skip
