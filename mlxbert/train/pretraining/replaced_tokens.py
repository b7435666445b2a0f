"""Replaced tokens (ELECTRA, arXiv:2003.10555): a generator fills masks, and a discriminator finds the replaced tokens.

Shapes: B examples, L length, M masked tokens of the batch (padded), V vocabulary size, N shares.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

from mlxbert.machine.device import mx
from mlxbert.nn.encoder import EncoderOutput
from mlxbert.nn.ops import backend
from mlxbert.train.nn.losses import binary_cross_entropies
from mlxbert.train.pretraining.electra_pretraining import Electra
from mlxbert.train.pretraining.examples import PretrainingExample
from mlxbert.train.pretraining.loss_terms import MaskedWords, Term, TermInputs

_BLOCK = 256  # words whose probabilities are added first; a sum over the whole vocabulary would lose small ones


class ElectraInputs(TermInputs):
    """The inputs of ELECTRA's terms: masked tokens for the generator, samples in their place for the discriminator."""

    @property
    def both(self) -> Electra:
        """The network that holds both the generator and the discriminator."""
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
        """The token ids of the texts, with the samples in place of masked tokens, int32 (B, L)."""
        targets = self.targets
        # The change is added, because all padding points to the same position, which must stay unchanged.
        change = (self.samples - targets.originals) * targets.counted.astype(mx.int32)
        return targets.clean.at[targets.rows, targets.columns].add(change)

    @cached_property
    def replaced(self) -> mx.array:
        """Flags for tokens that differ from the original text, bool (B, L). A sampled token can equal the original."""
        return backend().fusion_barrier(self.ids != self.targets.clean)

    @cached_property
    def real(self) -> mx.array:
        """Flags for the tokens that are not padding, bool (B, L)."""
        mask = self.batch.attention_mask
        return mx.ones(self.ids.shape, dtype=mx.bool_) if mask is None else mask

    @cached_property
    def output(self) -> EncoderOutput:
        # `Network.__call__` is avoided, because it would wait for the ids to check them.
        return self.network.encoder(self.ids, self.batch.attention_mask, self.batch.token_type_ids)

    @cached_property
    def scores(self) -> mx.array:
        """The logits of the discriminator, (B, L); a positive logit means that the token was replaced."""
        return self.network.logits("discriminator", self.output)


class GeneratedWords(MaskedWords):
    """The generator's cross-entropy of masked tokens. It names no `head`, because the generator brings its own."""

    head: ClassVar[str | None] = None


class ReplacedTokens(Term):
    """The discriminator's binary cross-entropy over all tokens except padding.

    Special tokens count as original tokens, as in the authors' code.
    """

    name: ClassVar[str] = "replaced"
    head: ClassVar[str | None] = "discriminator"
    shares: ClassVar[tuple[str, ...]] = ("replaced_accuracy", "original_accuracy", "replaced_share")

    def total(self, examples: Sequence[PretrainingExample]) -> float:
        """Returns the number of tokens without padding."""
        return sum(map(len, examples))

    def loss(self, inputs: TermInputs) -> mx.array:
        assert isinstance(inputs, ElectraInputs)
        return (binary_cross_entropies(inputs.scores, inputs.replaced) * inputs.real).sum()

    def counted(self, inputs: TermInputs) -> Mapping[str, tuple[mx.array, mx.array]]:
        """Counts the recognized replaced tokens, the recognized original tokens, and all replaced tokens.

        Each count is returned with the number of tokens that it is a share of (see `Term.counted`).
        """
        assert isinstance(inputs, ElectraInputs)
        predicted, replaced = inputs.scores > 0, inputs.replaced
        original = inputs.real & ~replaced
        pairs = ((predicted & replaced, replaced), (~predicted & original, original), (replaced, inputs.real))
        counts = ((hits.sum().astype(mx.float32), total.sum().astype(mx.float32)) for hits, total in pairs)
        return dict(zip(self.shares, counts, strict=True))


def sampled(logits: mx.array, draws: mx.array) -> mx.array:
    """Samples a word for each row of logits, (M, V), from its softmax; no gradient flows through the samples.

    Two random numbers decide each word: the first selects a block of the vocabulary, the second a word in this block,
    each by its position among the cumulative probabilities. Therefore a word depends on its logits and on only two
    random numbers, rather than V.

    Args:
        draws: Random numbers in [0, 1), float32 (M, 2).
    """
    wide = mx.stop_gradient(logits).astype(mx.float32)
    rows, size = wide.shape
    shares = mx.pad(backend().exponentials(wide - wide.max(axis=-1, keepdims=True)), [(0, 0), (0, -size % _BLOCK)])
    blocks = shares.reshape(rows, -1, _BLOCK)
    block = _place(blocks.sum(axis=-1), draws[:, 0])
    word = _place(blocks[mx.arange(rows), block], draws[:, 1])
    return mx.minimum(block * _BLOCK + word, size - 1).astype(mx.int32)


def _place(shares: mx.array, draws: mx.array) -> mx.array:
    """Returns, for each row, the first index at which the cumulative sum exceeds a random fraction of the row's sum."""
    sums = mx.cumsum(shares, axis=-1)
    below = backend().fusion_barrier(sums <= backend().fusion_barrier(draws[:, None] * sums[:, -1:])).sum(axis=-1)
    return mx.minimum(below, shares.shape[-1] - 1).astype(mx.int32)  # a product may be rounded up to the whole sum
