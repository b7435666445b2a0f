"""The configuration of an encoder and its heads: a field for each setting, a class for each kind of computation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from mlxbert.labels.labels import Labels


@dataclass(frozen=True)
class Absolute:
    """Absolute positions: a learned vector for each position is added to the word embedding."""

    max_position_embeddings: int  # number of rows in the position table
    # The row of the first token: 0 in BERT; pad id + 1 in models like RoBERTa, whose positions skip padding.
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
    """Relative positions: a learned bias for each head and distance is added to the scores of every layer (MPNet)."""

    table: Absolute  # the table of absolute position vectors, which the model also has
    num_buckets: int = 32  # number of rows in the bias table; half of them are for tokens on the right
    max_distance: int = 128  # all distances from this one on share the last bucket

    @property
    def max_length(self) -> int:
        """Maximum input length in tokens, special tokens included."""
        return self.table.max_length


@dataclass(frozen=True)
class Rotation:
    """How a layer rotates queries and keys (arXiv:2104.09864), and how far it attends."""

    theta: float  # base of the wavelengths
    window: int | None = None  # the greatest distance at which a token may be attended to; `None` for no limit
    # Factor by which every wavelength is multiplied; "NTK" scaling also has a larger `theta`.
    wavelength_scale: float = 1.0
    causal: bool = False  # whether a token attends only to itself and to earlier tokens


@dataclass(frozen=True)
class Rotary:
    """Rotary positions: queries and keys are rotated by their position; there is no position table."""

    max_length: int  # maximum input length in tokens, special tokens included
    rotations: tuple[Rotation, ...]  # the rotation of each stored layer
    table: None = None

    @property
    def causal(self) -> bool:
        """Whether a token attends only to itself and to earlier tokens, in at least one layer."""
        return any(rotation.causal for rotation in self.rotations)


@dataclass(frozen=True)
class Alibi:
    """ALiBi (arXiv:2108.12409): scores are lowered in proportion to the distance, with another slope in each head."""

    max_length: int  # maximum input length in tokens, special tokens included
    table: None = None


@dataclass(frozen=True)
class Disentangled:
    """DeBERTa's disentangled attention (arXiv:2006.03654): separate scores for content and for distances."""

    max_length: int  # maximum input length in tokens, special tokens included
    table: Absolute | None  # the table of absolute position vectors; `None` if the model has only distances
    # The maximum to which distances are clipped. Without buckets, the distance table has twice as many rows.
    max_relative_positions: int
    buckets: int  # number of buckets on each side, half of them logarithmic for long distances (version 2); 0 for none
    content_to_position: bool  # whether queries attend to distances
    position_to_content: bool  # whether distances attend to keys
    shared_projections: bool  # whether distances use the projections of the content instead of their own
    norm: bool  # whether the distance table is normalized

    @property
    def rows(self) -> int:
        """Number of rows in the distance table."""
        return 2 * (self.buckets or self.max_relative_positions)


@dataclass(frozen=True)
class Unordered:
    """No positions: the order of tokens has no influence (static models)."""

    max_length: int  # maximum input length in tokens, special tokens included
    table: None = None


@dataclass(frozen=True)
class PostNorm:
    """Attention, add, norm, feed-forward, add, norm: the block of "Attention Is All You Need" (arXiv:1706.03762)."""

    # Whether the input is added once more after the attention's norm, followed by another norm (Jina v2).
    adds_input_twice: bool = False


@dataclass(frozen=True)
class PreNorm:
    """Norm, attention, add, norm, feed-forward, add; one more norm follows the last block."""

    # Whether the first layer has a norm before its attention; if not, the embeddings are normalized.
    first_norm: bool = True
    # Whether the outputs of attention and feed-forward are also normalized before they are added.
    output_norms: bool = False


Positions = Absolute | RelativeBias | Rotary | Alibi | Disentangled | Unordered
Block = PostNorm | PreNorm


@dataclass(frozen=True)
class Projection:
    """The projection of embeddings that are narrower than the model."""

    before_norm: bool = False  # whether the projection precedes the norm; the norm is then as wide as the model
    bias: bool = True


@dataclass(frozen=True)
class Convolution:
    """A convolution over the embeddings, added to the output of the first layer (DeBERTa v2)."""

    kernel_size: int  # width of the kernel in tokens, an odd number
    groups: int  # number of groups of channels
    activation: str  # the activation that is applied to the output of the convolution


