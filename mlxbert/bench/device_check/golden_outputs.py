"""Tiny models of every family and head with the outputs that `transformers` has for them: `goldens/`.

A folder per family has the tensors of the encoder, and for each head its configuration, its tensors and the outputs.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.bench.device_check import formulas
from mlxbert.config import EncoderConfig, Rotary
from mlxbert.machine.device import choose_dtype, mx
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.heads import Network
from mlxbert.weights.build import build_network
from mlxbert.weights.checkpoint import open_checkpoint
from mlxbert.weights.families.registry import family_of
from mlxbert.weights.formats.config_json import ConfigJson

Array = NDArray[np.float32]
GOLDENS = Path(__file__).parents[1] / "goldens"
# Largest difference allowed, as a share of max(1, largest reference value).
BOUNDS = {"float32": 2e-5, "float16": 1e-2, "bfloat16": 8e-2}


@dataclass(frozen=True)
class Case:
    """One input of the model; `mask` and `segments` may be omitted."""

    input_ids: NDArray[np.int32]
    mask: NDArray[np.int32] | None = None
    segments: NDArray[np.int32] | None = None

    @property
    def real(self) -> NDArray[np.bool_]:
        """Which tokens are not padding."""
        return np.ones_like(self.input_ids, dtype=bool) if self.mask is None else self.mask.astype(bool)


def make_cases(vocab_size: int, max_length: int, pad_id: int, segments: int) -> dict[str, Case]:
    """The inputs every model is compared on; padding is on the right only."""
    generator = np.random.default_rng(7)

    def ids(batch: int, length: int) -> NDArray[np.int32]:
        found = generator.integers(0, vocab_size - 1, (batch, length), dtype=np.int32)
        return (found + (found >= pad_id)).astype(np.int32)

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
    """The families and their heads."""
    for encoder in sorted(GOLDENS.glob("*/encoder.safetensors")):
        for path in sorted(encoder.parent.glob("*.json")):
            yield encoder.parent.name, path.stem


def arrays(path: Path) -> dict[str, mx.array]:
    """The tensors of a safetensors file; empty if there is no file."""
    if not path.is_file():
        return {}
    found = mx.load(str(path))
    assert isinstance(found, dict)
    return found


def write_model(family: str, head: str, folder: Path) -> Path:
    """Writes the model as transformers saved it; returns the folder."""
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
    """The facts of a model."""
    path = GOLDENS / family / f"{head}.json"
    return facts_of(ConfigJson(path, json.loads(path.read_text(encoding="utf-8"))["config"]))


def facts_of(config: ConfigJson) -> EncoderConfig:
    """The facts in a `config.json`."""
    return family_of(config)[1].read_config(config)


def kind_of(config: EncoderConfig) -> tuple[object, ...]:
    """What an encoder computes, but for sizes, names, biases and activations: the same of most descendants of BERT."""
    positions = config.positions
    rotations = positions.rotations if isinstance(positions, Rotary) else ()
    return (
        type(positions), config.block, config.norm, config.gated, config.experts is None, config.query_key_norm,
        config.num_key_value_heads is None, config.convolution is None, any(one.window for one in rotations),
        any(one.causal for one in rotations),
    )  # fmt: skip


def operations_of(config: EncoderConfig) -> frozenset[str]:
    """The operations of `mlxbert.bench.device_check.kernels` that a model is computed with."""
    transforms = [facts.transform.activation for facts in config.heads.values() if facts.transform is not None]
    convolution = [] if config.convolution is None else [config.convolution.activation]
    used = {config.hidden_act, *transforms, *convolution, *(["tanh"] if config.pooler else [])}
    found = {
        next((one for one in formulas.ACTIVATIONS if ACTIVATIONS[one] is ACTIVATIONS[name]), name) for name in used
    }
    found |= {"products", "linear layers", "attention", "attention weights", "rows of a table"}
    if "gelu" in found:
        found.add("activated layers")  # which are checked with it
    found.add("layer norm" if config.norm == "layer" else "RMS norm")
    if isinstance(config.positions, Rotary):
        found.add("rotation")
    return frozenset(found | ({"mixture of experts"} if config.experts else set()))


def load_network(folder: Path, dtype: str = "float32") -> Network:
    """The network with all parts of a checkpoint."""
    checkpoint = open_checkpoint(folder)
    return build_network(checkpoint, checkpoint.parts, choose_dtype(dtype))


def outputs(network: Network, case: Case) -> dict[str, Array]:
    """All outputs of the network for an input in float32, with zeros for padding."""
    mask, segments = (None if values is None else mx.array(values) for values in (case.mask, case.segments))
    found = network.encoder(mx.array(case.input_ids), mask, segments, output_hidden_states=True, output_attentions=True)
    assert found.hidden_states is not None and found.attentions is not None
    named = {f"hidden {layer}": array for layer, array in enumerate(found.hidden_states)}
    named |= {f"attention {layer}": array for layer, array in enumerate(found.attentions)}
    named["last hidden"] = found.last_hidden_state
    if found.pooler_output is not None:
        named["pooler"] = found.pooler_output
    named |= {name: network.logits(name, found) for name in network.heads}
    return {name: without_padding(np.array(array.astype(mx.float32)), case) for name, array in named.items()}


def without_padding(array: Array, case: Case) -> Array:
    """The array with zeros for padding."""
    if array.shape[:2] == case.real.shape:
        return array * case.real.reshape(*case.real.shape, *(1,) * (array.ndim - 2))
    if array.ndim == 4:  # attention weights: of real tokens
        return array * case.real[:, None, :, None]
    return array


def difference(ours: NDArray[Any], reference: NDArray[Any]) -> float:
    """The largest difference as a share of max(1, largest reference value); infinite where a value is not finite."""
    if ours.shape != reference.shape or not np.isfinite(ours).all():
        return float("inf")
    return float(np.abs(ours - reference).max() / max(1.0, np.abs(reference).max()))
