"""The adapters that are part of a checkpoint, one per task.

jina-embeddings-v3 stacks its adapters in tensors next to the weights. jina-embeddings-v5 has one folder per adapter, in
PEFT's format.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert.errors import CheckpointError
from mlxbert.weights.families.jina_v5 import MODEL_TYPE
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.formats.file_names import ADAPTERS
from mlxbert.weights.formats.headers import TensorInfo
from mlxbert.weights.formats.weight_files import WeightFiles

if TYPE_CHECKING:
    from mlxbert.weights.adapters.peft_adapter import Adapter

_LORA = re.compile(r"(.+)\.parametrizations\.weight\.0\.lora_([AB])")


def own_adapters(config_json: ConfigJson) -> tuple[str, ...]:
    """Returns the names of the adapters that are part of a checkpoint."""
    return config_json.strings("task_names" if config_json.get("model_type") == MODEL_TYPE else "lora_adaptations")


def own_adapter_folder(transformer: Path, config_json: ConfigJson, name: str) -> Path | None:
    """Returns the folder of an adapter that is part of a checkpoint; `None` if the checkpoint stores it in tensors."""
    return transformer / ADAPTERS / name if config_json.get("model_type") == MODEL_TYPE else None


def read_own_adapter(
    name: str,
    config_json: ConfigJson,
    weights: WeightFiles,
    names: Mapping[str, str],
    tensors: Mapping[str, TensorInfo],
) -> "Adapter":
    """Opens an adapter that a checkpoint stores in tensors; no tensor is read.

    Args:
        names: Maps the plain name of each tensor to its name in the file.
        tensors: Maps the name of each tensor in the file to its header entry.
    """
    from mlxbert.nn.lora import scale_of
    from mlxbert.weights.adapters.peft_adapter import Adapter, Target, WeightUpdate

    tasks, rank = own_adapters(config_json), config_json.integer("lora_rank", default=4)
    scale = scale_of(rank, config_json.number("lora_alpha", low=-1e9, high=1e9, default=1.0), rslora=False)
    pairs: dict[str, dict[str, str]] = {}
    for plain, stored in names.items():
        if lora := _LORA.fullmatch(plain):
            pairs.setdefault(lora[1], {})[lora[2]] = stored
    updates = {}
    for module, pair in pairs.items():
        original = tensors.get(names.get(f"{module}.weight", ""))
        if original is None:
            raise CheckpointError(f"{module}: the weights have adapters for this module, but not the module's matrix")
        rows, columns = original.shape
        expected = {"A": (len(tasks), rank, columns), "B": (len(tasks), rows, rank)}
        if ".embeddings." in f".{module}":  # for tables, A and B are swapped: W + A B
            pair = {"A": pair.get("B", ""), "B": pair.get("A", "")}
        for letter, shape in expected.items():
            if pair.get(letter) not in tensors or tensors[pair[letter]].shape != shape:
                raise CheckpointError(
                    f"{module}: an adapter tensor is missing or has the wrong shape, expected {shape}"
                )
        updates[f"{module}.weight"] = (
            WeightUpdate(Target(module, (module,), f"{module}.weight"), scale, pair, tasks.index(name)),
        )
    if not updates:
        raise CheckpointError(
            f"{config_json.path.parent}: lora_adaptations in {config_json.path.name} has {name!r}, but the weights "
            "have no adapters"
        )
    return Adapter(Path(name), weights, updates, {})