@dataclass(frozen=True)
class Experts:
    """Layers with several feed-forward networks, the experts; each token uses a few of them (arXiv:1701.06538)."""

    count: int  # number of experts
    # Number of experts per token. The router's highest scores choose the experts; a softmax over all scores weights
    # them.
    used: int
    layers: tuple[int, ...]  # the indices of the stored layers that have experts


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
    """Dropout rates in the encoder; `None` where the family has no dropout."""

    # Rate for the embeddings, after their norm, but before a projection that follows the norm.
    embeddings: float | None = None
    attention: float | None = None  # rate for the attention weights
    attention_output: float | None = None  # rate for the output of the attention's last projection
    activation: float | None = None  # rate for the input of the feed-forward's last projection
    feed_forward: float | None = None  # rate for the output of the feed-forward
    distances: float | None = None  # rate for the distance table; every layer draws its own mask (DeBERTa)
    convolution: float | None = None  # rate for the output of the convolution (DeBERTa v2)


@dataclass(frozen=True, kw_only=True)
class Initialization:
    """How new weights are drawn: from a normal distribution with mean 0; biases are 0 and the weights of norms 1."""

    std: float = 0.02  # standard deviation of the normal distribution
    # The distribution is truncated at this number of standard deviations; `None` for no truncation.
    cutoff: float | None = None
    # Standard deviation in layers that add to the residual stream, and in dense layers of heads.
    output_std: float | None = None
    classifier_std: float | None = None  # standard deviation in the last layer of each head
    zero_pad: bool = True  # whether the embeddings of padding start at 0
    sinusoidal_positions: bool = False  # whether the table of positions starts as sines and cosines


@dataclass(frozen=True)
class HeadFacts:
    """The settings of a head that differ between families; some heads have more settings (see `mlxbert.nn.heads`)."""

    transform: Transform | None = None  # the layers before the head's last layer; `None` if there are none
    dropout: float | None = None  # rate of the dropout before the head's last layer; `None` where the family has none


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The configuration of an encoder; fields are named as in a checkpoint's `config.json` where it has such a key."""

    vocab_size: int
    hidden_size: int
    embedding_size: int  # width of the embedding tables; smaller than `hidden_size` where the model projects them up
    # The stored layer that runs at each step: `(0, 1, 2)`, or `(0, 0, 0)` if steps share a layer. It is empty for a
    # static model.
    layer_schedule: tuple[int, ...]
    num_attention_heads: int
    intermediate_size: int
    hidden_act: str
    layer_norm_eps: float
    type_vocab_size: int  # number of segment types; 0 where the model has no segments
    pad_token_id: int  # the token that pads the shorter inputs of a batch; masked out
    positions: Positions
    projection: Projection | None = None  # the projection of embeddings to `hidden_size`; `None` if there is none
    # Number of heads of keys and values, each shared by equally many query heads (arXiv:2305.13245); `None` if there
    # are as many as query heads.
    num_key_value_heads: int | None = None
    # Width of an attention head if it differs from `hidden_size / num_attention_heads`.
    own_head_size: int | None = None
    # Factor by which attention scores are multiplied; `None` for 1 / sqrt(head size).
    attention_scale: float | None = None
    # How queries and keys are normalized before positions are applied: over each `head`, or over `all` heads together;
    # `None` if they are not.
    query_key_norm: Literal["head", "all"] | None = None
    # The kind of all norms: LayerNorm, RMSNorm (arXiv:1910.07467), or RMSNorm with 1 added to its weight.
    norm: Literal["layer", "rms", "rms_plus_one"] = "layer"
    embedding_norm: bool = True  # whether the embeddings are normalized
    embedding_scale: float | None = None  # factor by which the embeddings are multiplied
    wide_range: bool = False  # whether hidden states exceed the range of float16
    block: Block = PostNorm()
    gated: bool = False  # whether the feed-forward's activation gates a second projection (GLU, arXiv:2002.05202)
    experts: Experts | None = None  # the layers with several feed-forward networks; `None` if there are none
    biases: Biases = Biases()
    convolution: Convolution | None = None
    pooler: bool = True  # whether the model has a dense + tanh layer over the first token
    dropout: Dropout = Dropout()  # the dropout rates
    initialization: Initialization = Initialization()  # how new weights are drawn
    # The configuration of each head that models of the family can have, by its name in `mlxbert.nn.heads.HEADS`.
    heads: Mapping[str, HeadFacts] = field(default_factory=dict, hash=False)
    # The classes of a classification head; `None` if the names in `config.json` cannot be used, which is an error only
    # for models with a classification head.
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
