"""Replaced tokens (ELECTRA, arXiv:2003.10555): a generator fills masks, a discriminator finds the replaced tokens.

Shapes: B examples, L length, M masked tokens of the batch (padded), V vocabulary, K blocks of W words.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

from mlxbert.machine.device import mx
from mlxbert.nn import ops
from mlxbert.nn.encoder import EncoderOutput
from mlxbert.nn.losses import binary_cross_entropies
from mlxbert.pretraining.electra import Electra
from mlxbert.pretraining.examples import PretrainingExample
from mlxbert.pretraining.loss_terms import MaskedWords, Term, TermInputs

_BLOCK = 256  # words whose probabilities are added first; a sum over the whole vocabulary would lose small ones


class ElectraInputs(TermInputs):
    """A batch for the generator, with masked tokens, and for the discriminator, with the samples in their place."""

    @property
    def both(self) -> Electra:
        """The network of generator and discriminator."""
        assert isinstance(self.network, Electra)
        return self.network

    @cached_property
    def words(self) -> mx.array:
        """The generator's logits over the vocabulary at the masked positions, (M, V)."""
        generator = self.both.generator
        output = generator.encode(self.batch)
        return generator.logits("masked_lm", output.select(self.targets.rows, self.targets.columns))

    @cached_property
    def samples(self) -> mx.array:
        """The tokens that the generator samples at the masked positions, int32 (M,)."""
        assert self.targets.draws is not None
        return sampled(self.words, self.targets.draws)

    @cached_property
    def ids(self) -> mx.array:
        """The texts with these tokens, int32 (B, L)."""
        targets = self.targets
        # Added, because all padding has the same position, where it must change nothing.
        change = (self.samples - targets.originals) * targets.counted.astype(mx.int32)
        return targets.clean.at[targets.rows, targets.columns].add(change)

    @cached_property
    def replaced(self) -> mx.array:
        """Which tokens differ from the text (a sample may equal the original), bool (B, L)."""
        return ops.fusion_barrier(self.ids != self.targets.clean)

    @cached_property
    def real(self) -> mx.array:
        """Which tokens are not padding, bool (B, L)."""
        mask = self.batch.attention_mask
        return mx.ones(self.ids.shape, dtype=mx.bool_) if mask is None else mask

    @cached_property
    def output(self) -> EncoderOutput:
        """The output of the discriminator's encoder."""
        # Not with `Network.__call__`, which would wait for the ids to check them.
        return self.network.encoder(self.ids, self.batch.attention_mask, self.batch.token_type_ids)

    @cached_property
    def scores(self) -> mx.array:
        """The logits of the discriminator, positive for a replaced token, (B, L)."""
        return self.network.logits("discriminator", self.output)


class GeneratedWords(MaskedWords):
    """The cross-entropy of masked tokens in the generator, which is not a head of the network."""

    head: ClassVar[str | None] = None


class ReplacedTokens(Term):
    """The binary cross-entropy of all tokens but padding; special tokens count as original, as in the authors' code."""

    name: ClassVar[str] = "replaced"
    head: ClassVar[str | None] = "discriminator"
    shares: ClassVar[tuple[str, ...]] = ("replaced_accuracy", "original_accuracy", "replaced_share")

    def total(self, examples: Sequence[PretrainingExample]) -> float:
        """The tokens without padding."""
        return sum(map(len, examples))

    def loss(self, inputs: TermInputs) -> mx.array:
        """See `Term.loss`."""
        assert isinstance(inputs, ElectraInputs)
        return (binary_cross_entropies(inputs.scores, inputs.replaced) * inputs.real).sum()

    def counted(self, inputs: TermInputs) -> Mapping[str, tuple[mx.array, mx.array]]:
        """Counts recognized replaced tokens, recognized original tokens, and replaced tokens, each with its total."""
        assert isinstance(inputs, ElectraInputs)
        predicted, replaced = inputs.scores > 0, inputs.replaced
        original = inputs.real & ~replaced
        pairs = ((predicted & replaced, replaced), (~predicted & original, original), (replaced, inputs.real))
        counts = ((hits.sum().astype(mx.float32), total.sum().astype(mx.float32)) for hits, total in pairs)
        return dict(zip(self.shares, counts, strict=True))


def sampled(logits: mx.array, draws: mx.array) -> mx.array:
    """Samples a word for each row from its softmax; no gradient flows through the samples.

    The first number decides the block of the word, the second one the word in this block, each by its position among
    the cumulative probabilities. So a word is a function of logits and numbers, and needs two numbers instead of V.

    Args:
        logits: (M, V).
        draws: Random numbers in [0, 1), float32 (M, 2).

    Returns:
        int32 (M,).
    """
    wide = mx.stop_gradient(logits).astype(mx.float32)
    rows, size = wide.shape
    shares = mx.pad(ops.exponentials(wide - wide.max(axis=-1, keepdims=True)), [(0, 0), (0, -size % _BLOCK)])
    blocks = shares.reshape(rows, -1, _BLOCK)
    block = _place(blocks.sum(axis=-1), draws[:, 0])
    word = _place(blocks[mx.arange(rows), block], draws[:, 1])
    return mx.minimum(block * _BLOCK + word, size - 1).astype(mx.int32)


def _place(shares: mx.array, draws: mx.array) -> mx.array:
    """Returns the position of each number among the cumulative sums of shares (M, N): int32 (M,)."""
    sums = mx.cumsum(shares, axis=-1)
    below = ops.fusion_barrier(sums <= ops.fusion_barrier(draws[:, None] * sums[:, -1:])).sum(axis=-1)
    return mx.minimum(below, shares.shape[-1] - 1).astype(mx.int32)  # a product may be rounded up to the whole sum
