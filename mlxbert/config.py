"""The configuration of an encoder and its heads: a field for each setting, a class for each kind of computation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mlxbert.labels.labels import Labels


@dataclass(frozen=True)
class Absolute:
    """Absolute positions: a learned vector for each position is added to the word embedding.

    Attributes:
        max_position_embeddings: Number of rows in the position table.
        first_position: The row of the first token: 0 in BERT; pad id + 1 in models like RoBERTa, whose positions skip
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
    """Relative positions: a learned bias for each head and distance is added to the scores of every layer (MPNet).

    Attributes:
        table: The table of absolute position vectors, which the model also has.
        num_buckets: Number of rows in the bias table; half of them are for tokens on the right.
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
        wavelength_scale: Factor by which every wavelength is multiplied; "NTK" scaling also has a larger `theta`.
        causal: Whether a token attends only to itself and to earlier tokens.
    """

    theta: float
    window: int | None = None
    wavelength_scale: float = 1.0
    causal: bool = False


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: queries and keys are rotated by their position; there is no position table.

    Attributes:
        max_length: Maximum input length in tokens, special tokens included.
        rotations: The rotation of each stored layer.
    """

    max_length: int
    rotations: tuple[Rotation, ...]
    table: None = None

    @property
    def causal(self) -> bool:
        """Whether a token attends only to itself and to earlier tokens, in at least one layer."""
        return any(rotation.causal for rotation in self.rotations)


@dataclass(frozen=True)
class Alibi:
    """ALiBi (arXiv:2108.12409): scores are lowered in proportion to the distance, with a different slope in each head.

    Attributes:
        max_length: Maximum input length in tokens, special tokens included.
    """

    max_length: int
    table: None = None


@dataclass(frozen=True)
class Disentangled:
    """DeBERTa's disentangled attention (arXiv:2006.03654): separate scores for content and for distances.

    Attributes:
        max_length: Maximum input length in tokens, special tokens included.
        table: The table of absolute position vectors; `None` if the model has only distances.
        max_relative_positions: The maximum to which distances are clipped. Without buckets, the distance table has
            twice as many rows.
        buckets: Number of buckets on each side, half of them logarithmic for long distances (version 2); 0 for none.
        content_to_position: Whether queries attend to distances.
        position_to_content: Whether distances attend to keys.
        shared_projections: Whether distances use the projections of the content instead of their own.
        norm: Whether the distance table is normalized.
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
        """Number of rows in the distance table."""
        return 2 * (self.buckets or self.max_relative_positions)


@dataclass(frozen=True)
class Unordered:
    """No positions: the order of tokens has no influence (static models).

    Attributes:
        max_length: Maximum input length in tokens, special tokens included.
    """

    max_length: int
    table: None = None


@dataclass(frozen=True)
class PostNorm:
    """Attention, add, norm, feed-forward, add, norm: the block of "Attention Is All You Need" (arXiv:1706.03762).

    Attributes:
        adds_input_twice: Whether the input is added once more after the attention's norm, followed by another norm
            (Jina v2).
    """

    adds_input_twice: bool = False


@dataclass(frozen=True)
class PreNorm:
    """Norm, attention, add, norm, feed-forward, add; one more norm follows the last block.

    Attributes:
        first_norm: Whether the first layer has a norm before its attention; if not, the embeddings are normalized.
        output_norms: Whether the outputs of attention and feed-forward are also normalized before they are added.
    """

    first_norm: bool = True
    output_norms: bool = False


Positions = Absolute | RelativeBias | Rotary | Alibi | Disentangled | Unordered
Block = PostNorm | PreNorm


@dataclass(frozen=True)
class Projection:
    """The projection of embeddings that are narrower than the model.

    Attributes:
        before_norm: Whether the projection precedes the norm; the norm is then as wide as the model.
        bias: Whether the projection has a bias.
    """

    before_norm: bool = False
    bias: bool = True


