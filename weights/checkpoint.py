"""A model folder opened: which family, which parts, which of its tensors is which of ours.

Opening reads the configuration and the headers of the weights; data is read when a network is built.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from mlxbert.config import EncoderConfig
from mlxbert.device import mx, nn
from mlxbert.errors import CheckpointError
from mlxbert.heads import HEADS, Network
from mlxbert.weights import account, keymap, rows, safetensors
from mlxbert.weights.account import CLASSIFIERS
from mlxbert.weights.config_json import ConfigJson, read_config
from mlxbert.weights.families import family_of
from mlxbert.weights.family import CLASSES, Family
from mlxbert.weights.stored import Header, TensorInfo

ADAPTER = "adapter_config.json"


@dataclass(frozen=True)
class Checkpoint:
    """An opened model folder.

    Attributes:
        config: The encoder's facts; `pooler` says whether the weights hold one.
        names: The name in the file of every tensor, by its plain name: without prefix, in today's spelling.
        tensors: What the headers say, by the name in the file; storage scales are left out.
        ignored: Plain names of tensors that are no weights of ours.
        parts: Which optional parts (pooler, heads) the weights hold.
        storage: How the weights are stored if not as plain floats.
    """

    folder: Path
    family_name: str
    family: Family
    config_json: ConfigJson
    config: EncoderConfig
    names: dict[str, str]
    tensors: dict[str, TensorInfo]
    ignored: tuple[str, ...]
    parts: tuple[str, ...]
    storage: str | None

    @cached_property
    def table(self) -> keymap.Table:
        """The names of everything the weights hold."""
        return self.family.encoder + tuple(entry for part in self.parts for entry in self.family.parts[part])

    def arrays(self, dtype: mx.Dtype) -> dict[str, mx.array]:
        """All tensors by their plain names, lazy; those stored in 8 bits expanded to `dtype`."""
        found: dict[str, mx.array] = {}
        for file in dict.fromkeys(info.file for info in self.tensors.values()):
            found |= safetensors.load_arrays(file)
        if self.storage == rows.STORAGE:
            try:
                found = rows.expand(found, dtype)
            except CheckpointError as problem:
                raise CheckpointError(f"{self.folder}: {problem.message}") from None
        return {plain: found[name] for plain, name in self.names.items()}


def _plain(name: str, family: Family) -> str:
    for prefix in family.prefixes:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            break
    for old, new in family.old_spellings.items():
        name = re.sub(old, new, name)
    return name


def _read_headers(folder: Path, headers: Mapping[Path, Header] | None) -> tuple[dict[str, TensorInfo], str | None]:
    tensors: dict[str, TensorInfo] = {}
    storage = None
    for path, header in safetensors.read_headers(folder, headers).items():
        twice = tensors.keys() & header.tensors.keys()
        if twice:
            raise CheckpointError(f"{path}: tensor {min(twice)!r} is in {tensors[min(twice)].file.name} too")
        tensors |= header.tensors
        storage = header.metadata.get(rows.STORAGE_KEY, storage)
    if storage not in (None, rows.STORAGE):
        raise CheckpointError(f"{folder}: weights stored as {storage!r}, expected {rows.STORAGE!r} or plain floats")
    if storage == rows.STORAGE:
        tensors = {name: info for name, info in tensors.items() if not rows.is_scale(name)}
    return tensors, storage


def _whole_network(config: EncoderConfig) -> dict[str, mx.array]:
    """Our parameters, by name, of the network with every part; random and lazy."""
    network = Network(replace(config, pooler=True), HEADS)
    return dict(nn.utils.tree_flatten(network.parameters()))


def _names_of_parts(family: Family, config: EncoderConfig) -> dict[str, set[str]]:
    """The plain names of the tensors that make up the encoder and each part."""
    ours = _whole_network(config)
    return {
        part: {name for entry in keymap.pairs(table, config.num_stored_layers, ours) for name in entry.theirs}
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

    Tensors tell, unless a part shares all that are there with another: then the class does that the model was saved as.
    """
    classes = config_json.texts("architectures")
    choices = any(name.endswith("ForMultipleChoice") for name in classes)  # its classifier goes by the others' names
    found = []
    for part, wanted in known.items():
        others = set().union(*(tensors for other, tensors in known.items() if other != part))
        named = part in CLASSES and any(name.endswith(CLASSES[part]) for name in classes)
        there = wanted & names.keys()
        if (there - others or (there and named)) and not (choices and part in CLASSIFIERS):
            found.append(part)
    return tuple(part for part in found if part != "encoder")


