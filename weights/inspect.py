"""What is in a model folder, told from its configuration and the headers of its weights alone."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.device import mx, nn
from mlxbert.heads import HEADS, Network
from mlxbert.weights import keymap
from mlxbert.weights.checkpoint import Checkpoint, open_checkpoint
from mlxbert.weights.sentence_transformers import transformer_folder
from mlxbert.weights.tokenizer_files import read_tokenizer

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def inspect_folder(folder: Path) -> dict[str, Any]:
    """Everything `mlxbert inspect` shows of a model folder, as plain values.

    Keys: `folder`, `family`, `config` (the encoder's facts), `max_length`, `parts`, `parameters` per part and in total,
    `memory` in bytes per dtype, `storage`, `tensors` (name in the file, dtype, shape, what it becomes), `tokenizer`.

    Raises:
        MlxbertError: The folder is no checkpoint that mlxbert reads.
    """
    checkpoint = open_checkpoint(transformer_folder(folder))
    counts = _parameters(checkpoint)
    files = read_tokenizer(checkpoint.folder)
    return {
        "folder": str(folder),
        "family": checkpoint.family_name,
        "config": _facts(checkpoint.config),
        "max_length": min(checkpoint.config.max_length, files.max_length or checkpoint.config.max_length),
        "parts": ["encoder", *checkpoint.parts],
        "parameters": counts,
        "memory": {dtype: size * counts["total"] for dtype, size in _BYTES.items()},
        "storage": checkpoint.storage or ", ".join(sorted({info.dtype for info in checkpoint.tensors.values()})),
        "tensors": _tensors(checkpoint),
        "tokenizer": {
            "vocab_size": files.tokenizer.get_vocab_size(),
            "special": files.special,
            "model_max_length": files.max_length,
        },
    }


def _facts(config: EncoderConfig) -> dict[str, Any]:
    facts = asdict(config)
    facts["positions"] = {"type": type(config.positions).__name__, **facts["positions"]}
    facts["block"] = {"type": type(config.block).__name__, **facts["block"]}
    facts["layer_schedule"] = list(config.layer_schedule)
    return facts


def _arrays(checkpoint: Checkpoint) -> dict[str, mx.array]:
    """The parameters of the network that the checkpoint is for; random and lazy, only names and shapes count."""
    network = Network(checkpoint.config, [part for part in checkpoint.parts if part in HEADS])
    return dict(nn.utils.tree_flatten(network.parameters()))


def _parameters(checkpoint: Checkpoint) -> dict[str, int]:
    """Number of parameters of each part, by the shapes that the configuration asks for."""
    counts: dict[str, int] = {}
    for name, array in _arrays(checkpoint).items():
        first, second = name.split(".")[:2]
        part = second if first in ("encoder", "heads") else first
        counts[part] = counts.get(part, 0) + math.prod(array.shape)
    return counts | {"total": sum(counts.values())}


def _tensors(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """Every tensor of the files: what it becomes here, or why it becomes nothing."""
    ours = {}
    layers = checkpoint.config.num_stored_layers
    for entry in keymap.pairs(checkpoint.table, layers, _arrays(checkpoint)):
        for name in entry.theirs:
            ours[name] = ", ".join(entry.ours) + (
                "" if entry.operation is keymap.SAME else f" ({entry.operation.name})"
            )
    rows = []
    for plain, name in checkpoint.names.items():
        if plain in checkpoint.family.tied:
            use = f"a copy of {checkpoint.family.tied[plain]}"
        elif plain in checkpoint.ignored:
            use = "not used"
        else:
            use = ours[plain]
        info = checkpoint.tensors[name]
        rows.append({"name": name, "dtype": info.dtype, "shape": list(info.shape), "becomes": use})
    return rows
