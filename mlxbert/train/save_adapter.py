"""Writes the adapters and heads of a network in the format of PEFT (see `mlxbert.weights.adapters.peft_adapter`)."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mlxbert.machine.device import mx
from mlxbert.nn.heads import HEADS, Network, is_tied
from mlxbert.nn.lora import LoraSettings
from mlxbert.weights.adapters.peft_adapter import MAGNITUDE, PREFIX
from mlxbert.weights.adapters.peft_names import Target
from mlxbert.weights.build import parameters
from mlxbert.weights.families import keymap
from mlxbert.weights.families.registry import Architecture
from mlxbert.weights.formats.file_names import ADAPTER, ADAPTER_WEIGHTS
from mlxbert.weights.save import is_own, write_file, write_json, write_own

_WORDS = "encoder.embeddings.word.weight"


def saved_whole(architecture: Architecture, network: Network, heads: Iterable[str] | None = None) -> tuple[str, ...]:
    """Returns the prefixes of parameters that are saved as a whole next to adapters: trained heads and a fresh pooler.

    Args:
        architecture: The model; its pooler is fresh if the checkpoint has no pooler.
    """
    fresh = "pooler" in network.encoder and "pooler" not in (architecture.parts or ())
    trained = network.heads if heads is None else heads
    return (*(f"heads.{head}." for head in trained), *(["encoder.pooler."] if fresh else ()))


def write_adapter(
    folder: Path,
    architecture: Architecture,
    network: Network,
    targets: Sequence[Target],
    settings: LoraSettings,
    base: Mapping[str, str | None],
    heads: Iterable[str] | None = None,
) -> None:
    """Writes `adapter_model.safetensors` and `adapter_config.json`.

    Args:
        base: Holds the name (`base_model_name_or_path`) and the `revision` of the base model.
        heads: The heads that were trained, or `None` for all heads. The other heads are the same as in the base
            model.
    """
    saved = _saved(architecture, network, saved_whole(architecture, network, heads))
    own_arrays = {name: array for name, array in saved.items() if is_own(name)}
    encoder_roots = {stem.split(".")[0] for entry in architecture.family.table(["pooler"]) for stem in entry.theirs}
    prefix = architecture.family.prefixes[0] if network.heads else ""
    arrays = _updates(f"{PREFIX}{prefix}", parameters(network), targets, network.encoder.config.head_size)
    for plain in saved.keys() - own_arrays.keys():
        arrays[f"{PREFIX}{prefix if plain.split('.')[0] in encoder_roots else ''}{plain}"] = saved[plain]
    start = len(PREFIX)
    exported = partial(architecture.family.exported, architecture.config_json)
    arrays = {PREFIX + exported(name[start:]): array for name, array in arrays.items()}
    mx.eval(arrays, own_arrays)
    write_file(folder / ADAPTER_WEIGHTS, dict(sorted(arrays.items())), {"format": "pt"})
    write_own(own_arrays, folder)
    values: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": HEADS[next(iter(network.heads))].peft_type if network.heads else "FEATURE_EXTRACTION",
        **base,
        "r": settings.rank,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "use_rslora": settings.rslora,
        "use_dora": settings.dora,
        "target_modules": [target.name for target in targets],
        "modules_to_save": _modules(saved.keys() - own_arrays.keys()) or None,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    write_json(folder / ADAPTER, values)


def _updates(
    prefix: str, ours: Mapping[str, mx.array], targets: Sequence[Target], head_size: int
) -> dict[str, mx.array]:
    """Returns the tensors of adapters by their names in the file: the matrices A and B and, for DoRA, the magnitudes.

    If several of our layers are one module in transformers, they share the matrix A, and the rows of their matrices B
    are joined.
    """
    arrays: dict[str, mx.array] = {}
    for target in targets:
        name, paths = prefix + target.name, target.ours
        arrays[f"{name}.lora_A.weight"] = ours[f"{paths[0]}.lora_a"]
        for ours_suffix, theirs in (("lora_b", "lora_B.weight"), ("magnitude", MAGNITUDE)):
            if f"{paths[0]}.{ours_suffix}" in ours:
                rows = [ours[f"{path}.{ours_suffix}"] for path in paths]
                (arrays[f"{name}.{theirs}"],) = target.operation.save(rows, 1, head_size)
    return arrays


def _saved(architecture: Architecture, network: Network, kept: tuple[str, ...]) -> dict[str, mx.array]:
    """Returns the parameters whose names begin with one of the prefixes in `kept`, as tensors by plain name.

    If a saved head has a decoder that is tied to the word embeddings, a copy of them is included as the decoder.
    """
    family = architecture.family
    ours = {name: array for name, array in parameters(network).items() if name.startswith(kept)}
    entries = keymap.pairs(family.table(["pooler", *network.heads]), network.encoder.config, ours)
    saved = {plain: array for entry in entries for plain, array in keymap.save(entry, ours).items()}
    if is_tied(head for head in network.heads if f"heads.{head}." in kept):
        # PEFT saves whole modules, and the decoder is one of them.
        words = parameters(network)[_WORDS]
        saved |= {copy: saved.get(original, words) for copy, original in family.tied.items()}
    return saved


def _modules(names: Iterable[str]) -> list[str]:
    """Returns the names of modules that together contain all of these tensors.

    The names of tensors are grouped by their text before the first dot. For each group, the smallest module that
    contains all of its tensors is returned.
    """
    roots: dict[str, list[str]] = {}
    for name in names:
        roots.setdefault(name.split(".")[0], []).append(name)
    shared = ([*itertools.takewhile(lambda parts: len({*parts}) == 1, _columns(group))] for group in roots.values())
    return sorted(".".join(parts[0] for parts in each) for each in shared)


def _columns(names: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Splits dotted names, and yields the first components of all names, then the second components, and so on.

    The last component of a name is omitted. The iterator ends at the shortest name.
    """
    return zip(*(name.split(".")[:-1] for name in names), strict=False)
