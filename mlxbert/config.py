"""What there is to know about an encoder and its heads: facts are fields, different mathematics is a different type."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Absolute:
    """A learned vector per position, added to the word's.

    Attributes:
        max_position_embeddings: Rows of the position table.
        first_position: Row of the first token; 0 in BERT, pad id + 1 in RoBERTa and its kin, where tokens that are the
            pad token are not counted.
    """

    max_position_embeddings: int
    first_position: int = 0

    @property
    def max_length(self) -> int:
        """The longest input in tokens, special tokens included."""
        return self.max_position_embeddings - self.first_position

    @property
    def table(self) -> "Absolute":
        """The table of position vectors, if there is one."""
        return self


@dataclass(frozen=True)
class RelativeBias:
    """A learned number per head and distance, added to the scores of every layer; beside a table of positions (MPNet).

    Attributes:
        table: The table of position vectors.
        num_buckets: Rows of the table of biases; half of them for tokens on the right.
        max_distance: From this distance on all share the last bucket.
    """

    table: Absolute
    num_buckets: int = 32
    max_distance: int = 128

    @property
    def max_length(self) -> int:
        """The longest input in tokens, special tokens included."""
        return self.table.max_length


@dataclass(frozen=True)
class Rotation:
    """How a layer rotates queries and keys (arXiv:2104.09864), and how far it sees.

    Attributes:
        theta: Base of the wave lengths.
        window: The greatest distance at which a token is seen; `None` sees all.
        stretch: Factor of every wave length ("NTK" scaling has one, beside a larger base).
    """

    theta: float
    window: int | None = None
    stretch: float = 1.0


@dataclass(frozen=True)
class Rotary:
    """Queries and keys rotated by their position; no table.

    Attributes:
        max_length: The longest input in tokens, special tokens included.
        rotations: That of each stored layer.
    """

    max_length: int
    rotations: tuple[Rotation, ...]
    table: None = None


@dataclass(frozen=True)
class Disentangled:
    """Scores of content to content, content to position and position to content (DeBERTa, arXiv:2006.03654).

    Attributes:
        max_length: The longest input in tokens, special tokens included.
        table: A table of position vectors, where there is one besides.
        reach: Distances from which on all are alike; the table of distances has twice as many rows.
        buckets: Into how many buckets a side far distances fall, logarithmically (version 2); 0 for none.
        content_to_position: Whether queries look at distances.
        position_to_content: Whether distances look at keys.
        shared_projections: Whether distances go through the projections of the content; else through their own.
        norm: Whether the table of distances is normed.
    """

    max_length: int
    table: Absolute | None
    reach: int
    buckets: int
    content_to_position: bool
    position_to_content: bool
    shared_projections: bool
    norm: bool

    @property
    def rows(self) -> int:
        """Rows of the table of distances."""
        return 2 * (self.buckets or self.reach)


@dataclass(frozen=True)
class PostNorm:
    """Attention, add, norm, feed-forward, add, norm: the block of "Attention Is All You Need" (arXiv:1706.03762)."""


@dataclass(frozen=True)
class PreNorm:
    """Norm, attention, add, norm, feed-forward, add; the first norm is left out and one more ends the stack."""


Positions = Absolute | RelativeBias | Rotary | Disentangled
Block = PostNorm | PreNorm


@dataclass(frozen=True)
class Projection:
    """Embeddings narrower than the model, brought to its width.

    Attributes:
        before_norm: Whether that happens before the norm, which is then as wide as the model.
        bias: Whether it has a bias.
    """

    before_norm: bool = False
    bias: bool = True


@dataclass(frozen=True)
class Convolution:
    """A convolution over the embeddings, added to what the first layer gives (DeBERTa v2).

    Attributes:
        kernel_size: Tokens it sees, an odd number.
        groups: Into how many independent parts the width falls.
        activation: What follows it.
    """

    kernel_size: int
    groups: int
    activation: str


@dataclass(frozen=True)
class Biases:
    """Which layers of a block have a bias."""

    attention: bool = True
    up: bool = True
    down: bool = True
    norm: bool = True


@dataclass(frozen=True)
class Transform:
    """A dense layer and an activation, perhaps a norm: what stands before the last layer of many heads."""

    activation: str
    norm: bool = False
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The facts in which heads differ.

    Attributes:
        labels: Names of the classes of a classification head, in the order of its outputs.
        labels_problem: Why there are none that can be used; only classification heads need them.
        problem: `regression`, `single_label_classification`, `multi_label_classification`, or `None` where the
            checkpoint does not say.
        masked_lm: What the masked-word head does before the product with the word embeddings.
        masked_lm_bias: Whether each word has a bias in it.
        classifier: What a sequence classifier does with the pooled vector; `None` where it takes the encoder's pooler.
        classifier_pooling: `cls` or `mean`, where it does not take the pooler.
        token: What heads over tokens (labels, answers) do before their last layer, if anything.
    """

    labels: tuple[str, ...] = ("LABEL_0", "LABEL_1")
    labels_problem: str | None = None
    problem: str | None = None
    masked_lm: Transform = Transform("gelu", norm=True)
    masked_lm_bias: bool = True
    classifier: Transform | None = None
    classifier_pooling: str = "cls"
    token: Transform | None = None


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The facts in which encoders differ; names as in a checkpoint's `config.json` where it has one.

    Attributes:
        embedding_size: Width of the embedding tables; smaller than `hidden_size` where the model projects them up.
        projection: How it does that; `None` where it does not.
        layer_schedule: Which stored layer runs at each step; `(0, 1, 2)`, or `(0, 0, 0)` where layers are shared.
        gated: Whether the feed-forward's activation gates a second projection (GLU, arXiv:2002.05202).
        pad_token_id: What fills up shorter inputs of a batch; masked out.
        type_vocab_size: Number of segment types; 0 where the model has no segments.
        pooler: Whether a dense + tanh layer over the first token belongs to the model.
        heads: The facts of its heads.
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
    block: Block = PostNorm()
    gated: bool = False
    biases: Biases = Biases()
    convolution: Convolution | None = None
    pooler: bool = True
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    heads: HeadConfig = HeadConfig()

    @property
    def num_stored_layers(self) -> int:
        """Layers that have weights of their own."""
        return max(self.layer_schedule) + 1

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def max_length(self) -> int:
        """The longest input in tokens, special tokens included."""
        return self.positions.max_length
