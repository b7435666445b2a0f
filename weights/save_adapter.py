"""Writes the adapters and heads of a network in the format of PEFT, see `mlxbert.weights.adapter`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxbert.device import mx
from mlxbert.nn.heads import Network
from mlxbert.nn.lora import LoraSettings
from mlxbert.weights import keymap
from mlxbert.weights.adapter import MAGNITUDE, PREFIX, TASK_TYPES
from mlxbert.weights.build import parameters
from mlxbert.weights.families.registry import Architecture
from mlxbert.weights.formats.names import ADAPTER, ADAPTER_WEIGHTS, CRF
from mlxbert.weights.save import write_file, write_json
from mlxbert.weights.targets import Target

_OWN = "crf."  # tensors that only mlxbert knows: in a file of their own


def has_fresh_pooler(architecture: Architecture, network: Network) -> bool:
    """Whether a network has a pooler that its checkpoint does not hold: it is trained and saved like a head."""
    return "pooler" in network.encoder and "pooler" not in (architecture.parts or ())


def write_adapter(
    folder: Path,
    architecture: Architecture,
    network: Network,
    targets: Sequence[Target],
    settings: LoraSettings,
    base: Mapping[str, str | None],
) -> None:
    """Writes `adapter_model.safetensors` and `adapter_config.json`.

    Args:
        folder: An existing folder.
        architecture: The model whose family decides the names.
        network: The adapted network.
        targets: The modules that are adapted.
        settings: How they are adapted.
        base: The name of the base, `base_model_name_or_path`, and its `revision`.

    Raises:
        CheckpointError: A file cannot be written.
    """
    saved = _saved(architecture, network)
    own = {name: array for name, array in saved.items() if name.startswith(_OWN)}
    inside = {stem.split(".")[0] for entry in architecture.family.table(["pooler"]) for stem in entry.theirs}
    prefix = architecture.family.prefixes[0] if network.heads else ""
    arrays = _updates(f"{PREFIX}{prefix}", parameters(network), targets)
    for plain in saved.keys() - own.keys():
        arrays[f"{PREFIX}{prefix if plain.split('.')[0] in inside else ''}{plain}"] = saved[plain]
    mx.eval(arrays, own)
    write_file(folder / ADAPTER_WEIGHTS, dict(sorted(arrays.items())), {"format": "pt"})
    if own:
        write_file(folder / CRF, own, {"format": "mlxbert"})
    values: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": next((TASK_TYPES[head] for head in network.heads), "FEATURE_EXTRACTION"),
        **base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "use_rslora": settings.rslora,
        "use_dora": settings.dora,
        "target_modules": [target.name for target in targets],
        "modules_to_save": sorted({plain.split(".")[0] for plain in saved.keys() - own.keys()}) or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    write_json(folder / ADAPTER, values)


def _updates(prefix: str, ours: Mapping[str, mx.array], targets: Sequence[Target]) -> dict[str, mx.array]:
    """The tensors of adapters: layers of ours that are one module share A, and their rows of B are stacked."""
    arrays: dict[str, mx.array] = {}
    for target in targets:
        name, paths = prefix + target.name, target.ours
        arrays[f"{name}.lora_A.weight"] = ours[f"{paths[0]}.lora_a"]
        arrays[f"{name}.lora_B.weight"] = mx.concatenate([ours[f"{path}.lora_b"] for path in paths])
        if f"{paths[0]}.magnitude" in ours:
            arrays[f"{name}.{MAGNITUDE}"] = mx.concatenate([ours[f"{path}.magnitude"] for path in paths])
    return arrays


def _saved(architecture: Architecture, network: Network) -> dict[str, mx.array]:
    """The tensors of the heads, and of a fresh pooler, by plain names."""
    family, layers = architecture.family, network.encoder.config.num_stored_layers
    kept = ("heads.", "encoder.pooler.") if has_fresh_pooler(architecture, network) else ("heads.",)
    ours = {name: array for name, array in parameters(network).items() if name.startswith(kept)}
    entries = keymap.pairs(family.table(["pooler", *network.heads]), layers, ours)
    return {plain: array for entry in entries for plain, array in keymap.save(entry, ours).items()}
