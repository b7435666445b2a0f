"""The embeddings and the stack of layers: one encoder for every family.

With gradient checkpointing (arXiv:1604.06174), a layer's arrays are computed again for its gradients instead of kept.

Shapes: B batch, L length, D hidden size, H heads, E embedding size, S stored layers.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from mlxbert.config import EncoderConfig, PreNorm
from mlxbert.errors import InputError
from mlxbert.machine.device import in_plain_graphs, mx, nn
from mlxbert.nn import dropout
from mlxbert.nn.backend import Layers
from mlxbert.nn.blocks import EmbeddingConvolution, PostNormBlock, PreNormBlock, build_block
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.norms import build_norm
from mlxbert.nn.ops import Linear, backend
from mlxbert.nn.positions import Context, build_positions

Arrays = dict[str, mx.array]


def checkpointed(
    layer: PostNormBlock | PreNormBlock, x: mx.array, context: Context, key: mx.array | None
) -> tuple[mx.array, mx.array | None]:
    """Runs `layer(x, context)` with dropout masks from `key`; keeps only the inputs and outputs for the gradients.

    All arrays that need gradients, and the random key, are arguments of the function that is computed twice: gradients
    do not flow into arrays of a closure, and the second call must draw the same masks as the first.
    """
    learned = _learned(context)
    trainable = layer.trainable_parameters()

    def run(parameters: Arrays, x: mx.array, learned: Arrays, key: mx.array) -> list[mx.array]:
        layer.update(parameters)
        try:
            with dropout.seeded(mx.stop_gradient(key)), backend().unstaged():  # stages would keep their arrays
                y, weights = layer(x, _with_learned(context, learned))
        finally:
            layer.update(trainable)
        return [y] if weights is None else [y, weights]

    y, *weights = mx.checkpoint(run)(trainable, x, learned, mx.zeros(2, dtype=mx.uint32) if key is None else key)
    return y, weights[0] if weights else None


def _learned(context: Context) -> Arrays:
    """The arrays of a context that were computed from parameters."""
    arrays = {} if context.bias is None else {"bias": context.bias}
    return arrays if context.distances is None else {**arrays, "distances": context.distances.vectors}


def _with_learned(context: Context, learned: Arrays) -> Context:
    distances = context.distances
    if distances is not None:
        distances = distances._replace(vectors=learned["distances"])
    return replace(context, bias=learned.get("bias"), distances=distances)


_Hidden = tuple[list[mx.array], list[mx.array]]  # hidden states and attention weights


@dataclass(frozen=True)
class Batch:
    """Inputs for one forward pass."""

    input_ids: mx.array  # int32 (B, L)
    attention_mask: mx.array | None = None  # bool (B, L), or `None` when nothing is padded
    token_type_ids: mx.array | None = None  # int32 (B, L), or `None` when every segment is 0
    # The ids as Python numbers, if they are known without waiting for the device.
    ids: "KnownIds | None" = field(default=None, compare=False, repr=False)
    labelled_words: "LabelledWords | None" = None  # the places of labels and words, in inputs that are made of these


@dataclass(frozen=True)
class LabelledWords:
    """The places of labels and words in inputs that hold labels and the words of a text. Shapes: W words, C labels."""

    # int32 (B, W), the index of the first token of each word; -1 for a word without tokens and for padding.
    words: mx.array
    counts: mx.array  # int32 (B,), the number of words of each input
    labels: mx.array  # int32 (B, C), the index of the token before each label; 0 for padding


@dataclass(frozen=True)
class KnownIds:
    """The distinct ids of a batch, collected from the Python lists of its inputs."""

    tokens: frozenset[int]
    last_segment: int = 0  # the highest segment id

    def check(self, config: EncoderConfig) -> None:
        """Raises an InputError if ids are outside a model's tables, because MLX would read past their ends."""
        check_rows("input_ids", min(self.tokens), max(self.tokens), config.vocab_size, "vocabulary")
        if config.type_vocab_size:  # a model without segments ignores them
            check_rows("token_type_ids", 0, self.last_segment, config.type_vocab_size, "table of segments")


def check_rows(name: str, low: int, high: int, rows: int, table: str) -> None:
    """Raises an InputError unless a table of `rows` rows has every id from `low` to `high`."""
    if not 0 <= low <= high < rows:
        raise InputError(f"`{name}` has ids from {low} to {high}, but the {table} has ids from 0 to {rows - 1}")


