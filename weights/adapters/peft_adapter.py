"""Reads adapters in the format of PEFT: `adapter_config.json` and `adapter_model.safetensors`.

The weights of the base model are merged with the adapter while they are read. All code that loads a checkpoint can
therefore load an adapted checkpoint, too. Format: https://huggingface.co/docs/peft/developer_guides/checkpoint.

PEFT uses the names that modules have in memory in transformers. Some of them differ from the names on disk. A matrix
may be fused both on disk and in memory, on disk only, or not at all (see `Target`).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mlxbert.config import EncoderConfig
from mlxbert.errors import CheckpointError, ConfigError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.nn.heads import HEADS, OWN_LAYERS, is_tied
from mlxbert.nn.lora import merged, scale_of
from mlxbert.weights.adapters.module_selection import Selection
from mlxbert.weights.families import keymap
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.registry import family_of
from mlxbert.weights.formats import safetensors
from mlxbert.weights.formats.config_json import ConfigJson, read_json
from mlxbert.weights.formats.file_names import ADAPTER, ADAPTER_WEIGHTS
from mlxbert.weights.formats.headers import TensorInfo, expect_floats
from mlxbert.weights.formats.weight_files import WeightFiles, with_own_layers
from mlxbert.weights.hub.needed_files import CONFIG


@dataclass(frozen=True)
class Target:
    """A module that an adapter can update."""

    name: str  # the name in memory, without the family's prefix
    ours: tuple[str, ...]  # the paths of our layers that together make up the module, in the order of its rows
    tensor: str  # the plain name of the tensor on disk that holds the module's weights
    part: int = 0  # the index of the module's part if the rows of the tensor are divided among several modules
    parts: int = 1  # the number of parts, all of equal size, into which the rows of the tensor are divided
    # The operation that is applied to the rows when they are read from the file.
    operation: keymap.TensorOperation = keymap.SAME

    @property
    def layered(self) -> bool:
        """Whether the module is in a layer of the encoder."""
        return self.ours[0].startswith("encoder.layers.")

    @property
    def inside(self) -> str:
        """The name of the module within its layer."""
        return re.sub(r"^.*\.\d+\.", "", self.name)

    @property
    def names(self) -> set[str]:
        """All names by which the settings of an adapter can refer to the module.

        The text up to the number of the layer is removed from the name in memory and from the paths of our layers. All
        suffixes of the rest are returned, for example `attention.self.query`, `self.query` and `query`.
        """
        roots = (self.inside, *(re.sub(r"^.*\.\d+\.", "", path) for path in self.ours))
        return {".".join(parts[start:]) for name in roots for parts in [name.split(".")] for start in range(len(parts))}


def targets(
    family: Family, config_json: ConfigJson, config: EncoderConfig, parts: Iterable[str] = ()
) -> Iterator[Target]:
    """Yields every module, not only linear layers, whose weights are one tensor on disk or part of one.

    Args:
        parts: The pooler and heads to include; the modules of the encoder are always included.
    """
    in_code = family.foreign(config_json, config)  # in the authors' code, modules are named like tensors
    for entry in keymap.expand(family.table(parts), config.num_stored_layers):
        if len(entry.theirs) != 1:
            continue
        (stem,) = entry.theirs
        names = (family.exported(config_json, f"{stem}.")[:-1],) if in_code else _in_memory(family, stem)
        if len(names) == 1:
            yield Target(names[0], entry.ours, f"{stem}.weight", operation=entry.operation)
        else:
            for part, (name, path) in enumerate(zip(names, entry.ours, strict=True)):
                yield Target(name, (path,), f"{stem}.weight", part, len(names))


def _in_memory(family: Family, stem: str) -> tuple[str, ...]:
    """Returns the names in memory of the module that has the name `stem` on disk.

    There are several names if the tensor on disk holds several modules that are separate in memory.
    """
    for pattern, names in family.modules.items():
        if match := re.fullmatch(pattern, stem):
            return tuple(match.expand(name) for name in names)
    return (stem,)


PREFIX = "base_model.model."
MAGNITUDE = "lora_magnitude_vector"
_LORA = re.compile(rf"(.+)\.(?:lora_([AB])\.weight|({MAGNITUDE})(?:\.weight)?)")
_MERGE = "load the adapter with peft, merge it (merge_and_unload) and save the model"
_MISMATCH = f"copy {ADAPTER} and {ADAPTER_WEIGHTS} from the same place"
# Settings that change what an adapter computes, and the only values that mlxbert supports.
_ONLY = {"bias": "none", "lora_bias": False, "use_qalora": False, "megatron_config": None, "layer_replication": None}
_ONLY |= {"fan_in_fan_out": False}  # of layers that store (in, out), as in GPT-2
_ONLY |= dict.fromkeys(("alora_invocation_tokens", "arrow_config", "use_bdlora", "kasa_config", "monteclora_config"))
_ONLY |= dict.fromkeys(("target_parameters", "trainable_token_indices"))
_INITIAL = (True, False, "gaussian", "orthogonal", "eva")  # other values change the weights of the base, too
# The keys of a config.json that name a head, its labels, and the activation of its scores.
_HEAD_KEYS: tuple[str, ...] = (
    *("architectures", *Labels().to_config(), "sentence_transformers", "sbert_ce_default_activation_function"),
)


def read_settings(folder: Path) -> ConfigJson:
    """Reads the `adapter_config.json` of a folder, and checks that mlxbert supports its settings."""
    path = folder / ADAPTER
    if not path.is_file():
        raise ConfigError(
            f"{folder}: the folder has no {ADAPTER}",
            hint="pass the folder that training with lora wrote, or another adapter in PEFT's format",
        )
    settings = ConfigJson(path, read_json(path, ConfigError))
    settings.choice("peft_type", ("LORA",))
    for key, value in _ONLY.items():
        if settings.get(key, value) not in (value, [], {}):
            raise settings.refuse(key, f"{value!r}, the only value that mlxbert supports", hint=_MERGE)
    if settings.get("init_lora_weights", True) not in _INITIAL:
        choices = ", ".join(map(repr, _INITIAL))
        raise settings.refuse(
            "init_lora_weights",
            f"one of {choices}, because other values change the weights of the base model, too",
            hint=_MERGE,
        )
    return settings


def heads_of(config_json: ConfigJson) -> tuple[str, ...]:
    """Returns the heads that belong to the first class in `architectures`; empty if it is a class without a head."""
    classes = config_json.strings("architectures")[:1]
    return tuple(head for head, spec in HEADS.items() for name in classes if name.endswith(spec.class_names))


def adapted_config(folder: Path, base: ConfigJson) -> ConfigJson:
    """Returns the `config.json` of the base model, with the head and the labels of an adapter.

    mlxbert writes the head and the labels to a `config.json` next to the adapter. PEFT writes no such file: in this
    case, the class that the adapter was trained for determines the head. The labels are then taken from the base model
    if their number fits; otherwise they are `LABEL_0`, `LABEL_1` and so on.
    """
    settings, (name, family) = read_settings(folder), family_of(base)
    kept = {key: value for key, value in base.values.items() if key not in _HEAD_KEYS}
    if (folder / CONFIG).is_file():
        stated = ConfigJson(folder / CONFIG, read_json(folder / CONFIG, ConfigError))
        if family_of(stated)[1] is not family:
            raise ConfigError(
                f"{folder}: is an adapter for a {family_of(stated)[0]} model, but the base model is a {name} model"
            )
        if not heads_of(stated):
            return base
        return ConfigJson(base.path, kept | {key: stated.values[key] for key in _HEAD_KEYS if key in stated.values})
    class_name = settings.nested("auto_mapping").get("base_model_class")
    if not isinstance(class_name, str):
        head = next((spec for spec in HEADS.values() if spec.peft_type == str(settings.get("task_type"))), None)
        if head is None:
            return base
        class_name = family.class_prefixes[name] + head.class_names[0]
    adapted = ConfigJson(base.path, base.values | {"architectures": [class_name]})
    count = _outputs(folder, family, heads_of(adapted))
    if count is None or count == len(base.get("id2label") or "12"):
        return adapted
    return ConfigJson(
        base.path,
        kept | {"architectures": [class_name], "id2label": {str(n): f"LABEL_{n}" for n in range(count)}},
    )


def _outputs(folder: Path, family: Family, heads: Sequence[str]) -> int | None:
    """Returns the number of outputs of the adapter's head, or `None` if the adapter has no head with labels."""
    head = next((head for head in heads if HEADS[head].labelled), None)
    if head is None:
        return None
    stems = [entry.theirs[0] for entry in family.parts.get(head, ()) if entry.ours == (f"heads.{head}.out",)]
    info = _open_weights(folder).tensors.get(f"{PREFIX}{stems[0]}.weight") if stems else None
    return info.shape[0] if info is not None and info.shape else None


