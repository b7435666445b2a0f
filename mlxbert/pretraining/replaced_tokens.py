"""Replaced tokens (ELECTRA, arXiv:2003.10555): a generator fills hidden places, a discriminator finds what it wrote.

Shapes: B examples, L length, M hidden tokens of the batch, V vocabulary, K blocks of W words.
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

_BLOCK = 256  # words: their probabilities are added first, as a sum over a whole vocabulary loses the small ones


class ElectraInputs(TermInputs):
    """A batch as the generator sees it, with hidden tokens, and as the discriminator does, with others instead."""

    @property
    def both(self) -> Electra:
        """The network of both."""
        assert isinstance(self.network, Electra)
        return self.network

    @cached_property
    def words(self) -> mx.array:
        """The scores of the generator for all words at the hidden places, (M, V)."""
        generator = self.both.generator
        output = generator.encode(self.batch)
        return generator.logits("masked_lm", output.select(self.targets.rows, self.targets.columns))

    @cached_property
    def samples(self) -> mx.array:
        """What the generator writes at the hidden places, int32 (M,)."""
        assert self.targets.draws is not None
        return sampled(self.words, self.targets.draws)

    @cached_property
    def ids(self) -> mx.array:
        """The text with these tokens, int32 (B, L)."""
        targets = self.targets
        # Sums, as places that only fill up the number are all the same one, and must change nothing there.
        change = (self.samples - targets.originals) * targets.counted.astype(mx.int32)
        return targets.clean.at[targets.rows, targets.columns].add(change)

    @cached_property
    def replaced(self) -> mx.array:
        """Which tokens differ from the text: a sample may be what stood there, bool (B, L)."""
        return ops.fusion_barrier(self.ids != self.targets.clean)

    @cached_property
    def real(self) -> mx.array:
        """Which tokens are not padding, bool (B, L)."""
        mask = self.batch.attention_mask
        return mx.ones(self.ids.shape, dtype=mx.bool_) if mask is None else mask

    @cached_property
    def output(self) -> EncoderOutput:
        """The output of the discriminator's encoder."""
        # Not by `Network.__call__`, which waits for the ids to check them.
        return self.network.encoder(self.ids, self.batch.attention_mask, self.batch.token_type_ids)

    @cached_property
    def scores(self) -> mx.array:
        """The scores of the discriminator, positive for a replaced token, (B, L)."""
        return self.network.logits("discriminator", self.output)


class GeneratedWords(MaskedWords):
    """The cross-entropy of hidden tokens in the generator, which is not a head of the network."""

    head: ClassVar[str | None] = None


class ReplacedTokens(Term):
    """The binary cross-entropy of all tokens but padding; special tokens are original ones, as in the authors' code."""

    name: ClassVar[str] = "replaced"
    head: ClassVar[str | None] = "discriminator"
    shares: ClassVar[tuple[str, ...]] = ("replaced_accuracy", "original_accuracy", "replaced_share")

    def total(self, examples: Sequence[PretrainingExample]) -> float:
        """The tokens."""
        return sum(map(len, examples))

    def loss(self, inputs: TermInputs) -> mx.array:
        """See `Term.loss`."""
        assert isinstance(inputs, ElectraInputs)
        return (binary_cross_entropies(inputs.scores, inputs.replaced) * inputs.real).sum()

    def counted(self, inputs: TermInputs) -> Mapping[str, tuple[mx.array, mx.array]]:
        """How many replaced and how many original tokens are recognized, and how many are replaced."""
        assert isinstance(inputs, ElectraInputs)
        found, replaced = inputs.scores > 0, inputs.replaced
        original = inputs.real & ~replaced
        pairs = ((found & replaced, replaced), (~found & original, original), (replaced, inputs.real))
        counts = ((some.sum().astype(mx.float32), of.sum().astype(mx.float32)) for some, of in pairs)
        return dict(zip(self.shares, counts, strict=True))


def sampled(logits: mx.array, draws: mx.array) -> mx.array:
    """One word for each row, with the probabilities of its softmax; no gradient flows through it.

    The first number decides the block of the word, the second one the word in it, each by where it falls among the sums
    of probabilities. So a word is a function of scores and numbers, and the noise is two numbers instead of V.

    Args:
        logits: (M, V).
        draws: From 0 to less than 1, float32 (M, 2).

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
    """Where numbers fall among the sums of shares (M, N): int32 (M,)."""
    sums = mx.cumsum(shares, axis=-1)
    below = ops.fusion_barrier(sums <= ops.fusion_barrier(draws[:, None] * sums[:, -1:])).sum(axis=-1)
    return mx.minimum(below, shares.shape[-1] - 1).astype(mx.int32)  # a product may be rounded up to the whole sum