def real_tokens(mask: mx.array) -> mx.array:
    """Converts a mask to bool: true where it is not 0."""
    return mask if mask.dtype == mx.bool_ else mask != 0


@dataclass(frozen=True)
class EncoderOutput:
    """The output of an encoder."""

    last_hidden_state: mx.array  # (B, L, D)
    # (B, D), the pooler's output for the first token; `None` if the model has no pooler. It is lazy, like every MLX
    # array, and costs nothing if it is not used.
    pooler_output: mx.array | None
    # The embeddings and the output of every layer, each (B, L, D), if requested.
    hidden_states: tuple[mx.array, ...] | None = None
    # The attention weights of every layer, each (B, H, L, L), if requested.
    attentions: tuple[mx.array, ...] | None = None
    attention_mask: mx.array | None = None  # the attention mask of the input, (B, L); `None` when nothing is padded
    input_ids: mx.array | None = None  # the tokens, (B, L)
    labelled_words: LabelledWords | None = None  # see `Batch`

    def select(self, rows: mx.array, columns: mx.array) -> "EncoderOutput":
        """Selects the hidden states (N, D) of single tokens, for heads over tokens.

        Args:
            rows: Integers (N,), the input of each token.
            columns: Integers (N,), the index of each token in its input.
        """
        hidden = self.last_hidden_state[rows, columns]
        return replace(self, last_hidden_state=hidden, pooler_output=None, hidden_states=None, attentions=None)


class Embeddings(nn.Module):
    """The normalized sum of word, position and segment vectors, projected if the model is wider than the sum."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, projection = config.embedding_size, config.projection
        self.word = nn.Embedding(config.vocab_size, width)
        if table := config.positions.table:
            self.position = nn.Embedding(table.max_position_embeddings, width)
            self.first_position = table.first_position
        if config.type_vocab_size:
            self.token_type = nn.Embedding(config.type_vocab_size, width)
        if projection is not None:
            self.projection = Linear(width, config.hidden_size, bias=projection.bias)
        self.projects_first = projection is not None and projection.before_norm
        if config.embedding_norm:
            self.norm = build_norm(config, config.hidden_size if self.projects_first else width)
        self.scale = config.embedding_scale
        self.dropout = KeyedDropout(config.dropout.embeddings)

    def _positions(self, input_ids: mx.array) -> mx.array:
        """The vectors of the positions, (L, E) or (B, L, E)."""
        if not self.first_position and in_plain_graphs():  # MLX leaves out a slice that is the whole table
            return self.position(mx.arange(input_ids.shape[1]))
        if not self.first_position:
            return self.position.weight[: input_ids.shape[1]]
        # Models like RoBERTa do not count padding, which has the row before the first position.
        pad = self.first_position - 1
        real = (input_ids != pad).astype(mx.int32)
        return self.position(pad + mx.cumsum(real, axis=1) * real)

    def _segments(self, token_type_ids: mx.array | None) -> mx.array:
        """The vectors of the segments, (E) or (B, L, E)."""
        table = self.token_type.weight
        if token_type_ids is None:
            return table[0]
        if not self.training:
            return self.token_type(token_type_ids)
        # The gradient of a product is a product; a scatter-add of B x L vectors to few rows takes ten times as long.
        return (token_type_ids[:, :, None] == mx.arange(table.shape[0])).astype(table.dtype) @ table

    def normalized(self, input_ids: mx.array, token_type_ids: mx.array | None) -> mx.array:
        """Returns the embeddings after the norm: (B, L) → (B, L, E), or (B, L, D) if a projection precedes the norm."""
        x = self.word(input_ids)
        if self.scale is not None:
            x = x * mx.array(self.scale, dtype=x.dtype)  # the factor is rounded, too
        if "position" in self:
            x = x + self._positions(input_ids)
        if "token_type" in self:
            # Segment 0 has a vector, too, which is added even without segment ids.
            x = x + self._segments(token_type_ids)
        x = self.projection(x) if self.projects_first else x
        return self.dropout(self.norm(x) if "norm" in self else x)

    def __call__(self, input_ids: mx.array, token_type_ids: mx.array | None) -> mx.array:
        """(B, L) → (B, L, D)."""
        x = self.normalized(input_ids, token_type_ids)
        return self.projection(x) if "projection" in self and not self.projects_first else x


class Pooler(nn.Module):
    """Applies a dense layer and tanh to the first token's hidden state."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = Linear(config.hidden_size, config.hidden_size)

    def __call__(self, hidden: mx.array) -> mx.array:
        """(B, L, D) → (B, D)."""
        return backend().activate("tanh", self.dense(hidden[:, 0]))


