"""Opens a model folder: finds its family, its parts, and the tensors that belong to each part.

Opening a folder reads the configuration and the headers of the weights. The weights are read when a network is built.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert import rooms
from mlxbert.config import EncoderConfig
from mlxbert.errors import CheckpointError
from mlxbert.frozen_dict import FrozenDict
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import HEADS, OWN_LAYERS, Network
from mlxbert.weights.adapters.task_adapters import own_adapter_folder, read_own_adapter
from mlxbert.weights.families import keymap
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.gliner import with_new_rows, with_stored_vocabulary
from mlxbert.weights.families.registry import Architecture, family_of
from mlxbert.weights.formats import quantized, static_table
from mlxbert.weights.formats.config_json import GLINER, ConfigJson
from mlxbert.weights.formats.file_names import ADAPTER, TENSORFLOW, TF_READER
from mlxbert.weights.formats.headers import LazyArrays, TensorInfo
from mlxbert.weights.formats.quantized import Storage, read_quantization
from mlxbert.weights.formats.weight_files import WeightFiles, open_weights, with_own_layers
from mlxbert.weights.model_folder import PROJECTION, STANFORD_CLASS, ModelFolder, open_folder
from mlxbert.weights.rerankers import HEAD, as_classifier

if TYPE_CHECKING:
    from mlxbert.weights.adapters.peft_adapter import Adapter


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Architecture):
    """An opened model folder; `config.pooler` is true if the weights hold a pooler."""

    folder: Path  # the folder that holds the configuration and the weights
    # Maps the plain name of each tensor (without prefix, in the current spelling) to its name in the file.
    names: dict[str, str]
    # Maps names in the file to header entries. A matrix that is stored as several tensors has one entry.
    tensors: dict[str, TensorInfo]
    ignored: tuple[str, ...]  # the plain names of the tensors that the network does not use
    parts: tuple[str, ...]  # the optional parts (pooler, heads) that the weights hold
    weights: WeightFiles
    storage: Storage | None  # the storage format of the matrices; `None` for plain floats
    # The family without the classifier that is computed from the decoder (see `mlxbert.weights.rerankers`).
    plain_family: Family
    adapter: "Adapter | None" = None  # the adapter that is merged into the weights, if any
    grows: bool = False  # whether the word embeddings get rows for new tokens

    def without_weights(self) -> Architecture:
        """Returns only the architecture, which remains valid after the files of the checkpoint are closed.

        Its family is `plain_family`.
        """
        values = {field.name: getattr(self, field.name) for field in fields(Architecture)}
        return Architecture(**values | {"family": self.plain_family})

    @cached_property
    def table(self) -> keymap.Table:
        """The table of all tensors that belong to the encoder and to the parts in the weights."""
        return self.family.table(self.parts)

    def arrays(self, dtype: mx.Dtype) -> Mapping[str, mx.array]:
        """Returns all tensors by plain name. A tensor is read when it is used, and expanded to `dtype` if it is packed.

        A tensor that an adapter changes is merged with the adapter in float32.
        """
        stored, adapter = self.weights.arrays(), self.adapter
        words = f"{self.family.encoder[0].theirs[0]}.weight" if self.grows else None

        def read(plain: str) -> mx.array:
            if adapter is None:
                return read_base(plain, dtype)
            if plain in adapter.replaced:
                return adapter.replacement(plain)
            return adapter.merged(plain, read_base(plain, mx.float32 if plain in adapter.updates else dtype))

        def read_base(plain: str, dtype: mx.Dtype) -> mx.array:
            name = self.names[plain]
            packed = self.storage is not None and self.tensors[name].dtype in self.storage.dtypes
            array = self.storage.expand(stored, name, dtype) if self.storage and packed else stored[name]
            return with_new_rows(array, self.config.vocab_size) if plain == words else array

        return LazyArrays(self.names, read)


def _plain_name(name: str, family: Family) -> str:
    for prefix in family.prefixes:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    for old, new in family.old_spellings.items():
        name = re.sub(old, new, name)
    return name


def _read_storage(folder: Path, config_json: ConfigJson, weights: WeightFiles) -> Storage | None:
    """Returns the format in which the matrices are stored; `None` for plain floats."""
    if config_json.get("model_type") in static_table.MODEL_TYPES:
        return static_table.read_storage(folder, weights.tensors)
    formats = {header.metadata.get(quantized.STORAGE_KEY) for header in weights.headers.values()} - {None}
    if formats - {quantized.STORAGE}:
        raise CheckpointError(
            f"{folder}: the weights are stored as {min(map(str, formats))!r}, expected {quantized.STORAGE!r} or plain "
            "floats"
        )
    return quantized.Int8Rows() if formats else read_quantization(config_json)


@lru_cache(maxsize=16)
def _network_shapes(config: EncoderConfig) -> Mapping[str, tuple[int, ...]]:
    arrays: dict[str, mx.array] = dict(nn.utils.tree_flatten(Network(config, config.heads).parameters()))
    return FrozenDict({name: array.shape for name, array in arrays.items()})


def network_shapes(config: EncoderConfig) -> Mapping[str, tuple[int, ...]]:
    """Returns the shape of every parameter of a network with all parts, by mlxbert's names.

    The shapes of recent configurations are cached.
    """
    return _network_shapes(replace(config, pooler=True))


def part_of(name: str) -> str:
    """Returns the part that a parameter belongs to: `encoder`, `pooler`, or the name of a head."""
    root, part = name.split(".")[:2]
    return part if root == "heads" or part == "pooler" else root


def _names_of_parts(family: Family, config: EncoderConfig) -> dict[str, set[str]]:
    """Returns the plain names of the tensors that belong to the encoder and to each part."""
    ours = network_shapes(config)
    return {
        part: {name for entry in keymap.pairs(table, config, ours) for name in entry.theirs}
        for part, table in {"encoder": family.encoder, **family.parts}.items()
    }


def _plain_names(folder: Path, tensors: Iterable[str], family: Family) -> dict[str, str]:
    """Maps the plain name of each tensor to its name in the file."""
    names: dict[str, str] = {}
    for name in tensors:
        plain = _plain_name(name, family)
        if plain in names:
            raise CheckpointError(
                f"{folder}: {names[plain]!r} and {name!r} are two names of the same tensor",
                hint="save the model with only the trained one of these two tensors",
            )
        names[plain] = name
    for copy, original in family.tied.items():  # a file may hold either of two tied tensors
        if copy in names and original not in names:
            names[original] = names.pop(copy)
    return names


def _parts(config_json: ConfigJson, part_names: Mapping[str, set[str]], names: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the optional parts that the weights hold.

    Normally the tensors decide. `architectures` decides about a part if all of its tensors in the file also belong to
    other parts.
    """
    classes = config_json.strings("architectures")
    choices = any(name.endswith("ForMultipleChoice") for name in classes)  # its classifier has the same names
    held_parts = []
    for part, part_tensors in part_names.items():
        other_tensors = set().union(*(tensors for other, tensors in part_names.items() if other != part))
        head = HEADS.get(part)
        named = head is not None and any(name.endswith(head.class_names) for name in classes)
        present = part_tensors & names.keys()
        if (present - other_tensors or (present and named)) and not (choices and head is not None and head.labelled):
            held_parts.append(part)
    return tuple(part for part in held_parts if part != "encoder")


