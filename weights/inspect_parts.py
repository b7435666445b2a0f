"""Which tensors of a checkpoint make up which part, whether they fit, and which make up nothing."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import takewhile
from typing import Any

from mlxbert.device import mx, nn
from mlxbert.errors import CheckpointError
from mlxbert.heads import HEADS, Network
from mlxbert.weights import keymap
from mlxbert.weights.checkpoint import FLOATS, Checkpoint

_IGNORED = "a buffer, or part of a head that mlxbert does not run"


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
    """The parameters of the network that the checkpoint is for; random and lazy, only names and shapes count."""
    network = Network(checkpoint.config, [part for part in checkpoint.parts if part in HEADS])
    return dict(nn.utils.tree_flatten(network.parameters()))


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
            "problem": next(_problems(checkpoint, entries, arrays), None),
        }
    if found["encoder"]["problem"]:
        raise CheckpointError(f"{checkpoint.folder}: {found['encoder']['problem']}")
    return found


def _problems(checkpoint: Checkpoint, entries: Iterable[keymap.Entry], arrays: Mapping[str, mx.array]) -> Iterator[str]:
    """What `build_network` would refuse, as far as headers tell."""
    stored = FLOATS + (("I8",) if checkpoint.storage else ())
    for entry in entries:
        missing = [name for name in entry.theirs if name not in checkpoint.names]
        if missing:
            yield f"tensor {missing[0]!r} is missing"
            continue
        infos = {name: checkpoint.tensors[checkpoint.names[name]] for name in entry.theirs}
        for name, info in infos.items():
            if info.dtype not in stored:
                yield (f"tensor {checkpoint.names[name]!r} has dtype {info.dtype}, expected one of {', '.join(stored)}")
        there = {name: mx.zeros(info.shape) for name, info in infos.items()}  # lazy: never made
        for name, array in keymap.load(entry, there).items():
            if array.shape != arrays[name].shape:
                yield (
                    f"tensor {checkpoint.names[entry.theirs[0]]!r} has shape {array.shape}, "
                    f"expected {arrays[name].shape} by config.json"
                )


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
        rows.append({"name": name, "dtype": info.dtype, "shape": list(info.shape), "becomes": use})
    return rows
