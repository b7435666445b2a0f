"""What stands on an encoder: one class per head, and the network that holds both.

Shapes: B batch, L length, M masked places, D hidden size, E embedding size, V vocabulary.
"""

from collections.abc import Iterable
from typing import TypeVar, cast

from mlxbert.config import EncoderConfig, Transform
from mlxbert.device import mx, nn
from mlxbert.errors import CheckpointError, InputError
from mlxbert.nn.activations import activate, check_activation
from mlxbert.nn.blocks import layer_norm
from mlxbert.nn.encoder import Encoder, EncoderOutput
from mlxbert.nn.pooling import pool

H = TypeVar("H", bound=nn.Module)

_BRANCHES = 16  # how many numbers are added up in order, in a sum that is a tree


class DenseTransform(nn.Module):
    """Dense, activation, perhaps a norm."""

    def __init__(self, config: EncoderConfig, transform: Transform, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, width, bias=transform.bias)
        if transform.norm:
            self.norm = layer_norm(config, width)
        self.activation = check_activation(transform.activation)

    def __call__(self, x: mx.array) -> mx.array:
        """(…, D) → (…, width)."""
        x = activate(self.activation, self.dense(x))
        return self.norm(x) if "norm" in self else x


class MaskedLM(nn.Module):
    """Scores of every word of the vocabulary, through the word embeddings turned round ("tied")."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = DenseTransform(config, config.heads.masked_lm, config.embedding_size)
        if config.heads.masked_lm_bias:
            self.bias = mx.zeros(config.vocab_size)

    def __call__(self, hidden: mx.array, words: nn.Embedding | nn.QuantizedEmbedding) -> mx.array:
        """Scores words.

        Args:
            hidden: (…, D); only the places wanted, the product with the vocabulary is the dearest of the model.
            words: (V, E), the encoder's own.

        Returns:
            Logits (…, V).
        """
        logits = words.as_linear(self.transform(hidden))
        return logits + self.bias if "bias" in self else logits


class SentenceOrder(nn.Module):
    """How two texts belong together: class 0 says that the second follows the first."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, 2)

    def __call__(self, pooled: mx.array) -> mx.array:
        """(B, D), the pooler's output → logits (B, 2)."""
        return self.dense(pooled)


class SequenceClassifier(nn.Module):
    """Scores of the classes of a whole input."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        heads = config.heads
        if heads.classifier is not None:
            self.transform = DenseTransform(config, heads.classifier, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, len(heads.labels))
        self.pooling = heads.classifier_pooling

    def __call__(self, output: EncoderOutput, attention_mask: mx.array | None = None) -> mx.array:
        """What the encoder gave, and (B, L), nonzero at real tokens → logits (B, classes)."""
        if "transform" not in self:
            assert output.pooler_output is not None  # checked when the head was loaded
            return self.out(output.pooler_output)
        pooled = pool(self.pooling, output, attention_mask).astype(output.last_hidden_state.dtype)
        return self.out(self.transform(pooled))


class TokenHead(nn.Module):
    """Scores of every token: of its classes, or of being the first and the last of an answer."""

    def __init__(self, config: EncoderConfig, classes: int) -> None:
        super().__init__()
        if config.heads.token is not None:
            self.transform = DenseTransform(config, config.heads.token, config.hidden_size)
        self.out = nn.Linear(config.hidden_size, classes)

    def __call__(self, hidden: mx.array) -> mx.array:
        """(…, D) → logits (…, classes)."""
        return self.out(self.transform(hidden) if "transform" in self else hidden)


class TokenClassifier(TokenHead):
    """Scores of the classes of every token."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, len(config.heads.labels))


class QuestionAnswering(TokenHead):
    """Scores of every token as the first and as the last of the answer."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config, 2)


class Discriminator(nn.Module):
    """Whether each token was put in the place of another (ELECTRA, arXiv:2003.10555)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = DenseTransform(config, Transform(config.hidden_act), config.hidden_size)
        self.out = nn.Linear(config.hidden_size, 1)

    def __call__(self, hidden: mx.array) -> mx.array:
        """(…, D) → logits (…), positive for a replaced token."""
        return self.out(self.transform(hidden)).squeeze(-1)


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


Head = MaskedLM | SentenceOrder | SequenceClassifier | TokenClassifier | QuestionAnswering | Discriminator
HEADS: dict[str, type[Head]] = {
    "masked_lm": MaskedLM,
    "next_sentence": SentenceOrder,
    "sentence_order": SentenceOrder,
    "sequence_classifier": SequenceClassifier,
    "token_classifier": TokenClassifier,
    "question_answering": QuestionAnswering,
    "discriminator": Discriminator,
}


