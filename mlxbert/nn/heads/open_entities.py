"""The open-entity head of GLiNER (arXiv:2311.08526): scores each span of words for each label in the input.

The input holds the labels, each after a label token, and then the words of a text. A label is the hidden state of its
label token, a word the hidden state of its first token.

Shapes: B batch, L length, D hidden size, W words, S span widths, C labels, F `width`, the size of words and labels.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from mlxbert.config import EncoderConfig, HeadFacts
from mlxbert.machine.device import mx, nn
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.encoder import Encoder, EncoderOutput, LabelledWords
from mlxbert.nn.heads.head import HeadSpec
from mlxbert.nn.ops import Linear, backend

SpanMode = Literal["markerV0", "marker", "token_level"]
SPAN_MODES: tuple[SpanMode, ...] = ("markerV0", "marker", "token_level")
MAX_RNN_LAYERS = 8


@dataclass(frozen=True, kw_only=True)
class OpenEntityFacts(HeadFacts):
    """The settings of the head."""

    width: int = 512  # the size of the vectors of words and labels
    # How spans are scored. `markerV0` and `marker` score spans of up to `max_width` words; `token_level` scores each
    # word as the first, the last, and a word inside of an entity.
    span_mode: SpanMode = "markerV0"
    max_width: int = 12  # the maximum number of words in a span; `token_level` has no maximum
    max_words: int = 384  # the maximum number of words in an input
    rnn_layers: int = 1  # the number of layers of the LSTM over the words; 0 for no LSTM
    label_token: str = "<<ENT>>"  # the token before each label, as in the vocabulary
    label_token_id: int | None = None  # its id, if the configuration states it
    end_token: str = "<<SEP>>"  # the token between the labels and the words
    # Whether a label is the hidden state after its label token instead of that of the label token.
    after_label_token: bool = False


class _TwoLayers(nn.Module):
    """Two dense layers with a ReLU between them."""

    def __init__(self, inputs: int, inner: int, outputs: int, dropout: float | None) -> None:
        super().__init__()
        self.inner, self.dropout, self.outer = Linear(inputs, inner), KeyedDropout(dropout), Linear(inner, outputs)

    def __call__(self, x: mx.array) -> mx.array:
        """(…, inputs) → (…, outputs)."""
        return self.outer(self.dropout(nn.relu(self.inner(x))))


class _Direction(nn.Module):
    """An LSTM in one direction: `of_input` and `of_state` compute the four gates in the order i, f, g, o."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.of_input, self.of_state = Linear(inputs, 4 * size), Linear(size, 4 * size)
        self._size = size

    def __call__(self, x: mx.array) -> mx.array:
        """(B, W, inputs) → (B, W, size)."""
        gates, states = self.of_input(x), []
        state = cell = mx.zeros((x.shape[0], self._size), dtype=x.dtype)
        with backend().step_by_step():
            for word in range(x.shape[1]):
                i, f, g, o = mx.split(gates[:, word] + self.of_state(state), 4, axis=-1)
                cell = mx.sigmoid(f) * cell + mx.sigmoid(i) * mx.tanh(g)
                state = mx.sigmoid(o) * mx.tanh(cell)
                states.append(state)
        return mx.stack(states, axis=1)


