"""The configuration of an encoder and its heads: facts are fields, different mathematics is a different type."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mlxbert.labels.labels import Labels


@dataclass(frozen=True)
class Absolute:
    """A learned vector per position, added to the word's.

    Attributes:
        max_position_embeddings: Rows of the position table.
        first_position: Row of the first token: 0 in BERT; pad id + 1 in models like RoBERTa, whose positions skip
            padding.
    """

    max_position_embeddings: int
    first_position: int = 0

    @property
    def max_length(self) -> int:
        """Maximum input length in tokens, special tokens included."""
        return self.max_position_embeddings - self.first_position

    @property
    def table(self) -> "Absolute":
        """The table of position vectors, if there is one."""
        return self


@dataclass(frozen=True)
class RelativeBias:
    """A learned number per head and distance, added to the scores of every layer, besides a table of positions (MPNet).

    Attributes:
        table: The table of position vectors.
        num_buckets: Rows of the table of biases; half of them for tokens on the right.
        max_distance: All distances from this one on share the last bucket.
    """

    table: Absolute
    num_buckets: int = 32
    max_distance: int = 128

    @property
    def max_length(self) -> int:
        """Maximum input length in tokens, special tokens included."""
        return self.table.max_length


@dataclass(frozen=True)
class Rotation:
    """How a layer rotates queries and keys (arXiv:2104.09864), and how far it attends.

    Attributes:
        theta: Base of the wavelengths.
        window: The greatest distance at which a token may be attended to; `None` for no limit.
        wavelength_scale: Factor of every wavelength ("NTK" scaling has a factor as well as a larger base).
        causal: Whether a token attends to itself and earlier tokens only.
    """

    theta: float
    window: int | None = None
    wavelength_scale: float = 1.0
    causal: bool = False


@dataclass(frozen=True)
class Rotary:
    """Queries and keys rotated by their position; no table.

    Attributes:
        max_length: Maximum input length in tokens, special tokens included.
        rotations: The rotation of each stored layer.
    """

    max_length: int
    rotations: tuple[Rotation, ...]
    table: None = None

    @property
    def causal(self) -> bool:
        """Whether a token attends to itself and earlier tokens only, in any layer."""
        return any(rotation.causal for rotation in self.rotations)


@dataclass(frozen=True)
class Alibi:
    """Scores lowered in proportion to the distance, with a different slope in each head; no table (arXiv:2108.12409).

    Attributes:
        max_length: Maximum input length in tokens, special tokens included.
    """

    max_length: int
    table: None = None


@dataclass(frozen=True)
class Disentangled:
    """Scores of content to content, content to position and position to content (DeBERTa, arXiv:2006.03654).

    Attributes:
        max_length: Maximum input length in tokens, special tokens included.
        table: An additional table of position vectors, if there is one.
        max_relative_positions: Distances are clipped to this; the table of distances has twice as many rows.
        buckets: Number of logarithmic buckets for the far distances on each side (version 2); 0 for none.
        content_to_position: Whether queries attend to distances.
        position_to_content: Whether distances attend to keys.
        shared_projections: Whether distances use the projections of the content; otherwise they have their own.
        norm: Whether the table of distances is normed.
    """

    max_length: int
    table: Absolute | None
    max_relative_positions: int
    buckets: int
    content_to_position: bool
    position_to_content: bool
    shared_projections: bool
    norm: bool

    @property
    def rows(self) -> int:
        """Rows of the table of distances."""
        return 2 * (self.buckets or self.max_relative_positions)


@dataclass(frozen=True)
class PostNorm:
    """Attention, add, norm, feed-forward, add, norm: the block of "Attention Is All You Need" (arXiv:1706.03762).

    Attributes:
        adds_input_twice: Whether the input is added to the normed attention once more, and normed again (Jina v2).
    """

    adds_input_twice: bool = False


@dataclass(frozen=True)
class PreNorm:
    """Norm, attention, add, norm, feed-forward, add; one more norm follows the last block.

    Attributes:
        first_norm: Whether the first layer has a norm before its attention; without one, the embeddings are normed.
        output_norms: Whether the outputs of attention and feed-forward are normed, too, before they are added.
    """

    first_norm: bool = True
    output_norms: bool = False


Positions = Absolute | RelativeBias | Rotary | Alibi | Disentangled
Block = PostNorm | PreNorm


@dataclass(frozen=True)
class Projection:
    """The projection of embeddings that are narrower than the model.

    Attributes:
        before_norm: Whether it precedes the norm, which is then as wide as the model.
        bias: Whether it has a bias.
    """

    before_norm: bool = False
    bias: bool = True


@dataclass(frozen=True)
class Convolution:
    """A convolution over the embeddings, added to the output of the first layer (DeBERTa v2).

    Attributes:
        kernel_size: Width of the kernel in tokens, an odd number.
        groups: Number of groups of channels.
        activation: The activation of its output.
    """

    kernel_size: int
    groups: int
    activation: str


@dataclass(frozen=True)
class Experts:
    """Layers with several feed-forward networks, of which each token uses a few (arXiv:1701.06538).

    Attributes:
        count: Number of experts.
        used: Number of experts per token: those with the highest router scores, weighted by a softmax over all scores.
        layers: The numbers of the layers with experts.
    """

    count: int
    used: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Biases:
    """Which layers of a block have a bias; `attention` stands for queries, keys and values."""

    attention: bool = True
    attention_output: bool = True
    up: bool = True
    down: bool = True
    norm: bool = True


@dataclass(frozen=True)
class Transform:
    """A dense layer, an activation and an optional norm before the last layer of many heads."""

    activation: str
    norm: bool = False
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Dropout rates in the encoder, by position; `None` where the family has none.

    Attributes:
        embeddings: On the embeddings, after their norm, but before a projection that follows the norm.
        attention: On the attention weights.
        attention_output: On the output of the attention's last projection.
        activation: On the input of the feed-forward's last projection.
        feed_forward: On the output of the feed-forward.
        distances: On the table of distances, drawn anew in every layer (DeBERTa).
        convolution: On the output of the convolution (DeBERTa v2).
    """

    embeddings: float | None = None
    attention: float | None = None
    attention_output: float | None = None
    activation: float | None = None
    feed_forward: float | None = None
    distances: float | None = None
    convolution: float | None = None


