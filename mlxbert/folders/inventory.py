"""Describes the tensors of a checkpoint: which part each belongs to, whether it can be loaded, and if not, why."""

from itertools import takewhile
from math import prod

from mlxbert.errors import CheckpointError, MlxbertError
from mlxbert.folders.inspection import PartFacts, TensorFacts, UnusedTensor
from mlxbert.machine.device import mx
from mlxbert.weights import checkpoint_problems
from mlxbert.weights.build import shapes
from mlxbert.weights.checkpoint import Checkpoint
from mlxbert.weights.families import keymap

_ADAPTER = "an adapter for a task"
_IGNORED = "a buffer, or part of a head that mlxbert does not run"
_MAX_PROBLEMS = 3  # of a part, in a message


def storage_name(checkpoint: Checkpoint) -> str:
    """Describes how the used weights are stored: the kind of quantization, or the names of the dtypes."""
    used = [name for plain, name in checkpoint.names.items() if plain not in checkpoint.ignored]
    dtypes = sorted({checkpoint.tensors[name].dtype for name in used})
    return checkpoint.storage.name if checkpoint.storage else ", ".join(dtypes)


def parameters(checkpoint: Checkpoint) -> dict[str, int]:
    """Returns the number of parameters in each part of the network, computed from the configuration."""
    counts: dict[str, int] = {}
    for name, shape in shapes(checkpoint, checkpoint.parts).items():
        part = name.split(".")[1]
        counts[part] = counts.get(part, 0) + prod(shape)
    return counts


def parts(checkpoint: Checkpoint) -> dict[str, PartFacts]:
    """Returns facts on the encoder and on each other part in the weights, by name."""
    expected = shapes(checkpoint, checkpoint.parts)
    facts = {}
    for part in ("encoder", *checkpoint.parts):
        table = checkpoint.family.encoder if part == "encoder" else checkpoint.family.parts[part]
        entries = list(keymap.pairs(table, checkpoint.config, expected))
        ours = [name for entry in entries for name in entry.ours]
        theirs = [checkpoint.names[name] for entry in entries for name in entry.theirs if name in checkpoint.names]
        size = sum(prod(expected[name]) for name in ours)
        facts[part] = PartFacts(_stem(theirs), _stem(ours), len(theirs), size, _problem(checkpoint, part))
    if facts["encoder"].problem:
        raise CheckpointError(f"{checkpoint.folder}: {facts['encoder'].problem}")
    return facts


def _problem(checkpoint: Checkpoint, part: str) -> str | None:
    """Describes the first few problems of a part; returns `None` if it has no problem."""
    problems = [problem.text for problem in checkpoint_problems.problems(checkpoint, part, checkpoint.parts)]
    more = [f"and {len(problems) - _MAX_PROBLEMS} more"] if len(problems) > _MAX_PROBLEMS else []
    return "; ".join(problems[:_MAX_PROBLEMS] + more) or None


def _stem(names: list[str]) -> str:
    """Returns the dotted prefix that all tensor names share or, if they share none, a list of their first words."""
    words = [name.split(".")[:-1] for name in names]  # the last one is weight or bias
    common = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))]
    return ".".join(common) or ", ".join(dict.fromkeys(word[0] for word in words if word))


def unused(checkpoint: Checkpoint) -> tuple[UnusedTensor, ...]:
    """Returns the tensors that are not loaded, each with the reason."""
    tied = checkpoint.family.tied
    return tuple(
        UnusedTensor(name, f"a copy of {tied[plain]}" if plain in tied else _ADAPTER if ".lora_" in plain else _IGNORED)
        for plain, name in checkpoint.names.items()
        if plain in tied or plain in checkpoint.ignored
    )


def tensors(checkpoint: Checkpoint) -> tuple[TensorFacts, ...]:
    """Returns facts on every tensor in the files, with its name in the network or the reason why it is not used."""
    use = dict.fromkeys(checkpoint.ignored, "not used")
    use |= {copy: f"a copy of {original}" for copy, original in checkpoint.family.tied.items()}
    expected = shapes(checkpoint, checkpoint.parts)
    for entry in keymap.pairs(checkpoint.table, checkpoint.config, expected):
        operation = "" if entry.operation is keymap.SAME else f" ({entry.operation.name})"
        for name in entry.theirs:
            use.setdefault(name, ", ".join(entry.ours) + operation)
    rows = []
    for plain, name in checkpoint.names.items():
        info = checkpoint.tensors[name]
        stored_as = None if info.stored_as == name else info.stored_as
        rows.append(TensorFacts(name, stored_as, info.dtype, info.shape, use[plain]))
    return tuple(rows)


def with_nan(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Returns the names of the used tensors that have NaN. Reads all of them, one after the other."""
    used = [(plain, name) for plain, name in checkpoint.names.items() if plain not in checkpoint.ignored]
    try:
        arrays = checkpoint.arrays(mx.float32)
        return tuple(name for plain, name in used if mx.isnan(arrays[plain]).any().item())
    except MlxbertError:  # files that cannot be read are described by their headers, and `load` says why
        return ()
    finally:
        checkpoint.weights.release()