@dataclass(frozen=True)
class Convolution:
    """A convolution over the embeddings, added to the output of the first layer (DeBERTa v2).

    Attributes:
        kernel_size: Width of the kernel in tokens, an odd number.
        groups: Number of groups of channels.
        activation: The activation that is applied to the output of the convolution.
    """

    kernel_size: int
    groups: int
    activation: str


@dataclass(frozen=True)
class Experts:
    """Layers with several feed-forward networks, the experts; each token uses a few of them (arXiv:1701.06538).

    Attributes:
        count: Number of experts.
        used: Number of experts per token. The router's highest scores choose the experts; a softmax over all scores
            weights them.
        layers: The indices of the stored layers that have experts.
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
    """The layers that precede the last layer in many heads: a dense layer, an activation and an optional norm."""

    activation: str
    norm: bool = False
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Dropout rates in the encoder; `None` where the family has no dropout.

    Attributes:
        embeddings: Rate for the embeddings, after their norm, but before a projection that follows the norm.
        attention: Rate for the attention weights.
        attention_output: Rate for the output of the attention's last projection.
        activation: Rate for the input of the feed-forward's last projection.
        feed_forward: Rate for the output of the feed-forward.
        distances: Rate for the distance table; every layer draws its own mask (DeBERTa).
        convolution: Rate for the output of the convolution (DeBERTa v2).
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
        classifier_std: Standard deviation in the last layer of each head.
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
    """The settings of a head that differ between families; some heads have more settings (see `mlxbert.nn.heads`).

    Attributes:
        transform: The layers before the head's last layer; `None` if there are none.
        dropout: Rate of the dropout before the head's last layer; `None` where the family has none.
    """

    transform: Transform | None = None
    dropout: float | None = None


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The configuration of an encoder; fields are named as in a checkpoint's `config.json` where it has such a key.

    Attributes:
        embedding_size: Width of the embedding tables; smaller than `hidden_size` where the model projects them up.
        projection: The projection of embeddings to `hidden_size`; `None` if there is none.
        layer_schedule: The stored layer that runs at each step: `(0, 1, 2)`, or `(0, 0, 0)` if steps share a layer. It
            is empty for a static model.
        num_key_value_heads: Number of heads of keys and values, each shared by equally many query heads
            (arXiv:2305.13245); `None` if there are as many as query heads.
        own_head_size: Width of an attention head if it differs from `hidden_size / num_attention_heads`.
        attention_scale: Factor by which attention scores are multiplied; `None` for 1 / sqrt(head size).
        query_key_norm: How queries and keys are normalized before positions are applied: over each `head`, or over
            `all` heads together; `None` if they are not.
        norm: The kind of all norms: LayerNorm, RMSNorm (arXiv:1910.07467), or RMSNorm with 1 added to its weight.
        embedding_norm: Whether the embeddings are normalized.
        embedding_scale: Factor by which the embeddings are multiplied.
        wide_range: Whether hidden states exceed the range of float16.
        gated: Whether the feed-forward's activation gates a second projection (GLU, arXiv:2002.05202).
        experts: The layers with several feed-forward networks; `None` if there are none.
        pad_token_id: The token that pads the shorter inputs of a batch; masked out.
        type_vocab_size: Number of segment types; 0 where the model has no segments.
        pooler: Whether the model has a dense + tanh layer over the first token.
        dropout: The dropout rates.
        initialization: How new weights are drawn.
        heads: The configuration of each head that models of the family can have, by its name in
            `mlxbert.nn.heads.HEADS`.
        labels: The classes of a classification head; `None` if the names in `config.json` cannot be used, which is an
            error only for models with a classification head.
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
        return max(self.layer_schedule, default=-1) + 1

    @property
    def is_static(self) -> bool:
        """Whether the encoder is only a table with a vector for each token, without layers."""
        return not self.layer_schedule

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.own_head_size or self.hidden_size // self.num_attention_heads

    @property
    def max_length(self) -> int:
        """Maximum input length in tokens, special tokens included."""
        return self.positions.max_length
