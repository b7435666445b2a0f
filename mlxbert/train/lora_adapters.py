"""LoRA adapters: selects the layers that get them, and writes them in the format of PEFT.

See `mlxbert.weights.adapters.peft_adapter` for the format.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.heads import FINE_TUNED, HEADS, Network, has_own, is_tied
from mlxbert.train.base_model import BaseModel
from mlxbert.train.nn.lora_layers import LoraSettings, adapt
from mlxbert.train.objectives.task_objective import TaskObjective
from mlxbert.train.options.loop_options import ALL_LINEAR, TrainingOptions
from mlxbert.train.training_plan import TrainingPlan
from mlxbert.weights.adapters.peft_adapter import MAGNITUDE, PREFIX, Target, targets
from mlxbert.weights.build import parameters
from mlxbert.weights.checkpoint import network_shapes
from mlxbert.weights.families import keymap
from mlxbert.weights.families.registry import Architecture
from mlxbert.weights.formats.file_names import ADAPTER, ADAPTER_WEIGHTS
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import BUILTIN, local_folder
from mlxbert.weights.rerankers import has_decoder_classifier
from mlxbert.weights.save import is_own, write_file, write_json, write_own

_WORDS = "encoder.embeddings.word.weight"


def saved_whole(architecture: Architecture, network: Network, heads: Iterable[str] | None = None) -> tuple[str, ...]:
    """Returns the prefixes of parameters that are saved as a whole next to adapters: trained heads and a fresh pooler.

    The pooler is fresh if the checkpoint has none.
    """
    fresh = "pooler" in network.encoder and "pooler" not in (architecture.parts or ())
    trained = network.heads if heads is None else heads
    return (*(f"heads.{head}." for head in trained), *(["encoder.pooler."] if fresh else ()))


def _updates(
    prefix: str, ours: Mapping[str, mx.array], targets: Sequence[Target], head_size: int
) -> dict[str, mx.array]:
    """Returns the tensors of adapters by their names in the file: the matrices A and B and, for DoRA, the magnitudes.

    If several of our layers are one module in transformers, they share the matrix A, and the rows of their matrices B
    are joined.
    """
    arrays: dict[str, mx.array] = {}
    for target in targets:
        name, paths = prefix + target.name, target.ours
        arrays[f"{name}.lora_A.weight"] = ours[f"{paths[0]}.lora_a"]
        for ours_suffix, theirs in (("lora_b", "lora_B.weight"), ("magnitude", MAGNITUDE)):
            if f"{paths[0]}.{ours_suffix}" in ours:
                rows = [ours[f"{path}.{ours_suffix}"] for path in paths]
                (arrays[f"{name}.{theirs}"],) = target.operation.save(rows, 1, head_size)
    return arrays


def _saved(architecture: Architecture, network: Network, kept: tuple[str, ...]) -> dict[str, mx.array]:
    """Returns the parameters whose names begin with one of the prefixes in `kept`, as tensors by plain name.

    If a saved head has a decoder that is tied to the word embeddings, a copy of them is included as the decoder.
    """
    family = architecture.family
    ours = {name: array for name, array in parameters(network).items() if name.startswith(kept)}
    entries = keymap.pairs(family.table(["pooler", *network.heads]), network.encoder.config, ours)
    saved = {plain: array for entry in entries for plain, array in keymap.save(entry, ours).items()}
    if is_tied(head for head in network.heads if f"heads.{head}." in kept):
        # PEFT saves whole modules, and the decoder is one of them.
        words = parameters(network)[_WORDS]
        saved |= {copy: saved.get(original, words) for copy, original in family.tied.items()}
    return saved


def _modules(names: Iterable[str]) -> list[str]:
    """Returns the smallest module that contains all of these tensors, for each first component of their names."""
    roots: dict[str, list[list[str]]] = {}
    for name in names:
        roots.setdefault(name.split(".")[0], []).append(name.split(".")[:-1])
    columns = (zip(*group, strict=False) for group in roots.values())  # the components of all names, up to the shortest
    shared = ([*itertools.takewhile(lambda parts: len({*parts}) == 1, each)] for each in columns)
    return sorted(".".join(parts[0] for parts in each) for each in shared)


@dataclass(frozen=True)
class Adapters:
    """The LoRA adapters of a model."""

    targets: tuple[Target, ...]  # the modules that have adapters
    settings: LoraSettings  # the rank and the other settings of the adapters
    trained: frozenset[str]  # the names of the trained parameters: adapters, heads, and a newly initialized pooler
    heads: tuple[str, ...] | None = None  # the names of the trained heads; `None` if all heads are trained

    def writer(self, model: Model, base: BaseModel) -> Callable[[Path], None]:
        """Returns a function that writes the adapters and heads of a trained model into a folder, in PEFT's format."""
        on_disk = base.name != BUILTIN and local_folder(base.name) is not None
        names = {
            "base_model_name_or_path": str(base.folder.resolve()) if on_disk else base.name,
            "revision": base.ref.revision,
        }
        return lambda folder: self._write(folder, model.architecture, model.network, names)

    def _write(
        self, folder: Path, architecture: Architecture, network: Network, base: Mapping[str, str | None]
    ) -> None:
        """Writes `adapter_model.safetensors` and `adapter_config.json`, which names the base model."""
        saved = _saved(architecture, network, saved_whole(architecture, network, self.heads))
        own_arrays = {name: array for name, array in saved.items() if is_own(name)}
        encoder_roots = {stem.split(".")[0] for entry in architecture.family.table(["pooler"]) for stem in entry.theirs}
        prefix = architecture.family.prefixes[0] if network.heads else ""
        arrays = _updates(prefix, parameters(network), self.targets, network.encoder.config.head_size)
        for plain in saved.keys() - own_arrays.keys():
            arrays[f"{prefix if plain.split('.')[0] in encoder_roots else ''}{plain}"] = saved[plain]
        exported = partial(architecture.family.exported, architecture.config_json)
        arrays = {PREFIX + exported(name): array for name, array in arrays.items()}
        mx.eval(arrays, own_arrays)
        write_file(folder / ADAPTER_WEIGHTS, dict(sorted(arrays.items())), {"format": "pt"})
        write_own(own_arrays, folder)
        settings = self.settings
        values: dict[str, Any] = {
            "peft_type": "LORA",
            "task_type": HEADS[next(iter(network.heads))].peft_type if network.heads else "FEATURE_EXTRACTION",
            **base,
            "r": settings.rank,
            "lora_alpha": settings.alpha,
            "lora_dropout": settings.dropout,
            "use_rslora": settings.rslora,
            "use_dora": settings.dora,
            "target_modules": [target.name for target in self.targets],
            "modules_to_save": _modules(saved.keys() - own_arrays.keys()) or None,
            "bias": "none",
            "fan_in_fan_out": False,
            "init_lora_weights": True,
            "inference_mode": True,
        }
        write_json(folder / ADAPTER, values)