def _open_weights(folder: Path) -> WeightFiles:
    path = folder / ADAPTER_WEIGHTS
    if not path.is_file():
        raise CheckpointError(
            f"{folder}: the folder has no {ADAPTER_WEIGHTS}",
            hint="if the folder has an adapter_model.bin, load the adapter with peft and save it again",
        )
    return with_own_layers(WeightFiles("safetensors", {path: safetensors.read_header(path)}), folder, OWN_LAYERS, {})


@dataclass(frozen=True)
class WeightUpdate:
    """The update that an adapter adds to the weights of a module: a scale times the product of two matrices, B A."""

    target: Target  # the module that is updated
    scale: float  # the number by which the product of the matrices is multiplied
    # The names in the file of the tensors that hold the update. The keys are `A` and `B` for the two matrices and, for
    # DoRA, `lora_magnitude_vector`.
    names: Mapping[str, str]
    number: int | None = None  # the index of the adapter if the tensors hold a stack of several adapters, else `None`


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter that fits its base model."""

    folder: Path
    weights: WeightFiles = field(repr=False)
    # The updates of each tensor of the base model. The keys are plain names.
    updates: Mapping[str, tuple[WeightUpdate, ...]]
    # Maps the plain name of each replaced tensor of the base model to the new tensor's name in the file.
    replaced: Mapping[str, str]

    @cached_property
    def _arrays(self) -> Mapping[str, mx.array]:
        return self.weights.arrays()

    def replacement(self, plain: str) -> mx.array:
        """Reads the tensor that replaces a tensor of the base model."""
        return self._arrays[self.replaced[plain]]

    def merged(self, plain: str, base: mx.array) -> mx.array:
        """Returns a tensor of the base model with its updates applied, in float32.

        A tensor without updates is returned unchanged.
        """
        updates = self.updates.get(plain, ())
        if not updates:
            return base
        rows = [*mx.split(base.astype(mx.float32), updates[0].target.parts, axis=0)]
        for update in updates:
            pair = (self._arrays[update.names[letter]] for letter in "AB")
            index = slice(None) if update.number is None else update.number
            a, b = (array[index].astype(mx.float32) for array in pair)
            magnitude = self._arrays[update.names[MAGNITUDE]] if MAGNITUDE in update.names else None
            part = update.target.part
            rows[part] = merged(rows[part], update.scale * (b @ a), magnitude)
        return mx.concatenate(rows, axis=0)


def read_adapter(
    folder: Path,
    family: Family,
    config_json: ConfigJson,
    config: EncoderConfig,
    parts: Mapping[str, set[str]],
    shapes: Mapping[str, tuple[int, ...]],
) -> Adapter:
    """Opens an adapter without reading its tensors, and checks that it fits its base model.

    Args:
        parts: The plain names of the tensors of the encoder and of each part that the base model can have.
        shapes: The shapes of the tensors of the base model, by plain name.
    """
    settings, weights = read_settings(folder), _open_weights(folder)
    selection = Selection(settings)
    modules = {target.name: target for target in targets(family, config_json, config, family.parts)}
    adapted: dict[str, dict[str, str]] = {}
    replaced: dict[str, str] = {}
    expect_floats(weights.tensors)
    for name, info in weights.tensors.items():
        bare = name.removeprefix(PREFIX)
        if lora := _LORA.fullmatch(bare):
            adapted.setdefault(lora[1], {})[lora[2] or lora[3]] = name
        elif (plain := _without_prefix(bare, family)) in set().union(*parts.values(), family.tied):
            if plain == f"{family.encoder[0].theirs[0]}.weight":
                _check_tokens(folder, info.shape[0], shapes[plain][0])
            replaced[plain] = name
        else:
            raise _no_place_error(folder, name)
    updates: dict[str, tuple[WeightUpdate, ...]] = {}
    for module, names in adapted.items():
        target = modules.get(_without_prefix(module, family))
        if target is None or target.tensor not in shapes:
            raise _no_place_error(folder, next(iter(names.values())))
        _check_tensors(folder, weights, target, names, shapes[target.tensor])
        rank = weights.tensors[names["A"]].shape[0]
        _check_settings(selection, module, names, rank)
        stated, key = selection.stated("lora_alpha", module)
        alpha = stated.number(key, low=-1e9, high=1e9, default=8)
        scale = scale_of(rank, alpha, rslora=settings.flag("use_rslora", default=False))
        updates[target.tensor] = (*updates.get(target.tensor, ()), WeightUpdate(target, scale, names))
    linear = [target.name for target in modules.values() if target.layered and len(shapes.get(target.tensor, ())) == 2]
    _check_complete(selection, adapted, linear, family)
    return Adapter(folder, weights, updates, replaced)


def _without_prefix(name: str, family: Family) -> str:
    return next((name.removeprefix(prefix) for prefix in family.prefixes if name.startswith(prefix)), name)


def _check_settings(selection: Selection, module: str, names: Mapping[str, str], rank: int) -> None:
    """Rejects settings that contradict the adapter's tensors for a module: PEFT would skip these tensors, or fail.

    Args:
        names: The names in the file of the adapter's tensors for the module.
    """
    settings = selection.settings
    if key := selection.left_out_by(module):
        expected = f"a value that selects {module!r}, because {ADAPTER_WEIGHTS} has tensors for this module"
        raise settings.refuse(key, expected, hint=_MISMATCH)
    stated, key = selection.stated("r", module)
    if stated.integer(key, default=8) != rank:
        raise stated.refuse(key, f"{rank}, the rank of {names['A']!r} in {ADAPTER_WEIGHTS}", hint=_MISMATCH)
    dora = MAGNITUDE in names
    if settings.flag("use_dora", default=False) != dora:
        fact = f"{ADAPTER_WEIGHTS} has {'the' if dora else 'no'} {MAGNITUDE} of {module!r}"
        raise settings.refuse("use_dora", f"{'true' if dora else 'false'}, because {fact}", hint=_MISMATCH)


def _check_complete(selection: Selection, adapted: Collection[str], linear: Sequence[str], family: Family) -> None:
    """Rejects settings that select a linear layer for which the adapter's file has no tensors.

    PEFT would initialize the missing tensors randomly.

    Args:
        adapted: The names of the modules for which the adapter's file has tensors.
        linear: The names of the linear layers of the encoder, without prefix.
    """
    prefixes = [name.removesuffix(_without_prefix(name, family)) for name in adapted] or ["", *family.prefixes[:1]]
    for name in linear:
        selected = [full for full in (f"{prefix}{name}" for prefix in {*prefixes}) if not selection.left_out_by(full)]
        if selected and not {*selected} & {*adapted}:
            raise selection.settings.refuse(
                "target_modules",
                f"names of modules in {ADAPTER_WEIGHTS}, which has no tensors for {name!r}",
                hint=_MISMATCH,
            )


def _check_tensors(
    folder: Path, weights: WeightFiles, target: Target, names: Mapping[str, str], shape: tuple[int, ...]
) -> None:
    """Rejects the adapter's tensors for a module if one is missing, or if they do not fit the shape of its weights."""
    absent = [part for part in "AB" if part not in names]
    if absent:
        raise CheckpointError(f"{folder}: the adapter has no lora_{absent[0]} for module {target.name!r}")
    shapes = {part: weights.tensors[name].shape for part, name in names.items()}
    rank = shapes["A"][0] if len(shapes["A"]) == 2 else 0
    rows = shape[0] // target.parts
    expected = {"A": (rank, *shape[1:]), "B": (rows, rank), MAGNITUDE: (rows,)}
    for part, actual in shapes.items():
        if not rank or len(shape) != 2 or actual != expected[part]:
            raise CheckpointError(
                f"{folder}: tensor {names[part]!r} has shape {actual}, but {target.name!r} in the base model has "
                f"shape {(rows, *shape[1:])}",
                hint="the adapter may belong to another model",
            )