def open_checkpoint(opened: Path | ModelFolder) -> Checkpoint:
    """Opens the checkpoint of a model folder.

    Raises:
        CheckpointError: A tensor does not belong to the model, or the files are damaged or contradict each other.
        ConfigError: The configuration is invalid, or mlxbert does not run the family.
    """
    opened = open_folder(opened)
    folder, config_json = opened.transformer, opened.config_json
    if (folder / ADAPTER).is_file():
        raise CheckpointError(
            f"{folder}: {ADAPTER} and the weights of a model cannot be in the same folder",
            hint="move the adapter into a folder of its own, and pass that folder with `adapter='FOLDER'`",
        )
    family_of(config_json)  # rejects unknown families before it looks for weights
    weights = open_weights(folder, config_json.strings("architectures"), opened.headers)
    family_name, plain_family = family_of(config_json, weights.tensors)
    if weights.format == TENSORFLOW:
        config_json = rooms.part(TF_READER).with_google_defaults(config_json, weights.tensors)
    config_json = with_stored_vocabulary(config_json, plain_family, weights.tensors)
    family, config = as_classifier(opened, plain_family, plain_family.read_config(config_json))
    own_layers = [layer for layer in OWN_LAYERS if layer.used(config.labels)]
    weights = with_own_layers(weights, folder, own_layers, opened.headers)
    if config.num_stored_layers > len(weights.tensors):  # checked first: too many layers are slow to build
        raise CheckpointError(
            f"{folder}: the weights have {len(weights.tensors)} tensors, which is too few for the "
            f"{config.num_stored_layers} layers in {config_json.path.name}"
        )
    storage = _read_storage(folder, config_json, weights)
    tensors = storage.unpacked(folder, weights.tensors) if storage else weights.tensors
    checkpoint = Checkpoint(
        family_name=family_name,
        family=family,
        config_json=config_json,
        config=config,
        folder=folder,
        names=_plain_names(folder, tensors, family),
        tensors=tensors,
        ignored=(),
        parts=(),
        weights=weights,
        storage=storage,
        plain_family=plain_family,
    )
    if opened.described_by is not None and GLINER in config_json.values:
        checkpoint = _grown(checkpoint)
    part_names = _names_of_parts(family, config)
    return _with_parts(_with_adapter(checkpoint, opened, part_names), part_names)