def adapt_model(model: Model, options: TrainingOptions, heads: tuple[str, ...] | None = None) -> Adapters | None:
    """Adds adapters to the network of a model; returns `None` if the options ask for none."""
    settings = options.adapters
    if settings is None:
        return None
    chosen = choose(model.architecture, options)
    names = adapt(model.network, (target.ours for target in chosen), settings, options.seed)
    kept = saved_whole(model.architecture, model.network, heads)
    names |= {name for name in parameters(model.network) if name.startswith(kept)}
    return Adapters(chosen, settings, frozenset(names), heads)


def refuse_adapter(files: ModelFolder) -> None:
    """Raises `ArgumentError` if the base model is itself an adapter, which cannot be the base of another one."""
    if adapter := files.adapter or files.own_adapter:
        raise ArgumentError(
            f"{adapter}: is an adapter, but only a model can be the base of an adapter",
            hint=f"`mlxbert.convert(BASE, FOLDER, adapter={str(adapter)!r})` merges the adapter into a model",
        )


def check_adapters(architecture: Architecture, options: TrainingOptions, plan: TrainingPlan) -> None:
    """Raises `ArgumentError` if layer names are unknown, or if an adapter could not store all that training changes."""
    choose(architecture, options)
    if isinstance(plan.objective, TaskObjective) and plan.objective.adds_layers:
        raise ArgumentError("`lora` cannot be combined with token vectors, whose layers an adapter cannot hold")
    for name in ("pooling", "normalize"):
        if (value := plan.objective.settings().get(name)) is not None:
            raise ArgumentError(
                f"`{name}` is {value!r}, which `lora` cannot change: an adapter makes vectors like its base model"
            )
    if any(has_own([head], labels) for head, labels in plan.heads.items()):
        raise ArgumentError(
            "`few_shot` and `lora` cannot be combined, because an adapter cannot store a classifier of vectors"
        )
    if has_decoder_classifier(architecture) and not {*plan.heads}.isdisjoint(architecture.parts or ()):
        raise ArgumentError(
            "`lora` cannot train the classifier of a language model, because it is derived from the decoder",
            hint="`mlxbert.save(mlxbert.load(MODEL, task='classify'), FOLDER)` stores a classifier for `lora`",
        )
    if unsupported := [head for head in plan.heads if head not in FINE_TUNED]:
        raise ArgumentError(
            f"`lora` supports the heads {', '.join(FINE_TUNED)}, but this objective trains the head {unsupported[0]}"
        )


def choose(architecture: Architecture, options: TrainingOptions) -> tuple[Target, ...]:
    """Returns the modules of an encoder that get adapters, in the order of the network.

    `options.lora_layers` is `all-linear`, or a list of names separated by commas. A name selects every module whose
    full name equals the name or ends with it.
    """
    config = architecture.config
    shapes = network_shapes(config)
    linear = {
        name.removesuffix(".weight") for name, shape in shapes.items()
        if name.startswith("encoder.layers.") and name.endswith(".weight") and len(shape) == 2
    }  # fmt: skip
    candidates = targets(architecture.family, architecture.config_json, config)
    linears = [target for target in candidates if linear.issuperset(target.ours)]
    all_linear = options.lora_layers == ALL_LINEAR
    names = {} if all_linear else {name.strip(): None for name in options.lora_layers.split(",")}
    for name in names:
        if not any(name in target.names for target in linears):
            raise ArgumentError(
                f"`lora_layers` names {name!r:.60}, expected {ALL_LINEAR} or any of {', '.join(_both_names(linears))}"
            )
    chosen = tuple(target for target in linears if all_linear or not target.names.isdisjoint(names))
    for target in chosen:
        matrices = [shapes[f"{path}.weight"] for path in target.ours]
        width = min(sum(rows for rows, _ in matrices), matrices[0][1])
        if options.lora is not None and options.lora > width:  # no update of such a matrix has a higher rank
            raise ArgumentError(f"`lora` is {options.lora:,}, expected at most {width:,}, the width of {target.inside}")
    return chosen


def _both_names(layer_targets: list[Target]) -> list[str]:
    """Lists the modules of a layer by their names in mlxbert, each followed by its name in transformers."""
    names = {target.inside: [path.rpartition(".")[2] for path in target.ours] for target in layer_targets}
    return [f"{ours} ({theirs})" for theirs, paths in names.items() for ours in paths]
