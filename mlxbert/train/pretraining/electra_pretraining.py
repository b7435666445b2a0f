"""ELECTRA (arXiv:2003.10555): a small generator replaces tokens, and a discriminator recognizes the replaced ones.

The two share the word, position and segment embeddings and the layer norm after them, but each has its own projection
of the embeddings. They are trained as one network, and written as two models with a copy of the embeddings each.

Shapes: B batch, L length, E embedding size, D hidden size.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.errors import CheckpointError
from mlxbert.folders.atomic_folder import MARKER
from mlxbert.loading import load, new_model
from mlxbert.machine.device import mx, nn
from mlxbert.model import Model
from mlxbert.nn.encoder import Embeddings
from mlxbert.nn.heads import Network
from mlxbert.train.files.trained_model import write_trained
from mlxbert.train.pretraining.initial_model import InitialModel
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


def write_generator(model: Model, folder: Path) -> None:
    """Writes the generator of `model` into the unfinished folder of the discriminator."""
    inner = folder / GENERATOR
    inner.mkdir()
    write_trained(generator_of(model), inner, lambda _: {})
    (inner / MARKER).unlink()
