"""ELECTRA (arXiv:2003.10555): a small generator writes the tokens that the discriminator tells from the real ones.

Both share word, position and segment embeddings and the norm of their sum; projections of these are their own. What is
trained is one network; what is written are two models, each with its own copy of the embeddings.

Shapes: B batch, L length, E embedding size, D hidden size.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.errors import CheckpointError
from mlxbert.folders.destination import MARKER
from mlxbert.folders.save import write_trained
from mlxbert.loading import load, new_model
from mlxbert.machine.device import mx, nn
from mlxbert.model import Model
from mlxbert.nn.encoder import Embeddings
from mlxbert.nn.heads import Network
from mlxbert.pretraining.initial_model import InitialModel
from mlxbert.weights.build import parameters
from mlxbert.weights.hub.needed_files import CONFIG

GENERATOR = "generator"  # the folder of the generator in that of the discriminator
_EMBEDDINGS = "encoder.embeddings."


class SharedEmbeddings(nn.Module):
    """The embeddings of another encoder (`lender`), through a projection of one's own if the width differs."""

    def __init__(self, lender: Embeddings, own: Embeddings) -> None:
        super().__init__()
        self._lender = lender  # the underscore: its parameters are not those of this module, too
        if "projection" in own:
            self.projection = own.projection

    @property
    def word(self) -> nn.Embedding:
        """The word embeddings, to which the masked-LM head is tied."""
        found: nn.Embedding = self._lender.word
        return found

    def __call__(self, input_ids: mx.array, token_type_ids: mx.array | None) -> mx.array:
        """(B, L) → (B, L, D)."""
        x = self._lender.normalized(input_ids, token_type_ids)
        return self.projection(x) if "projection" in self else x


class Electra(Network):
    """The discriminator, and in it the generator, whose embeddings are the discriminator's.

    `described` is the generator as a model of its own: its configuration and its files.
    """

    def __init__(self, discriminator: Network, described: Model) -> None:
        super(Network, self).__init__()
        self.encoder, self.heads = discriminator.encoder, discriminator.heads
        self.generator, self.described = described.network, described
        embeddings = self.generator.encoder.embeddings
        self.generator.encoder["embeddings"] = SharedEmbeddings(self.encoder.embeddings, embeddings)


def with_generator(model: Model, base: InitialModel, share: float, seed: int) -> Model:
    """A discriminator with its generator: that in the folder of `base`, or a new one of a share of its width."""
    folder = base.files.path / GENERATOR
    if base.config is None and (folder / CONFIG).is_file():
        found = load(folder, heads=["masked_lm"], dtype="float32", device=base.ref.device, quantized=False, seed=seed)
        _check_shared(model, found)
    else:
        values = {**model.architecture.config_json.values, **generator_sizes(model.config, share)}
        # Another seed: of the same one, layers of the same size would begin with the same weights.
        found = new_model(
            values, base.files.path, heads={"masked_lm": None}, dtype="float32", device=base.ref.device, seed=seed + 1
        )
    return replace(model, network=Electra(model.network, found))


def generator_sizes(config: EncoderConfig, share: float) -> dict[str, Any]:
    """The keys of `config.json` in which a new generator differs: as many heads of the same size as come closest."""
    heads = max(round(config.num_attention_heads * share), 1)
    return {
        "num_attention_heads": heads,
        "hidden_size": config.hidden_size // config.num_attention_heads * heads,
        "intermediate_size": max(config.intermediate_size * heads // config.num_attention_heads, 1),
        "embedding_size": config.embedding_size,
    }


def _shared(network: Network) -> dict[str, mx.array]:
    """What generator and discriminator have in common, by the names in both."""
    own = f"{_EMBEDDINGS}projection."
    return {
        name: array
        for name, array in parameters(network).items()
        if name.startswith(_EMBEDDINGS) and not name.startswith(own)
    }


def _check_shared(model: Model, generator: Model) -> None:
    """Refuses a generator with other embeddings: they would be replaced without a word."""
    ours, theirs = _shared(model.network), _shared(generator.network)
    other = [
        name
        for name, array in ours.items()
        if name not in theirs or array.shape != theirs[name].shape or not mx.array_equal(array, theirs[name]).item()
    ]
    if other or model.tokenizer.files.tokenizer.to_str() != generator.tokenizer.files.tokenizer.to_str():
        raise CheckpointError(
            f"{generator.folder}: its {other[0] if other else 'vocabulary'} differs from that of the discriminator in "
            f"{model.folder}, expected the generator that was trained with it",
            hint="without that folder, training begins with a new generator",
        )


def discriminator_of(model: Model) -> Model:
    """The discriminator alone, with the parameters of a model of both."""
    both = model.network
    network = Network(both.encoder.config, both.heads)
    network.encoder, network.heads = both.encoder, both.heads
    return replace(model, network=network)


def generator_of(model: Model) -> Model:
    """The generator as a model of its own in evaluation mode, with the parameters of a model of both."""
    both = model.network
    assert isinstance(both, Electra)
    network = Network(both.generator.encoder.config, both.generator.heads)
    network.load_weights(list((parameters(both.generator) | _shared(both)).items()))
    network.eval()
    return replace(both.described, network=network)


def write_generator(model: Model, folder: Path) -> None:
    """Writes the generator of a model of both into the unfinished folder of the discriminator."""
    inner = folder / GENERATOR
    inner.mkdir()
    write_trained(generator_of(model), inner, lambda _: {})
    (inner / MARKER).unlink()