def _grown(checkpoint: Checkpoint) -> Checkpoint:
    """Returns the checkpoint of a new GLiNER model, with a row of the word embeddings for each new token."""
    words = checkpoint.names.get(f"{checkpoint.family.encoder[0].theirs[0]}.weight")
    if words is None or len(shape := checkpoint.tensors[words].shape) != 2 or shape[0] >= checkpoint.config.vocab_size:
        return checkpoint
    grown = replace(checkpoint.tensors[words], shape=(checkpoint.config.vocab_size, shape[1]))
    return replace(checkpoint, tensors={**checkpoint.tensors, words: grown}, grows=True)


def _with_adapter(checkpoint: Checkpoint, folder: ModelFolder, part_names: Mapping[str, set[str]]) -> Checkpoint:
    """Adds the adapter of the folder: one that the user chose, or the checkpoint's own adapter for a task."""
    config_json, names, tensors = checkpoint.config_json, checkpoint.names, checkpoint.tensors
    task = folder.own_adapter
    separate = folder.adapter or (own_adapter_folder(folder.transformer, config_json, task) if task else None)
    if separate is not None:
        # Imported here, and wherever an adapter is read, because few models have one.
        from mlxbert.weights.adapters.peft_adapter import heads_of, merged_names, read_adapter, tensor_infos

        family = checkpoint.family
        shapes = {plain: tensors[name].shape for plain, name in names.items()}
        adapter = read_adapter(separate, family, config_json, checkpoint.config, part_names, shapes)
        names = merged_names(adapter, heads_of(config_json), part_names, family.tied, names)
        return replace(checkpoint, adapter=adapter, names=names, tensors={**tensors, **tensor_infos(adapter)})
    if task is not None:
        adapter = read_own_adapter(task, config_json, checkpoint.weights, names, tensors)
        return replace(checkpoint, adapter=adapter)
    return checkpoint


def _with_parts(checkpoint: Checkpoint, part_names: Mapping[str, set[str]]) -> Checkpoint:
    """Sets the parts that the weights hold and the tensors that are ignored; rejects unknown tensors."""
    family, config, names = checkpoint.family, checkpoint.config, checkpoint.names
    made_heads = [] if family is checkpoint.plain_family else [HEAD]  # its tensors also belong to other parts
    parts = tuple(dict.fromkeys((*_parts(checkpoint.config_json, part_names, names), *made_heads)))
    used = set().union(part_names["encoder"], *(part_names[part] for part in parts), family.tied)
    of_tokens = {PROJECTION} if STANFORD_CLASS in checkpoint.config_json.strings("architectures") else set()
    ignored = tuple(
        name for name in names if name not in used and (name in of_tokens or _is_ignored(name, family, part_names))
    )
    unknown = [plain for plain in names if plain not in used and plain not in ignored]
    if unknown:
        name = names[unknown[0]]
        raise CheckpointError(
            f"{checkpoint.tensors[name].file}: tensor {name!r} is not a weight of a {checkpoint.family_name} "
            f"model with {config.num_stored_layers} layers",
            hint=_unknown_hint(unknown, names, family, part_names["encoder"]),
        )
    return replace(checkpoint, config=replace(config, pooler="pooler" in parts), parts=parts, ignored=ignored)


def _is_ignored(name: str, family: Family, part_names: Mapping[str, set[str]]) -> bool:
    """Whether the network ignores a tensor: a buffer, one listed as unused, or one of a head that is not built."""
    listed = any(re.fullmatch(pattern, name) for pattern in family.buffers + family.ignored)
    return listed or any(name in tensors for tensors in part_names.values())


def _unknown_hint(unknown: Iterable[str], names: Mapping[str, str], family: Family, encoder: set[str]) -> str:
    """Returns the probable reason why tensors are unknown.

    Args:
        unknown: The plain names of the unknown tensors.
        names: Maps the plain name of each tensor to its name in the file.
        family: The family that `config.json` names.
        encoder: The plain names of the encoder's tensors.
    """
    anchor = f"{family.encoder[0].theirs[0]}.weight"
    for name in names.values():
        before = name.removesuffix(anchor)
        if name.endswith(f".{anchor}") and before not in family.prefixes:
            for prefix in family.prefixes:
                before = before.removesuffix(prefix) if before.endswith(f".{prefix}") else before
            return f"save the model without the prefix {before!r}, which another program added to the names"
    roots = {name.split(".")[0] for name in encoder}
    if encoder <= names.keys() and not any(name.split(".")[0] in roots for name in unknown):
        return "the tensor belongs to a head that mlxbert does not know, because the encoder is complete"
    return "the configuration may belong to another model"