def _check_tokens(folder: Path, tokens: int, base_tokens: int) -> None:
    if tokens > base_tokens:
        raise CheckpointError(
            f"{folder}: the adapter has word embeddings of {tokens} tokens, but its base model has {base_tokens}: "
            "mlxbert merges only adapters that add no tokens",
            hint=f"merge it once with PEFT: resize_token_embeddings({tokens}) of the base, merge_and_unload; "
            "save the result with the tokenizer of the adapter",
        )


def _no_place_error(folder: Path, name: str) -> CheckpointError:
    return CheckpointError(
        f"{folder}: the base model has no place for tensor {name!r}", hint="the adapter may belong to another model"
    )


def merged_names(
    adapter: Adapter,
    heads: Collection[str],
    parts: Mapping[str, set[str]],
    tied: Mapping[str, str],
    names: Mapping[str, str],
) -> dict[str, str]:
    """Maps the plain name of each tensor of an adapted checkpoint to its name in its file.

    If the adapter has heads, the other heads of the base model are left out: they were trained for the encoder without
    the adapter.

    Args:
        heads: The heads of the adapter; empty if it adapts the encoder alone.
        tied: The tied tensors (see `Family.tied`).
    """
    dropped: set[str] = set()
    if heads:
        kept = set().union(*(parts.get(part, set()) for part in ("encoder", "pooler", *heads)))
        dropped = {name for part, part_names in parts.items() if part in HEADS for name in part_names} - kept
        dropped |= set() if is_tied(heads) else {*tied}
    return {plain: name for plain, name in names.items() if plain not in dropped} | dict(adapter.replaced)


def tensor_infos(adapter: Adapter) -> dict[str, TensorInfo]:
    """Returns the header entries of the tensors that replace tensors of the base model, by their names in the file."""
    return {name: adapter.weights.tensors[name] for name in adapter.replaced.values()}
