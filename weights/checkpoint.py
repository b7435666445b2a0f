"""Opens a model folder: which family, which parts, which tensor is which parameter of the network.

Opening reads the configuration and the headers of the weights; data is read when a network is built.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from pathlib import Path

from mlxbert.config import EncoderConfig
from mlxbert.errors import CheckpointError
from mlxbert.frozen import FrozenDict
from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads import HEADS, OWN_LAYERS, Network
from mlxbert.weights.adapters.peft_adapter import Adapter, heads_of, merged_names, read_adapter, tensor_infos
from mlxbert.weights.adapters.task_adapters import own_adapter_folder, read_own_adapter
from mlxbert.weights.causal_reranker import HEAD, as_classifier
from mlxbert.weights.families import keymap
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.registry import Architecture, family_of
from mlxbert.weights.formats import int8_rows
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.formats.file_names import ADAPTER
from mlxbert.weights.formats.headers import LazyArrays, TensorInfo
from mlxbert.weights.formats.quantized import Storage, read_quantization
from mlxbert.weights.formats.weight_files import TENSORFLOW, WeightFiles, open_weights, with_own
from mlxbert.weights.google_config import with_google_defaults
from mlxbert.weights.model_folder import ModelFolder, open_folder


@dataclass(frozen=True, kw_only=True)
class Checkpoint(Architecture):
    """An opened model folder; the `pooler` of its `config` is whether the weights hold one.

    Attributes:
        folder: The folder.
        names: The name in the file of every tensor, by its plain name: without prefix, in the current spelling.
        tensors: The entries of the headers, by the name in the file; one for a matrix stored as several tensors.
        ignored: Plain names of tensors that the network does not use.
        parts: Which optional parts (pooler, heads) the weights hold.
        weights: The files.
        storage: How matrices are stored if not as plain floats.
        plain_family: The family without a classifier that is made of a decoder, see `mlxbert.weights.causal_reranker`.
        adapter: What is merged into the weights; `None` for the weights as they are.
    """

    folder: Path
    names: dict[str, str]
    tensors: dict[str, TensorInfo]
    ignored: tuple[str, ...]
    parts: tuple[str, ...]
    weights: WeightFiles
    storage: Storage | None
    plain_family: Family
    adapter: Adapter | None = None

    def without_weights(self) -> Architecture:
        """What remains of a checkpoint when its files are closed."""
        found = {field.name: getattr(self, field.name) for field in fields(Architecture)}
        return Architecture(**found | {"family": self.plain_family})

    @cached_property
    def table(self) -> keymap.Table:
        """The names of everything the weights hold."""
        return self.family.table(self.parts)

    def arrays(self, dtype: mx.Dtype) -> Mapping[str, mx.array]:
        """All tensors by their plain names, each read when it is used; those in `storage` expanded to `dtype`.

        With an adapter they are merged, in float32.
        """
        stored, adapter = self.weights.arrays(), self.adapter

        def read(plain: str) -> mx.array:
            if adapter is None:
                return read_base(plain, dtype)
            if plain in adapter.replaced:
                return adapter.replacement(plain)
            return adapter.merged(plain, read_base(plain, mx.float32 if plain in adapter.updates else dtype))

        def read_base(plain: str, dtype: mx.Dtype) -> mx.array:
            name = self.names[plain]
            if self.storage is not None and self.tensors[name].dtype in self.storage.dtypes:
                return self.storage.expand(stored, name, dtype)
            return stored[name]

        return LazyArrays(self.names, read)


def _plain(name: str, family: Family) -> str:
    for prefix in family.prefixes:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    for old, new in family.old_spellings.items():
        name = re.sub(old, new, name)
    return name


def _read_storage(folder: Path, config_json: ConfigJson, weights: WeightFiles) -> Storage | None:
    """How matrices are stored; `None` for plain floats."""
    named = {header.metadata.get(int8_rows.STORAGE_KEY) for header in weights.headers.values()} - {None}
    if named - {int8_rows.STORAGE}:
        raise CheckpointError(
            f"{folder}: weights stored as {min(map(str, named))!r}, expected {int8_rows.STORAGE!r} or plain floats"
        )
    return int8_rows.Int8Rows() if named else read_quantization(config_json)


@lru_cache(maxsize=16)
def _network_shapes(config: EncoderConfig) -> Mapping[str, tuple[int, ...]]:
    arrays: dict[str, mx.array] = dict(nn.utils.tree_flatten(Network(config, config.heads).parameters()))
    return FrozenDict({name: array.shape for name, array in arrays.items()})


def network_shapes(config: EncoderConfig) -> Mapping[str, tuple[int, ...]]:
    """The shape of every parameter of a network with every part, by our names; the network is built once."""
    return _network_shapes(replace(config, pooler=True))


def part_of(name: str) -> str:
    """The part that one of our parameters belongs to: `encoder`, `pooler`, or a head by its name."""
    root, part = name.split(".")[:2]
    return part if root == "heads" or part == "pooler" else root


def _names_of_parts(family: Family, config: EncoderConfig) -> dict[str, set[str]]:
    """The plain names of the tensors that make up the encoder and each part."""
    ours = network_shapes(config)
    return {
        part: {name for entry in keymap.pairs(table, config, ours) for name in entry.theirs}
        for part, table in {"encoder": family.encoder, **family.parts}.items()
    }


def _plain_names(folder: Path, tensors: Iterable[str], family: Family) -> dict[str, str]:
    """The name in the file of every tensor, by its plain name."""
    names: dict[str, str] = {}
    for name in tensors:
        plain = _plain(name, family)
        if plain in names:
            raise CheckpointError(
                f"{folder}: {names[plain]!r} and {name!r} are two spellings of one tensor",
                hint="save the model with one of them, the one that was trained",
            )
        names[plain] = name
    for copy, original in family.tied.items():  # of two tied tensors a file may hold either
        if copy in names and original not in names:
            names[original] = names.pop(copy)
    return names


def _parts(config_json: ConfigJson, known: Mapping[str, set[str]], names: Mapping[str, str]) -> tuple[str, ...]:
    """Which parts the weights hold.

    The tensors decide, unless a part shares all that the file has with other parts: then `architectures` decides.
    """
    classes = config_json.strings("architectures")
    choices = any(name.endswith("ForMultipleChoice") for name in classes)  # its classifier has the others' names
    found = []
    for part, wanted in known.items():
        others = set().union(*(tensors for other, tensors in known.items() if other != part))
        head = HEADS.get(part)
        named = head is not None and any(name.endswith(head.class_names) for name in classes)
        present = wanted & names.keys()
        if (present - others or (present and named)) and not (choices and head is not None and head.labelled):
            found.append(part)
    return tuple(part for part in found if part != "encoder")


def open_checkpoint(opened: Path | ModelFolder) -> Checkpoint:
    """Opens the checkpoint of a model folder and accounts for every tensor in it."""
    opened = open_folder(opened)
    folder, config_json = opened.transformer, opened.config_json
    if (folder / ADAPTER).is_file():
        raise CheckpointError(
            f"{folder}: has an {ADAPTER} next to weights of its own, expected a model or an adapter",
            hint="move the adapter into a folder of its own, and name that, too: adapter='FOLDER'",
        )
    family_of(config_json)  # refuses what has none before its weights are looked for
    weights = open_weights(folder, config_json.strings("architectures"), opened.headers)
    family_name, plain = family_of(config_json, weights.tensors)
    if weights.format == TENSORFLOW:
        config_json = with_google_defaults(config_json, weights.tensors)
    family, config = as_classifier(opened, plain, plain.read_config(config_json))
    weights = with_own(weights, folder, (own for own in OWN_LAYERS if own.used(config.labels)), opened.headers)
    if config.num_stored_layers > len(weights.tensors):  # checked first, as building that many takes long
        raise CheckpointError(
            f"{folder}: {len(weights.tensors)} tensors, expected those of the {config.num_stored_layers} layers in "
            f"{config_json.path.name}"
        )
    storage = _read_storage(folder, config_json, weights)
    tensors = storage.unpacked(folder, weights.tensors) if storage else weights.tensors
    names = _plain_names(folder, tensors, family)
    known = _names_of_parts(family, config)
    adapter, task = None, opened.own_adapter
    separate = opened.adapter or (own_adapter_folder(opened.transformer, config_json, task) if task else None)
    if separate is not None:
        shapes = {plain: tensors[name].shape for plain, name in names.items()}
        adapter = read_adapter(separate, family, config_json, config, known, shapes)
        names = merged_names(adapter, heads_of(config_json), known, family.tied, names)
        tensors = {**tensors, **tensor_infos(adapter)}
    elif task is not None:
        adapter = read_own_adapter(task, config_json, weights, names, tensors)
    made = [] if family is plain else [HEAD]  # of tensors that are also others'
    parts = tuple(dict.fromkeys((*_parts(config_json, known, names), *made)))
    ours = set().union(known["encoder"], *(known[part] for part in parts), family.tied)
    ignored = tuple(name for name in names if name not in ours and _is_ignored(name, family, known))
    unknown = [plain for plain in names if plain not in ours and plain not in ignored]
    if unknown:
        name = names[unknown[0]]
        raise CheckpointError(
            f"{tensors[name].file}: unknown tensor {name!r}: not a weight of a {family_name} model "
            f"with {config.num_stored_layers} layers",
            hint=_unknown_hint(unknown, names, family, known["encoder"]),
        )
    config = replace(config, pooler="pooler" in parts)
    return Checkpoint(
        family_name=family_name,
        family=family,
        config_json=config_json,
        config=config,
        folder=folder,
        names=names,
        tensors=tensors,
        ignored=ignored,
        parts=parts,
        weights=weights,
        storage=storage,
        plain_family=plain,
        adapter=adapter,
    )


def _is_ignored(name: str, family: Family, known: Mapping[str, set[str]]) -> bool:
    """Whether a tensor is a buffer or known to be unused, or belongs to a head that nothing identifies."""
    listed = any(re.fullmatch(pattern, name) for pattern in family.buffers + family.ignored)
    return listed or any(name in tensors for tensors in known.values())


def _unknown_hint(unknown: Iterable[str], names: Mapping[str, str], family: Family, encoder: set[str]) -> str:
    """The probable reason for tensors that no table knows.

    Args:
        unknown: Their plain names.
        names: The name in the file of every tensor, by its plain name.
        family: The family that `config.json` names.
        encoder: Plain names of the tensors that make up its encoder.
    """
    anchor = f"{family.encoder[0].theirs[0]}.weight"
    for name in names.values():
        before = name.removesuffix(anchor)
        if name.endswith(f".{anchor}") and before not in family.prefixes:
            for own in family.prefixes:
                before = before.removesuffix(own) if before.endswith(f".{own}") else before
            return f"names begin with {before!r}, a prefix that other programs add: save the model without it"
    roots = {name.split(".")[0] for name in encoder}
    if encoder <= names.keys() and not any(name.split(".")[0] in roots for name in unknown):
        return "the encoder is complete: the tensor belongs to a head that mlxbert does not know"
    return "the configuration may belong to another model"
