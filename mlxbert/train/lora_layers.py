"""Selects the layers that get LoRA adapters, and the parameters that are trained in addition."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlxbert.errors import ArgumentError
from mlxbert.model import Model
from mlxbert.nn.heads import FINE_TUNED, has_own
from mlxbert.nn.lora import LoraSettings, adapt
from mlxbert.train.base_model import BaseModel
from mlxbert.train.objectives.task_objective import TaskObjective
from mlxbert.train.options.loop_options import ALL_LINEAR, TrainingOptions
from mlxbert.train.save_adapter import saved_whole, write_adapter
from mlxbert.train.training_plan import TrainingPlan
from mlxbert.weights.adapters.peft_names import Target, targets
from mlxbert.weights.build import parameters
from mlxbert.weights.causal_reranker import has_decoder_classifier
from mlxbert.weights.checkpoint import network_shapes
from mlxbert.weights.families.registry import Architecture
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import BUILTIN, local_folder


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
        return lambda folder: write_adapter(
            folder, model.architecture, model.network, self.targets, self.settings, names, self.heads
        )


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
            hint=f"mlxbert.convert(BASE, FOLDER, adapter={str(adapter)!r}) merges the adapter into a model",
        )


def check_adapters(architecture: Architecture, options: TrainingOptions, plan: TrainingPlan) -> None:
    """Raises `ArgumentError` if layer names are unknown, or if an adapter could not store all that training changes."""
    choose(architecture, options)
    if isinstance(plan.objective, TaskObjective) and plan.objective.adds_layers:
        raise ArgumentError("lora cannot be combined with vectors of tokens, whose layers an adapter cannot hold")
    for name in ("pooling", "normalize"):
        if (value := plan.objective.settings().get(name)) is not None:
            raise ArgumentError(
                f"{name} is {value!r}, which lora cannot change, because an adapter makes vectors like its base model"
            )
    if any(has_own([head], labels) for head, labels in plan.heads.items()):
        raise ArgumentError(
            "few_shot and lora cannot be combined, because an adapter cannot store a classifier of vectors"
        )
    if has_decoder_classifier(architecture) and not {*plan.heads}.isdisjoint(architecture.parts or ()):
        raise ArgumentError(
            "lora cannot train the classifier of a language model, because the classifier is derived from the decoder",
            hint="mlxbert.save(mlxbert.load(MODEL, task='classify'), FOLDER) stores a classifier that lora can train",
        )
    if unsupported := [head for head in plan.heads if head not in FINE_TUNED]:
        raise ArgumentError(
            f"lora supports the heads {', '.join(FINE_TUNED)}, but this objective trains the head {unsupported[0]}"
        )


def choose(architecture: Architecture, options: TrainingOptions) -> tuple[Target, ...]:
    """Returns the modules of an encoder that get adapters, in the order of the network.

    Args:
        options: Their field `lora_layers` is `all-linear`, or a list of names separated by commas. A name selects every
            module whose full name equals the name or ends with it.
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
                f"lora_layers names {name!r:.60}, expected {ALL_LINEAR} or any of {', '.join(_both_names(linears))}"
            )
    chosen = tuple(target for target in linears if all_linear or not target.names.isdisjoint(names))
    for target in chosen:
        matrices = [shapes[f"{path}.weight"] for path in target.ours]
        width = min(sum(rows for rows, _ in matrices), matrices[0][1])
        if options.lora is not None and options.lora > width:  # no update of such a matrix has a higher rank
            raise ArgumentError(f"lora is {options.lora:,}, expected at most {width:,}, the width of {target.inside}")
    return chosen


def _both_names(layer_targets: list[Target]) -> list[str]:
    """Lists the modules of a layer by their names in mlxbert, each followed by its name in transformers."""
    names = {target.inside: [path.rpartition(".")[2] for path in target.ours] for target in layer_targets}
    return [f"{ours} ({theirs})" for theirs, paths in names.items() for ours in paths]