class _BothDirections(nn.Module):
    """A layer of an LSTM in both directions, each of which computes half of the output."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.ahead, self.back = _Direction(inputs, size // 2), _Direction(inputs, size // 2)

    def __call__(self, x: mx.array, reverse: mx.array) -> mx.array:
        """(B, W, inputs) → (B, W, size); `reverse` (B, W) has the index of each word in the reversed text."""
        order = reverse[..., None]
        back = self.back(mx.take_along_axis(x, order, axis=1))
        return mx.concatenate([self.ahead(x), mx.take_along_axis(back, order, axis=1)], axis=-1)


class _SpanMarker(nn.Module):
    """Scores spans by their first and last words, without computing a vector for each span.

    A span's vector would be an affine function of `relu([start; end])`, or of the inner layer of `out`; its product
    with a label is the same as a product of this layer with a vector for each label.
    """

    def __init__(self, facts: OpenEntityFacts) -> None:
        super().__init__()
        size, rate, two_layers = facts.width, facts.dropout, facts.span_mode == "markerV0"
        inner = 4 * size if two_layers else 2 * size
        self.start, self.end = (_TwoLayers(size, inner, size, rate) for _ in range(2))
        self.out = _TwoLayers(2 * size, inner, size, rate) if two_layers else Linear(2 * size, size)
        self.label = _TwoLayers(size, 4 * size, size, rate)
        self._widths = facts.max_width

    def __call__(self, words: mx.array, labels: mx.array) -> mx.array:
        """Words (B, W, F) and labels (B, C, F) → logits (B, W, S, C) of the spans from each word on."""
        start, end, labels = nn.relu(self.start(words)), nn.relu(self.end(words)), self.label(labels)
        last = self.out.outer if isinstance(self.out, _TwoLayers) else self.out
        probes = (labels @ last.weight).swapaxes(1, 2)
        constant = (labels @ last.bias)[:, None, None, :]
        width = words.shape[-1]
        if not isinstance(self.out, _TwoLayers):
            first, second = start @ probes[:, :width], end @ probes[:, width:]
            return first[:, :, None] + self._ends(second) + constant
        inner = self.out.inner
        first = start @ inner.weight[:, :width].T + inner.bias
        spans = nn.relu(first[:, :, None] + self._ends(end @ inner.weight[:, width:].T))
        return self.out.dropout(spans) @ probes[:, None] + constant

    def _ends(self, x: mx.array) -> mx.array:
        """Values of words (B, W, …) → the values of the last word of each span (B, W, S, …); past the end, any word."""
        words = x.shape[1]
        last = mx.minimum(mx.arange(words)[:, None] + mx.arange(self._widths), words - 1)
        return x[:, last]


class _TokenScorer(nn.Module):
    """Scores each word as the first, the last, and a word inside of an entity with each label."""

    def __init__(self, facts: OpenEntityFacts) -> None:
        super().__init__()
        size = facts.width
        self.word, self.label = Linear(size, 2 * size), Linear(size, 2 * size)
        self.out = _TwoLayers(3 * size, 4 * size, 3, facts.dropout)

    def __call__(self, words: mx.array, labels: mx.array) -> mx.array:
        """Words (B, W, F) and labels (B, C, F) → logits (B, W, 3, C): first, last, inside."""
        size, inner = words.shape[-1], self.out.inner
        word, word_factor = mx.split(self.word(words), 2, axis=-1)
        label, label_factor = mx.split(self.label(labels), 2, axis=-1)
        of_word, of_label, of_both = (inner.weight[:, a:b].T for a, b in pairwise(range(0, 4 * size, size)))
        product = word_factor[:, :, None] * label_factor[:, None]
        x = product @ of_both + (word @ of_word)[:, :, None] + (label @ of_label)[:, None] + inner.bias
        return self.out.outer(self.out.dropout(nn.relu(x))).swapaxes(2, 3)


class OpenEntities(nn.Module):
    """Scores spans of words, or single words, for the labels in the input."""

    def __init__(self, config: EncoderConfig, facts: OpenEntityFacts) -> None:
        super().__init__()
        if facts.width != config.hidden_size:
            self.projection = Linear(config.hidden_size, facts.width)
        if facts.rnn_layers:
            self.rnn = [_BothDirections(facts.width, facts.width) for _ in range(facts.rnn_layers)]
        self.scorer = _TokenScorer(facts) if facts.span_mode == "token_level" else _SpanMarker(facts)
        self._after = int(facts.after_label_token)

    def __call__(self, output: EncoderOutput, encoder: Encoder) -> mx.array:
        """Hidden states → logits (B, W, S, C): of the spans from each word on, by width; or (B, W, 3, C) of the words.

        If the input was not made of labels and words, every token is a word, and the first token is the only label.
        """
        hidden, places = output.last_hidden_state, output.labelled_words or _all_tokens(output)
        words, labels = _gather(hidden, places.words), _gather(hidden, places.labels + self._after)
        if "projection" in self:
            words, labels = self.projection(words), self.projection(labels)
        present = (places.words >= 0)[..., None]  # a word may have no tokens
        words = mx.where(present, words, 0)
        if "rnn" in self:
            number = mx.arange(words.shape[1])
            reverse = mx.where(number < places.counts[:, None], places.counts[:, None] - 1 - number, number)
            for layer in self.rnn:
                words = layer(words, reverse)
        return self.scorer(words, labels)


def _gather(hidden: mx.array, places: mx.array) -> mx.array:
    return mx.take_along_axis(hidden, mx.maximum(places, 0)[..., None], axis=1)


def _all_tokens(output: EncoderOutput) -> LabelledWords:
    rows, length = output.last_hidden_state.shape[:2]
    mask = output.attention_mask
    counts = mx.full((rows,), length) if mask is None else (mask != 0).sum(axis=1)
    words = mx.broadcast_to(mx.arange(length), (rows, length))
    return LabelledWords(words.astype(mx.int32), counts.astype(mx.int32), mx.zeros((rows, 1), mx.int32))


SPEC = HeadSpec(
    module=OpenEntities,
    scope="span",
    class_names=("GLiNER",),
    facts=OpenEntityFacts(),
    task="tag",
    title="open-entity head",
    hint="urchade/gliner_medium-v2.1 has one; for your own data: "
    "`mlxbert.finetune('tag', train=FILE, output=FOLDER, open=True)`",
)
