"""What stands on an encoder: one class per head, and the network that holds both.

Shapes: B batch, L length, M masked places, D hidden size, E embedding size, V vocabulary.
"""

from collections.abc import Iterable
from typing import cast

from mlxbert.activations import activate, check_activation
from mlxbert.config import EncoderConfig
from mlxbert.device import mx, nn
from mlxbert.encoder import Encoder, EncoderOutput
from mlxbert.errors import InputError

_BRANCHES = 16  # how many numbers are added up in order, in a sum that is a tree


class MaskedLM(nn.Module):
    """Scores of every word of the vocabulary, through the word embeddings turned round ("tied")."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.bias = mx.zeros(config.vocab_size)
        self.activation = check_activation(config.hidden_act)

    def __call__(self, hidden: mx.array, word_embeddings: mx.array) -> mx.array:
        """Scores words.

        Args:
            hidden: (…, D); only the places wanted, the product with the vocabulary is the dearest of the model.
            word_embeddings: (V, E), the encoder's own.

        Returns:
            Logits (…, V).
        """
        x = self.norm(activate(self.activation, self.dense(hidden)))
        return mx.addmm(self.bias, x, word_embeddings.T)


class NextSentence(nn.Module):
    """Whether the second text follows the first: class 0 says that it does."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, 2)

    def __call__(self, pooled: mx.array) -> mx.array:
        """(B, D), the pooler's output → logits (B, 2)."""
        return self.dense(pooled)


def probabilities(logits: mx.array) -> mx.array:
    """Softmax over the last axis, in float32, exact for vocabularies.

    MLX's CPU backend adds up a row in order: next to a likely word the 30,000 unlikely ones fall below the last digit
    of the sum, and every probability comes out up to 3e-4 too high. Adding up in a tree keeps them.
    """
    wide = logits.astype(mx.float32)
    shares = mx.exp(wide - wide.max(axis=-1, keepdims=True))
    total = shares
    while total.shape[-1] > 1:
        total = mx.pad(total, [(0, 0)] * (total.ndim - 1) + [(0, -total.shape[-1] % _BRANCHES)])
        total = total.reshape(*total.shape[:-1], -1, _BRANCHES).sum(axis=-1)
    return shares / total


HEADS: dict[str, type[MaskedLM] | type[NextSentence]] = {"masked_lm": MaskedLM, "next_sentence": NextSentence}


class Network(nn.Module):
    """An encoder and the heads on it; calling it runs the encoder alone."""

    def __init__(self, config: EncoderConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.heads: dict[str, MaskedLM | NextSentence] = {name: HEADS[name](config) for name in heads}

    def __call__(
        self, input_ids: mx.array, attention_mask: mx.array | None = None, token_type_ids: mx.array | None = None
    ) -> EncoderOutput:
        """See `Encoder`; ids are checked here, where they may come from anywhere.

        Raises:
            InputError: `input_ids` are no integers (B, L), or no rows of the vocabulary: MLX would read past the table.
        """
        whole = isinstance(input_ids, mx.array) and mx.issubdtype(input_ids.dtype, mx.integer) and input_ids.ndim == 2
        if not whole or not input_ids.size:
            raise InputError("input_ids are expected to be an array of integers (B, L), neither of them 0")
        low, high = (cast(int, bound.item()) for bound in (input_ids.min(), input_ids.max()))
        rows = self.encoder.config.vocab_size
        if not 0 <= low <= high < rows:
            raise InputError(f"input_ids are from {low} to {high}, the vocabulary has ids from 0 to {rows - 1}")
        return self.encoder(input_ids, attention_mask, token_type_ids)

    def masked_lm(self, hidden: mx.array) -> mx.array:
        """Word logits (…, V) of hidden states (…, D)."""
        head = self.heads["masked_lm"]
        assert isinstance(head, MaskedLM)
        return head(hidden, self.encoder.embeddings.word.weight)

    def next_sentence(self, pooled: mx.array) -> mx.array:
        """Logits (B, 2) of the pooler's output (B, D)."""
        head = self.heads["next_sentence"]
        assert isinstance(head, NextSentence)
        return head(pooled)