def open_checkpoint(folder: Path, headers: Mapping[Path, Header] | None = None) -> Checkpoint:
    """Opens a model folder and accounts for every tensor in it.

    Args:
        folder: The folder.
        headers: Those of weights that are not in it but elsewhere, by where they would lie.

    Raises:
        ConfigError: `config.json` is missing or describes something mlxbert does not compute.
        CheckpointError: The weights are missing or damaged, or hold a tensor that the family does not know.
    """
    config_json = read_config(folder)
    if (folder / ADAPTER).is_file():
        raise CheckpointError(
            f"{folder}: has an {ADAPTER}: weights that an adapter changes are not read",
            hint="merge the adapter into the model and save it (peft: merge_and_unload)",
        )
    config_json.only(
        "quantization_config",
        None,
        "mlxbert does not read weights that other programs have quantized",
        hint="take the model in float32, float16 or bfloat16",
    )
    family_name, family = family_of(config_json)
    config = family.read_config(config_json)
    tensors, storage = _read_headers(folder, headers)
    names = _plain_names(folder, tensors, family)
    known = _names_of_parts(family, config)
    parts = _parts(config_json, known, names)
    ours = set().union(known["encoder"], *(known[part] for part in parts), family.tied)
    ignored = tuple(name for name in names if name not in ours and _is_ignored(name, family, known))
    unknown = [plain for plain in names if plain not in ours and plain not in ignored]
    if unknown:
        name = names[unknown[0]]
        raise CheckpointError(
            f"{tensors[name].file}: unknown tensor {name!r}: no weight of a {family_name} model "
            f"of {config.num_stored_layers} layers",
            hint=account.unknown_hint(unknown, names, family, known["encoder"]),
        )
    config = replace(config, pooler="pooler" in parts)
    return Checkpoint(folder, family_name, family, config_json, config, names, tensors, ignored, parts, storage)


def _is_ignored(name: str, family: Family, known: Mapping[str, set[str]]) -> bool:
    """Whether a tensor is no weight of ours, or one of a head of which nothing says what it is for."""
    listed = any(re.fullmatch(pattern, name) for pattern in family.ignored)
    return listed or any(name in tensors for tensors in known.values())


def _check_tied(checkpoint: Checkpoint, arrays: Mapping[str, mx.array]) -> None:
    """Refuses copies that differ from what they are tied to; the copy itself is not used."""
    for copy, original in checkpoint.family.tied.items():
        if copy in arrays and original in arrays and not mx.array_equal(arrays[copy], arrays[original]).item():
            raise account.untied_problem(copy, original).error(checkpoint)


def first_problem(checkpoint: Checkpoint, parts: Iterable[str]) -> CheckpointError | None:
    """Why a network with these parts cannot be built, as far as headers tell."""
    parts = tuple(parts)
    arrays = shapes(checkpoint, parts)
    for part in ("encoder", *parts):
        for problem in account.problems(checkpoint, part, parts, arrays):
            return problem.error(checkpoint)
    return None


def shapes(checkpoint: Checkpoint, parts: Iterable[str]) -> dict[str, mx.array]:
    """The parameters of a network with these parts; random and lazy, only names and shapes count."""
    return dict(nn.utils.tree_flatten(_empty_network(checkpoint, tuple(parts)).parameters()))


def _empty_network(checkpoint: Checkpoint, parts: tuple[str, ...]) -> Network:
    config = replace(checkpoint.config, pooler="pooler" in parts)
    return Network(config, [part for part in parts if part in HEADS])


def build_network(checkpoint: Checkpoint, parts: Iterable[str], dtype: mx.Dtype) -> Network:
    """The network with its weights in place and read from disk.

    Args:
        checkpoint: The opened folder.
        parts: Which optional parts to build; each must be in the weights.
        dtype: What to compute in.

    Raises:
        CheckpointError: A tensor is missing, has another shape or dtype than expected, or is tied and differs.
    """
    parts = tuple(parts)
    problem = first_problem(checkpoint, parts)
    if problem is not None:
        raise problem
    network = _empty_network(checkpoint, parts)
    ours: dict[str, mx.array] = dict(nn.utils.tree_flatten(network.parameters()))
    arrays = checkpoint.arrays(dtype)
    loaded: dict[str, mx.array] = {}
    for entry in keymap.pairs(checkpoint.table, checkpoint.config.num_stored_layers, ours):
        loaded |= {name: array.astype(dtype) for name, array in keymap.load(entry, arrays).items()}
    assert loaded.keys() == ours.keys(), f"the table of {checkpoint.family_name} lacks {ours.keys() - loaded.keys()}"
    if "masked_lm" in parts:
        _check_tied(checkpoint, arrays)
    network.update(nn.utils.tree_unflatten(list(loaded.items())))
    network.eval()
    mx.eval(network.parameters())
    return network


def to_theirs(family: Family, config: EncoderConfig, arrays: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """Our tensors under the family's names: the way back of `build_network`.

    The prefix is written when a head lies beside the encoder, as the family's own files have it.
    """
    table = family.encoder + tuple(entry for part in family.parts.values() for entry in part)
    prefix = family.prefixes[0] if any(name.startswith("heads.") for name in arrays) else ""
    theirs: dict[str, mx.array] = {}
    for entry in keymap.pairs(table, config.num_stored_layers, arrays):
        inside = prefix if entry.ours[0].startswith("encoder.") else ""
        theirs |= {inside + name: array for name, array in keymap.save(entry, arrays).items()}
    return theirs
