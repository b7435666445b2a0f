"""Which tensors of a checkpoint make up which part, whether they fit, and which make up nothing."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from itertools import takewhile
from typing import Any

from mlxbert.device import mx
from mlxbert.errors import CheckpointError
from mlxbert.weights import keymap, validate
from mlxbert.weights.build import shapes
from mlxbert.weights.checkpoint import Checkpoint

_IGNORED = "a buffer, or part of a head that mlxbert does not run"
_SHOWN = 3  # problems of a part


def to_json(value: object) -> Any:
    """A value as JSON has it; a dataclass becomes a table of its fields with its name as `type`."""
    if is_dataclass(value) and not isinstance(value, type):
        facts = {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
        return {"type": type(value).__name__} | facts
    if isinstance(value, Mapping):
        return {str(key): to_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _arrays(checkpoint: Checkpoint) -> dict[str, mx.array]:
    """The parameters of the network that the checkpoint is for."""
    return shapes(checkpoint, checkpoint.parts)


def parameters(checkpoint: Checkpoint) -> dict[str, int]:
    """Number of parameters of each piece of the network, by the shapes that the configuration asks for."""
    counts: dict[str, int] = {}
    for name, array in _arrays(checkpoint).items():
        first, second = name.split(".")[:2]
        part = second if first in ("encoder", "heads") else first
        counts[part] = counts.get(part, 0) + array.size
    return counts


def describe(checkpoint: Checkpoint) -> dict[str, dict[str, Any]]:
    """Of the encoder and each part that the weights hold: its names there and here, its size, what is wrong with it.

    Raises:
        CheckpointError: Something is wrong with the encoder: nothing can be done without it.
    """
    arrays = _arrays(checkpoint)
    found = {}
    for part in ("encoder", *checkpoint.parts):
        table = checkpoint.family.encoder if part == "encoder" else checkpoint.family.parts[part]
        entries = list(keymap.pairs(table, checkpoint.config.num_stored_layers, arrays))
        ours = [name for entry in entries for name in entry.ours]
        theirs = [checkpoint.names[name] for entry in entries for name in entry.theirs if name in checkpoint.names]
        found[part] = {
            "in_file": _stem(theirs),
            "in_network": _stem(ours),
            "tensors": len(theirs),
            "parameters": sum(arrays[name].size for name in ours),
            "problem": _problem(checkpoint, part, arrays),
        }
    if found["encoder"]["problem"]:
        raise CheckpointError(f"{checkpoint.folder}: {found['encoder']['problem']}")
    return found


def _problem(checkpoint: Checkpoint, part: str, arrays: Mapping[str, mx.array]) -> str | None:
    """All that is wrong with a part; of many things alike the first ones."""
    found = [problem.text for problem in validate.problems(checkpoint, part, checkpoint.parts, arrays)]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "; ".join(found[:_SHOWN] + more) or None


def _stem(names: list[str]) -> str:
    """What the names of tensors begin with, in whole words; several beginnings where they have nothing in common."""
    words = [name.split(".")[:-1] for name in names]  # the last one is weight or bias
    common = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))]
    return ".".join(common) or ", ".join(dict.fromkeys(word[0] for word in words if word))


def unused(checkpoint: Checkpoint) -> list[dict[str, str]]:
    """The tensors that become nothing, and why."""
    found = []
    for plain, name in checkpoint.names.items():
        if plain in checkpoint.family.tied:
            found.append({"name": name, "why": f"a copy of {checkpoint.family.tied[plain]}"})
        elif plain in checkpoint.ignored:
            found.append({"name": name, "why": _IGNORED})
    return found


def tensors(checkpoint: Checkpoint) -> list[dict[str, Any]]:
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
        stored = {"stored_as": info.stored_as} if info.stored_as not in (None, name) else {}
        rows.append({"name": name, **stored, "dtype": info.dtype, "shape": list(info.shape), "becomes": use})
    return rows
