"""What there is to know about an encoder: facts are fields, different mathematics is a different type."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Absolute:
    """A learned vector per position, added to the word's.

    Attributes:
        max_position_embeddings: Rows of the position table.
        first_position: Row of the first token; 0 in BERT, pad id + 1 in RoBERTa and its kin.
    """

    max_position_embeddings: int
    first_position: int = 0


@dataclass(frozen=True)
class PostNorm:
    """Attention, add, norm, feed-forward, add, norm: the block of "Attention Is All You Need" (arXiv:1706.03762)."""


Positions = Absolute
Block = PostNorm


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The facts in which post-norm encoders differ; names as in a checkpoint's `config.json` where it has one.

    Attributes:
        embedding_size: Width of the embedding tables; smaller than `hidden_size` where the model projects them up.
        layer_schedule: Which stored layer runs at each step; `(0, 1, 2)`, or `(0, 0, 0)` where layers are shared.
        pad_token_id: What fills up shorter inputs of a batch; masked out.
        type_vocab_size: Number of segment types; 0 where the model has no segments.
        pooler: Whether a dense + tanh layer over the first token belongs to the model.
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
    block: Block = PostNorm()
    pooler: bool = True
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0

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
        return self.positions.max_position_embeddings - self.positions.first_position