def _check_ids(name: str, ids: mx.array, rows: int, table: str) -> None:
    low, high = (cast(int, bound.item()) for bound in (ids.min(), ids.max()))
    if not 0 <= low <= high < rows:
        raise InputError(f"{name} are from {low} to {high}, the {table} has ids from 0 to {rows - 1}")


class Network(nn.Module):
    """An encoder and the heads on it; calling it runs the encoder alone."""

    def __init__(self, config: EncoderConfig, heads: Iterable[str] = ()) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.heads: dict[str, Head] = {name: HEADS[name](config) for name in heads}

    def __call__(
        self, input_ids: mx.array, attention_mask: mx.array | None = None, token_type_ids: mx.array | None = None
    ) -> EncoderOutput:
        """See `Encoder`; ids are checked here, where they may come from anywhere.

        Raises:
            InputError: `input_ids` are no integers (B, L), or ids are no rows of their table: MLX would read past it.
        """
        whole = isinstance(input_ids, mx.array) and mx.issubdtype(input_ids.dtype, mx.integer) and input_ids.ndim == 2
        if not whole or not input_ids.size:
            raise InputError("input_ids are expected to be an array of integers (B, L), neither of them 0")
        config = self.encoder.config
        _check_ids("input_ids", input_ids, config.vocab_size, "vocabulary")
        if token_type_ids is not None and config.type_vocab_size:  # a model without segments has no use for them
            if token_type_ids.shape != input_ids.shape:
                raise InputError(f"token_type_ids have shape {token_type_ids.shape}, input_ids {input_ids.shape}")
            _check_ids("token_type_ids", token_type_ids, config.type_vocab_size, "table of segments")
        return self.encoder(input_ids, attention_mask, token_type_ids)

    # Each head takes what the encoder gave, or of that the part that it looks at: of a few tokens, say.

    def masked_lm(self, hidden: EncoderOutput | mx.array) -> mx.array:
        """Word logits (…, V) of the encoder's output or of hidden states (…, D)."""
        return self._head("masked_lm", MaskedLM)(_hidden(hidden), self.encoder.embeddings.word)

    def next_sentence(self, pooled: EncoderOutput | mx.array) -> mx.array:
        """Logits (B, 2) of the encoder's output or the pooler's (B, D); class 0: the second text follows the first."""
        return self._head("next_sentence", SentenceOrder)(_pooled(pooled))

    def sentence_order(self, pooled: EncoderOutput | mx.array) -> mx.array:
        """Logits (B, 2) of the encoder's output or the pooler's (B, D); class 0: the texts stand in their order."""
        return self._head("sentence_order", SentenceOrder)(_pooled(pooled))

    def sequence_classifier(self, output: EncoderOutput, attention_mask: mx.array | None = None) -> mx.array:
        """Logits (B, classes) of the encoder's output; `attention_mask` (B, L) as the encoder had it."""
        return self._head("sequence_classifier", SequenceClassifier)(output, attention_mask)

    def token_classifier(self, hidden: EncoderOutput | mx.array) -> mx.array:
        """Logits (…, classes) of the encoder's output or of hidden states (…, D)."""
        return self._head("token_classifier", TokenClassifier)(_hidden(hidden))

    def question_answering(self, hidden: EncoderOutput | mx.array) -> mx.array:
        """Logits (…, 2), of being the first and the last token of the answer, of the encoder's output or (…, D)."""
        return self._head("question_answering", QuestionAnswering)(_hidden(hidden))

    def discriminator(self, hidden: EncoderOutput | mx.array) -> mx.array:
        """Logits (…), positive for a replaced token, of the encoder's output or of hidden states (…, D)."""
        return self._head("discriminator", Discriminator)(_hidden(hidden))

    def _head(self, name: str, kind: type[H]) -> H:
        head = self.heads.get(name)
        if not isinstance(head, kind):
            raise CheckpointError(
                f"the network has no head {name!r}", hint=f"it has: {', '.join(self.heads) or 'none'}"
            )
        return head


def _hidden(output: EncoderOutput | mx.array) -> mx.array:
    return output.last_hidden_state if isinstance(output, EncoderOutput) else output


def _pooled(output: EncoderOutput | mx.array) -> mx.array:
    if not isinstance(output, EncoderOutput):
        return output
    if output.pooler_output is None:
        raise CheckpointError("the network has no pooler, whose output this head takes")
    return output.pooler_output
