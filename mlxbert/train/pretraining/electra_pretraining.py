"""ELECTRA (arXiv:2003.10555): a small generator replaces tokens, and a discriminator recognizes the replaced ones.

The two share the word, position and segment embeddings and the layer norm after them, but each has its own projection
of the embeddings. They are trained as one network, and written as two models with a copy of the embeddings each.

Shapes: B batch, L length, E embedding size, D hidden size, M masked tokens of the batch (padded), V vocabulary size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from mlxbert.config import EncoderConfig
from mlxbert.errors import CheckpointError
from mlxbert.folders.atomic_folder import MARKER
from mlxbert.loading import load, new_model
from mlxbert.machine.device import mx, nn
from mlxbert.model import Model
from mlxbert.nn.encoder import Embeddings, EncoderOutput
from mlxbert.nn.heads import Network
from mlxbert.nn.ops import backend
from mlxbert.train.files.trained_model import write_trained
from mlxbert.train.nn.losses import binary_cross_entropies
from mlxbert.train.pretraining.examples import PretrainingExample
from mlxbert.train.pretraining.initial_model import InitialModel
from mlxbert.train.pretraining.loss_terms import MaskedWords, Term, TermInputs
from mlxbert.weights.build import parameters
from mlxbert.weights.hub.needed_files import CONFIG

GENERATOR = "generator"  # the folder of the generator, inside the folder of the discriminator
_EMBEDDINGS = "encoder.embeddings."


class SharedEmbeddings(nn.Module):
    """The embeddings of an encoder that uses those of another encoder (`lender`).

    Only the projection, if there is one, comes from the embeddings of the first encoder (`borrower`).
    """

    def __init__(self, lender: Embeddings, borrower: Embeddings) -> None:
        super().__init__()
        self._lender = lender  # with an underscore, so that its parameters do not count as parameters of this module
        if "projection" in borrower:
            self.projection = borrower.projection

    @property
    def word(self) -> nn.Embedding:
        """The word embeddings, whose weights the masked-LM head reuses."""
        embedding: nn.Embedding = self._lender.word
        return embedding

    def __call__(self, input_ids: mx.array, token_type_ids: mx.array | None) -> mx.array:
        """Returns the embeddings of token ids: (B, L) → (B, L, D)."""
        x = self._lender.normalized(input_ids, token_type_ids)
        return self.projection(x) if "projection" in self else x


class Electra(Network):
    """The discriminator with the generator inside; the generator uses the embeddings of the discriminator.

    `described` is the generator as a separate model, with its own configuration and files.
    """

    def __init__(self, discriminator: Network, described: Model) -> None:
        super(Network, self).__init__()
        self.encoder, self.heads = discriminator.encoder, discriminator.heads
        self.generator, self.described = described.network, described
        borrower = self.generator.encoder.embeddings
        self.generator.encoder["embeddings"] = SharedEmbeddings(self.encoder.embeddings, borrower)


def with_generator(model: Model, base: InitialModel, share: float, seed: int) -> Model:
    """Adds a generator to a discriminator.

    The generator is loaded from the folder of `base`, if that folder has one. Otherwise it is a new model, whose width
    is `share` times the width of the discriminator.
    """
    folder = base.files.path / GENERATOR
    if base.config is None and (folder / CONFIG).is_file():
        device = base.ref.device
        generator = load(folder, heads=["masked_lm"], dtype="float32", device=device, quantized=False, seed=seed)
        _check_shared(model, generator)
    else:
        values = {**model.architecture.config_json.values, **generator_sizes(model.config, share)}
        # With the same seed, layers of the same size would start with the same weights.
        generator = new_model(
            values, base.files.path, heads={"masked_lm": None}, dtype="float32", device=base.ref.device, seed=seed + 1
        )
    return replace(model, network=Electra(model.network, generator))


def generator_sizes(config: EncoderConfig, share: float) -> dict[str, Any]:
    """Returns the values of `config.json` in which a new generator may differ from its discriminator.

    The attention heads keep their size, but their number changes, and the widths change with it.
    """
    heads = max(round(config.num_attention_heads * share), 1)
    return {
        "num_attention_heads": heads,
        "hidden_size": config.hidden_size // config.num_attention_heads * heads,
        "intermediate_size": max(config.intermediate_size * heads // config.num_attention_heads, 1),
        "embedding_size": config.embedding_size,
    }


def _shared(network: Network) -> dict[str, mx.array]:
    """Returns the parameters of a generator or a discriminator that the two share, keyed by name."""
    projection = f"{_EMBEDDINGS}projection."
    return {
        name: array
        for name, array in parameters(network).items()
        if name.startswith(_EMBEDDINGS) and not name.startswith(projection)
    }


def _check_shared(model: Model, generator: Model) -> None:
    """Raises `CheckpointError` if the embeddings or the vocabulary of the generator differ from the discriminator's."""
    ours, theirs = _shared(model.network), _shared(generator.network)
    different = [
        name
        for name, array in ours.items()
        if name not in theirs or array.shape != theirs[name].shape or not mx.array_equal(array, theirs[name]).item()
    ]
    if different or model.tokenizer.files.tokenizer.to_str() != generator.tokenizer.files.tokenizer.to_str():
        raise CheckpointError(
            f"{generator.folder}: {different[0] if different else 'the vocabulary'} of the generator differs from the "
            f"discriminator in {model.folder}",
            hint="use the generator that was trained with the discriminator, or remove the folder of the generator "
            "to start with a new generator",
        )


def discriminator_of(model: Model) -> Model:
    """Returns the discriminator without its generator; the parameters are shared with `model`."""
    both = model.network
    network = Network(both.encoder.config, both.heads)
    network.encoder, network.heads = both.encoder, both.heads
    return replace(model, network=network)


def generator_of(model: Model) -> Model:
    """Returns the generator of `model` as a separate model in evaluation mode."""
    both = model.network
    assert isinstance(both, Electra)
    network = Network(both.generator.encoder.config, both.generator.heads)
    network.load_weights(list((parameters(both.generator) | _shared(both)).items()))
    network.eval()
    return replace(both.described, network=network)


def write_generator(model: Model, folder: Path) -> dict[str, str]:
    """Writes the generator of `model` into the unfinished folder of the discriminator, to which it adds no facts."""
    inner = folder / GENERATOR
    inner.mkdir()
    write_trained(generator_of(model), inner, lambda _: {})
    (inner / MARKER).unlink()
    return {}


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

    Two random numbers in [0, 1), a row of `draws`, decide each word: the first selects a block of the vocabulary, the
    second a word in this block, each by its position among the cumulative probabilities. Therefore a word depends on
    its logits and on only two random numbers, rather than V.
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
