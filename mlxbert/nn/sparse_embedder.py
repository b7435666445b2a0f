"""Turns hidden states into sparse vectors, which have a weight for each token of the vocabulary; most weights are 0.

Shapes: B batch, L length, D hidden size, V vocabulary. All weights are float32 and at least 0.
"""

from dataclasses import dataclass
from typing import Any

from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch, EncoderOutput
from mlxbert.nn.vector_settings import VectorSettings

HEAD = "masked_lm"  # the head whose logits SPLADE pools
_MAX_SCORES = 2**24  # logits computed at once: a whole batch has 2,048 for each token of the vocabulary


@dataclass(frozen=True)
class SparseConfig(VectorSettings):
    """How a model turns a text into a sparse vector."""

    # Whether the weight of a token is the maximum over the places of the text; otherwise it is the sum.
    largest: bool = True
    logarithms: int = 1  # how often log(1 + x) is applied to the positive logits: 1, or 2
    top_k: int | None = None  # maximum number of tokens with a weight; `None` for no limit
    similarity: str = "dot"


class SpladePooling:
    """Pools the logits of a masked-LM head over the places of a text."""

    head: str | None = HEAD  # the head that the network needs

    def __init__(self, config: SparseConfig) -> None:
        self._config = config

    def __call__(self, network: Any, batch: Batch) -> mx.array:
        """Returns the weights of all tokens of the vocabulary, (B, V)."""
        states, mask = _states(network, batch), batch.attention_mask
        step = max(_MAX_SCORES // (len(states) * network.encoder.config.vocab_size), 1)
        pooled: mx.array | None = None
        for start in range(0, states.shape[1], step):
            part = EncoderOutput(states[:, start : start + step], None)
            logits = mx.maximum(network.logits(HEAD, part).astype(mx.float32), 0)
            if mask is not None:
                logits = mx.where(mask[:, start : start + step, None] != 0, logits, 0)
            # The logarithm does not change which logit is the largest.
            if self._config.largest:
                values = logits.max(axis=1)
                pooled = values if pooled is None else mx.maximum(pooled, values)
            else:
                values = self._logarithm(logits).sum(axis=1)
                pooled = values if pooled is None else pooled + values
        assert pooled is not None
        return self._logarithm(pooled) if self._config.largest else pooled

    def _logarithm(self, x: mx.array) -> mx.array:
        for _ in range(self._config.logarithms):
            x = mx.log1p(x)
        return x


class TokenWeights:
    """Weights only the tokens of the text itself, with a linear layer on their hidden states (BGE-M3).

    Args:
        weight: (D,).
        bias: A single number, (1,).
    """

    head: str | None = None

    def __init__(self, weight: mx.array, bias: mx.array) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, network: Any, batch: Batch) -> mx.array:
        """Returns the weight of each place of a text, (B, L)."""
        states = _states(network, batch).astype(mx.float32)
        return mx.maximum(states @ self.weight + self.bias, 0)


class StaticWeights:
    """Weights each token of the text with a number that does not depend on the text, so the encoder does not run.

    Args:
        weight: (V,).
    """

    head: str | None = None

    def __init__(self, weight: mx.array) -> None:
        self.weight = weight

    def __call__(self, network: Any, batch: Batch) -> mx.array:
        """Returns the weight of each place of a text, (B, L)."""
        return self.weight[batch.input_ids]


@dataclass(frozen=True, eq=False)
class SparseEmbedder:
    """Turns texts into sparse vectors."""

    config: SparseConfig  # the configuration
    documents: SpladePooling | TokenWeights  # the weights of documents and, if `queries` is `None`, of queries
    queries: StaticWeights | None = None  # the weights of queries, if they differ
    default: str = "document"  # the kind of a text whose kind is not stated, `query` or `document`
    ignored: frozenset[int] = frozenset()  # ids that never have a weight

    def of_kind(self, kind: str | None) -> SpladePooling | TokenWeights | StaticWeights:
        """Returns what weights texts of a kind, `query` or `document`; `None` is the default kind."""
        return self.queries if self.queries is not None and (kind or self.default) == "query" else self.documents


def _states(network: Any, batch: Batch) -> mx.array:
    """Returns the hidden states (B, L, D)."""
    output: EncoderOutput = network.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids)
    return output.last_hidden_state