@dataclass(frozen=True, kw_only=True)
class Initialization:
    """How new weights are drawn: from a normal distribution with mean 0; biases are 0 and the weights of norms 1.

    Attributes:
        std: Standard deviation of the normal distribution.
        cutoff: The distribution is truncated at this number of standard deviations; `None` for no truncation.
        output_std: Standard deviation in layers that add to the residual stream, and in dense layers of heads.
        classifier_std: Standard deviation in the last layer of a head.
        zero_pad: Whether the embeddings of padding start at 0.
        sinusoidal_positions: Whether the table of positions starts as sines and cosines.
    """

    std: float = 0.02
    cutoff: float | None = None
    output_std: float | None = None
    classifier_std: float | None = None
    zero_pad: bool = True
    sinusoidal_positions: bool = False


@dataclass(frozen=True)
class HeadFacts:
    """How the families' versions of a head differ; some heads have subclasses with more fields, see `mlxbert.nn.heads`.

    Attributes:
        transform: The layers before the head's last layer; `None` for none.
        dropout: Rate of the dropout before the head's last layer; `None` where the family has none.
    """

    transform: Transform | None = None
    dropout: float | None = None


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The configuration of an encoder; fields are named as in a checkpoint's `config.json` where it has such a key.

    Attributes:
        embedding_size: Width of the embedding tables; smaller than `hidden_size` where the model projects them up.
        projection: The projection; `None` if there is none.
        layer_schedule: Which stored layer runs at each step; `(0, 1, 2)`, or `(0, 0, 0)` where layers are shared.
        num_key_value_heads: Number of heads of keys and values, each shared by equally many query heads
            (arXiv:2305.13245); `None` for as many as query heads.
        own_head_size: Width of an attention head where it is not `hidden_size / num_attention_heads`.
        attention_scale: Factor of the attention scores; `None` for 1 / sqrt(head size).
        query_key_norm: Norms of queries and keys before positions: over each `head`, or over `all` heads together.
        norm: The kind of all norms: LayerNorm, RMSNorm (arXiv:1910.07467), or RMSNorm with 1 added to its weight.
        embedding_norm: Whether the embeddings are normed.
        embedding_scale: Factor of the embeddings.
        wide_range: Whether hidden states exceed the range of float16.
        gated: Whether the feed-forward's activation gates a second projection (GLU, arXiv:2002.05202).
        experts: The layers with several feed-forward networks; `None` for none.
        pad_token_id: The token that pads the shorter inputs of a batch; masked out.
        type_vocab_size: Number of segment types; 0 where the model has no segments.
        pooler: Whether the model has a dense + tanh layer over the first token.
        dropout: Rates of dropout.
        initialization: How new weights are drawn.
        heads: The configuration of each head that models of the family can have, by its name in
            `mlxbert.nn.heads.HEADS`.
        labels: The classes of a classification head; `None` if `config.json` names them in an unusable way, which
            matters to classification heads only.
    """

    vocab_size: int
    hidden_size: int
    embedding_size: int
    layer_schedule: tuple[int, ...]
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    layer_norm_eps: float
    type_vocab_size: int
    pad_token_id: int
    positions: Positions
    projection: Projection | None = None
    num_key_value_heads: int | None = None
    own_head_size: int | None = None
    attention_scale: float | None = None
    query_key_norm: Literal["head", "all"] | None = None
    norm: Literal["layer", "rms", "rms_plus_one"] = "layer"
    embedding_norm: bool = True
    embedding_scale: float | None = None
    wide_range: bool = False
    block: Block = PostNorm()
    gated: bool = False
    experts: Experts | None = None
    biases: Biases = Biases()
    convolution: Convolution | None = None
    pooler: bool = True
    dropout: Dropout = Dropout()
    initialization: Initialization = Initialization()
    heads: Mapping[str, HeadFacts] = field(default_factory=dict, hash=False)
    labels: Labels | None = field(default_factory=Labels)

    @property
    def num_stored_layers(self) -> int:
        """The number of layers with their own weights."""
        return max(self.layer_schedule) + 1

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.own_head_size or self.hidden_size // self.num_attention_heads

    @property
    def max_length(self) -> int:
        """Maximum input length in tokens, special tokens included."""
        return self.positions.max_length
