"""The problems of a checkpoint that its headers show. `build_network` raises the first one; `inspect` reports all."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mlxbert.errors import CheckpointError, ConfigError
from mlxbert.machine.device import mx
from mlxbert.nn.heads import HEADS, is_tied, takes_pooler
from mlxbert.weights.checkpoint import Checkpoint, network_shapes
from mlxbert.weights.families import config_reader, keymap
from mlxbert.weights.formats.headers import FLOATS


@dataclass(frozen=True)
class PartProblem:
    """A problem that prevents a part from being built, and an optional hint."""

    text: str
    hint: str | None = None

    def error(self, checkpoint: Checkpoint) -> CheckpointError:
        return CheckpointError(f"{checkpoint.folder}: {self.text}", hint=self.hint)


def problems(checkpoint: Checkpoint, part: str, parts: Iterable[str]) -> Iterator[PartProblem]:
    """Yields the problems that prevent a part of a network from being built.

    Args:
        part: The part to check: `encoder`, or one of the optional parts.
    """
    spec = HEADS.get(part)
    if spec is not None and spec.labelled and checkpoint.config.labels is None:
        yield PartProblem(_labels_problem(checkpoint), "the labels are needed for classifiers only")
    if spec is not None and takes_pooler(part, checkpoint.config) and "pooler" not in parts:
        yield PartProblem(f"{part} needs the pooler, which is missing")
    table = checkpoint.family.encoder if part == "encoder" else checkpoint.family.parts[part]
    shapes = network_shapes(checkpoint.config)
    for entry in keymap.pairs(table, checkpoint.config, shapes):
        missing = [name for name in entry.theirs if name not in checkpoint.names]
        if missing:
            yield PartProblem(f"tensor {missing[0]!r} is missing")
        else:
            yield from _entry_problems(checkpoint, entry, shapes)
    if is_tied([part]):
        yield from _tie_problems(checkpoint)


def _labels_problem(checkpoint: Checkpoint) -> str:
    """Returns a message that says why the labels of a configuration cannot be used, without the path of the folder."""
    try:
        config_reader.labels(checkpoint.config_json)
    except ConfigError as problem:
        return problem.message.removeprefix(f"{checkpoint.config_json.path.parent}/")
    raise AssertionError("the labels can be used")


def _entry_problems(
    checkpoint: Checkpoint, entry: keymap.TensorName, shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[PartProblem]:
    accepted = (*FLOATS,) + (tuple(sorted(checkpoint.storage.dtypes)) if checkpoint.storage else ())
    infos = {name: checkpoint.tensors[checkpoint.names[name]] for name in entry.theirs}
    for name, info in infos.items():
        if info.dtype not in accepted:
            yield PartProblem(
                f"tensor {checkpoint.names[name]!r} has dtype {info.dtype}, expected one of {', '.join(accepted)}"
            )
    first = checkpoint.names[entry.theirs[0]]
    arrays = {name: mx.zeros(info.shape) for name, info in infos.items()}  # lazy: never computed
    try:
        loaded = keymap.load(entry, arrays)
    except ValueError:
        shape = infos[entry.theirs[0]].shape
        yield PartProblem(f"tensor {first!r} has shape {shape}, expected a shape that splits into {len(entry.ours)}")
        return
    for name, array in loaded.items():
        if array.shape != shapes[name]:
            yield PartProblem(f"tensor {first!r} has shape {array.shape}, expected {shapes[name]} by config.json")
            return


def _tie_problems(checkpoint: Checkpoint) -> Iterator[PartProblem]:
    """Yields the problems with tied tensors that can be found in the headers: a missing copy, or a wrong shape.

    Whether a copy equals its original can only be found out from the data, which is not read here.
    """
    untied = checkpoint.config_json.values.get("tie_word_embeddings") is False
    names, tensors = checkpoint.names, checkpoint.tensors
    for copy, original in checkpoint.family.tied.items():
        if copy not in names and untied and copy.endswith(".weight"):
            yield PartProblem(
                f"tensor {copy!r} is missing, but tie_word_embeddings is false in config.json",
                "if the decoder is tied to the word embeddings, remove tie_word_embeddings from config.json",
            )
        if copy in names and original in names:
            shapes = tensors[names[copy]].shape, tensors[names[original]].shape
            if shapes[0] != shapes[1]:
                yield PartProblem(
                    f"{copy!r} differs from {original!r} in its shape ({shapes[0]}, not {shapes[1]}), but mlxbert runs "
                    "only decoders for the tokens of the word embeddings",
                    "use a task without the masked-LM head, for example `task='embed'`",
                )
