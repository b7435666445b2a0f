"""Reads the folder `goldens/`, which holds a tiny model for each family and head, with its outputs in `transformers`.

The folder of a family holds the tensors of the encoder and the outputs of all heads. For each head, it also holds a
configuration and the tensors of the head.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.config import EncoderConfig
from mlxbert.machine.device import choose_dtype, mx
from mlxbert.nn.heads import Network
from mlxbert.weights.build import build_network, with_own_decoder
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.families.registry import family_of
from mlxbert.weights.formats.config_json import ConfigJson

Array = NDArray[np.float32]
GOLDENS = Path(__file__).parent
# The allowed difference, as a share of max(1, largest reference value).
BOUNDS = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


@dataclass(frozen=True)
class Case:
    """A batch of inputs for a model; `mask` and `segments` may be omitted."""

    input_ids: NDArray[np.int32]
    mask: NDArray[np.int32] | None = None
    segments: NDArray[np.int32] | None = None

    @property
    def real(self) -> NDArray[np.bool_]:
        """For each token, whether it is not padding."""
        return np.ones_like(self.input_ids, dtype=bool) if self.mask is None else self.mask.astype(bool)


def make_cases(vocab_size: int, max_length: int, pad_id: int, segments: int) -> dict[str, Case]:
    """Makes named batches, padded on the right, for comparing the outputs of every model with `transformers`."""
    generator = np.random.default_rng(7)

    def ids(batch: int, length: int) -> NDArray[np.int32]:
        numbers = generator.integers(0, vocab_size - 1, (batch, length), dtype=np.int32)
        return (numbers + (numbers >= pad_id)).astype(np.int32)

    lengths = np.array([[5], [max_length // 2], [1], [max_length // 2 - 3]])
    mask = (np.arange(max_length // 2)[None] < lengths).astype(np.int32)
    padded = np.where(mask == 1, ids(*mask.shape), pad_id).astype(np.int32)
    second = ((np.arange(mask.shape[1])[None] >= lengths // 2) * (mask == 1)).astype(np.int32)
    return {
        "padding": Case(padded, mask),
        "pairs": Case(padded, mask, second * (segments - 1)),
        "full length": Case(ids(3, max_length)),
        "one token": Case(ids(1, 1)),
    }


def golden_models() -> Iterator[tuple[str, str]]:
    """Yields the family and the head of each model."""
    for encoder in sorted(GOLDENS.glob("*/encoder.safetensors")):
        for path in sorted(encoder.parent.glob("*.json")):
            yield encoder.parent.name, path.stem


def arrays(path: Path) -> dict[str, mx.array]:
    """Loads the tensors of a safetensors file; returns an empty dict if the file does not exist."""
    if not path.is_file():
        return {}
    tensors = mx.load(str(path))
    assert isinstance(tensors, dict)
    return tensors


def write_model(family: str, head: str, folder: Path) -> Path:
    """Writes the tiny model of a family and head into a folder, in transformers' format; returns the folder."""
    source = GOLDENS / family
    golden = json.loads((source / f"{head}.json").read_text(encoding="utf-8"))
    encoder = arrays(source / "encoder.safetensors")
    shared = {golden["prefix"] + name: array for name, array in encoder.items() if name not in golden["without"]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(golden["config"]), encoding="utf-8")
    (folder / "model.safetensors").unlink(missing_ok=True)
    mx.save_safetensors(str(folder / "model.safetensors"), shared | arrays(source / f"{head}.safetensors"))
    return folder


def read_config(family: str, head: str) -> EncoderConfig:
    """Reads the configuration of a model."""
    path = GOLDENS / family / f"{head}.json"
    return facts_of(ConfigJson(path, json.loads(path.read_text(encoding="utf-8"))["config"]))


def facts_of(config: ConfigJson) -> EncoderConfig:
    """Converts the values of a `config.json` to the configuration of an encoder."""
    return family_of(config)[1].read_config(config)


def load_network(folder: Path, dtype: str = "float32") -> Network:
    """Loads the network with all parts of a checkpoint."""
    checkpoint = open_checkpoint(folder)
    checkpoint = with_own_decoder(checkpoint, checkpoint.parts)
    return build_network(checkpoint, checkpoint.parts, choose_dtype(dtype))


def outputs(network: Network, case: Case) -> dict[str, Array]:
    """Computes all outputs of a network for a batch; returns them by name in float32, with zeros for padding."""
    mask, segments = (None if values is None else mx.array(values) for values in (case.mask, case.segments))
    ids = mx.array(case.input_ids)
    output = network.encoder(ids, mask, segments, output_hidden_states=True, output_attentions=True)
    assert output.hidden_states is not None and output.attentions is not None
    named = {f"hidden {layer}": array for layer, array in enumerate(output.hidden_states)}
    named |= {f"attention {layer}": array for layer, array in enumerate(output.attentions)}
    named["last hidden"] = output.last_hidden_state
    if output.pooler_output is not None:
        named["pooler"] = output.pooler_output
    named |= {name: network.logits(name, output) for name in network.heads}
    return {name: without_padding(np.array(array.astype(mx.float32)), case) for name, array in named.items()}


def without_padding(array: Array, case: Case) -> Array:
    """Returns the array with zeros in place of padding."""
    if array.shape[:2] == case.real.shape:
        return array * case.real.reshape(*case.real.shape, *(1,) * (array.ndim - 2))
    if array.ndim == 4:  # attention weights: rows of padding
        return array * case.real[:, None, :, None]
    return array


def difference(ours: NDArray[Any], reference: NDArray[Any]) -> float:
    """Returns the largest difference, divided by the largest reference value (or by 1, if this value is smaller).

    The result is infinite if a value is not finite or the shapes differ.
    """
    if ours.shape != reference.shape or not np.isfinite(ours).all():
        return float("inf")
    return float(np.abs(ours - reference).max() / max(1.0, np.abs(reference).max()))