class Encoder(nn.Module):
    """Turns token ids into hidden states."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.positions = build_positions(config)
        self.layers = [build_block(config, layer) for layer in range(config.num_stored_layers)]
        if config.convolution is not None:
            self.convolution = EmbeddingConvolution(config, config.convolution)
        if isinstance(config.block, PreNorm):
            self.final_norm = build_norm(config)
        if config.pooler:
            self.pooler = Pooler(config)
        self.config = config
        # Whether training computes the arrays of each layer again for its gradients: this takes less memory and a third
        # more time, and gives the same gradients.
        self.checkpointing = False
        # The number of leading stored layers without gradients; unless it is 0, the embeddings have none, either.
        self.frozen = 0
        self.divisible = True  # whether the parts of a batch may be computed separately

    def __call__(
        self,
        input_ids: mx.array,
        attention_mask: mx.array | None = None,
        token_type_ids: mx.array | None = None,
        *,
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> EncoderOutput:
        """Runs the encoder.

        Args:
            input_ids: Integers (B, L), padded on the right with the pad token.
            attention_mask: (B, L), nonzero at real tokens; `None` when nothing is padded, which is faster.
            token_type_ids: Integers (B, L); `None` means segment 0 everywhere.
            output_hidden_states: Whether to return the hidden states of all layers.
            output_attentions: Whether to return the attention weights of all layers.
        """
        options = {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
        output: EncoderOutput = backend().run(self, (input_ids, attention_mask, token_type_ids), options)
        return output

    def run(self, arrays: Sequence[Any], options: Mapping[str, bool], layers: Layers[_Hidden]) -> EncoderOutput:
        """Runs the encoder on a batch or a part of it; `layers` runs the function that computes the layers."""
        input_ids, attention_mask, token_type_ids = arrays
        if input_ids.shape[1] > self.config.max_length:
            raise InputError(
                f"the input has {input_ids.shape[1]} tokens, but the model takes at most {self.config.max_length}"
            )
        mask = None if attention_mask is None else real_tokens(attention_mask)[:, None, None, :]
        x = embedded = self.embeddings(input_ids, token_type_ids)
        if mask is not None and self.config.is_static:  # a text without tokens has the vector 0, whatever the pooling
            x = mx.where(mask[:, 0, 0, :, None], x, 0)
        context = self.positions(Context(mask, options["output_attentions"]), input_ids.shape[1], x.dtype)

        keep = options["output_hidden_states"]
        hidden_states, attentions = layers(partial(self._run_layers, embedded, context, keep), x)
        x = hidden_states[-1]
        return EncoderOutput(
            last_hidden_state=x,
            pooler_output=self.pooler(x) if "pooler" in self else None,
            hidden_states=tuple(hidden_states) if keep else None,
            attentions=tuple(attentions) if context.output_attentions else None,
            attention_mask=attention_mask,
            input_ids=input_ids,
        )

    def _run_layers(self, embedded: mx.array, context: Context, keep: bool, x: mx.array) -> _Hidden:
        """Returns the hidden states, all of them or only the last, and the attention weights if requested."""
        hidden_states, attentions = [x], list[mx.array]()
        dropping = self.training and dropout.drops(self)
        for step, stored in enumerate(self.config.layer_schedule):
            x, weights = self._layer(stored, x, context, dropout.next_key() if dropping else None)
            if step == 0 and "convolution" in self:
                x = self.convolution(embedded, x, context.mask)
            hidden_states = [*hidden_states, x] if keep else [x]  # kept states take memory on a CPU
            attentions += [] if weights is None else [weights]
        if "final_norm" in self:
            hidden_states[-1] = self.final_norm(x)
        return hidden_states, attentions

    def _layer(
        self, stored: int, x: mx.array, context: Context, key: mx.array | None
    ) -> tuple[mx.array, mx.array | None]:
        """Runs a stored layer, whose dropout masks are drawn from `key`."""
        if self.training and self.checkpointing:
            return checkpointed(self.layers[stored], x, context, key)
        with dropout.seeded(key), backend().unfilled() if stored < self.frozen else contextlib.nullcontext():
            return self.layers[stored](x, context)
