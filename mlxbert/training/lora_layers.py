"""Which layers get adapters, and which parameters are trained next to them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlxbert.errors import ArgumentError
from mlxbert.model import Model
from mlxbert.nn.heads import FINE_TUNED, has_own
from mlxbert.nn.lora import LoraSettings, adapt
from mlxbert.training.base_model import BaseModel
from mlxbert.training.options.loop_options import ALL_LINEAR, TrainingOptions
from mlxbert.training.training_plan import TrainingPlan
from mlxbert.weights.adapters.peft_names import Target, targets
from mlxbert.weights.build import parameters
from mlxbert.weights.causal_reranker import has_decoder_classifier
from mlxbert.weights.checkpoint import network_shapes
from mlxbert.weights.families.registry import Architecture
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import BUILTIN, local_folder
from mlxbert.weights.save_adapter import saved_whole, write_adapter


@dataclass(frozen=True)
class Adapters:
    """The adapters of a model.

    Attributes:
        targets: The modules that are adapted.
        settings: How they are adapted.
        trained: The names of the parameters that are trained: adapters, heads, and a pooler that is fresh.
        heads: The heads that are trained; `None` for all.
    """

    targets: tuple[Target, ...]
    settings: LoraSettings
    trained: frozenset[str]
    heads: tuple[str, ...] | None = None

    def writer(self, model: Model, base: BaseModel) -> Callable[[Path], None]:
        """Writes the adapters and heads of a trained model into a folder, in PEFT's format.

        Args:
            model: The model.
            base: Its base.
        """
        on_disk = base.name != BUILTIN and local_folder(base.name) is not None
        names = {
            "base_model_name_or_path": str(base.folder.resolve()) if on_disk else base.name,
            "revision": base.ref.revision,
        }
        return lambda folder: write_adapter(
            folder, model.architecture, model.network, self.targets, self.settings, names, self.heads
        )


def adapt_model(model: Model, options: TrainingOptions, heads: tuple[str, ...] | None = None) -> Adapters | None:
    """Puts adapters into the network of a model; `None` where the options ask for none.

    Args:
        model: The model.
        options: Which layers, and how.
        heads: The heads that are trained next to them; `None` for all.
    """
    settings = options.adapters
    if settings is None:
        return None
    chosen = choose(model.architecture, options)
    names = adapt(model.network, (target.ours for target in chosen), settings, options.seed)
    kept = saved_whole(model.architecture, model.network, heads)
    names |= {name for name in parameters(model.network) if name.startswith(kept)}
    return Adapters(chosen, settings, frozenset(names), heads)


def refuse_adapter(files: ModelFolder) -> None:
    """Refuses a model to start from that is an adapter itself: other adapters cannot be trained on it."""
    if adapter := files.adapter or files.own_adapter:
        raise ArgumentError(
            f"{adapter}: is an adapter, expected a model: an adapter has one base",
            hint=f"mlxbert.convert(BASE, FOLDER, adapter={str(adapter)!r}) merges it into a model",
        )


def check_adapters(architecture: Architecture, options: TrainingOptions, plan: TrainingPlan) -> None:
    """Refuses names of layers that there are not, and what an adapter cannot hold."""
    choose(architecture, options)
    for name in ("pooling", "normalize"):
        if (value := plan.objective.settings().get(name)) is not None:
            raise ArgumentError(f"{name} is {value!r} with lora, but an adapter makes vectors as its base does")
    if any(has_own([head], labels) for head, labels in plan.heads.items()):
        raise ArgumentError("few_shot is given with lora, but an adapter cannot hold a classifier of vectors")
    if has_decoder_classifier(architecture) and not {*plan.heads}.isdisjoint(architecture.parts or ()):
        raise ArgumentError(
            "lora is given, but the model is a language model whose classifier is made of its decoder",
            hint="mlxbert.save(mlxbert.load(MODEL, task='classify'), FOLDER) makes it a classifier, which lora trains",
        )
    if others := [head for head in plan.heads if head not in FINE_TUNED]:
        raise ArgumentError(f"lora trains {', '.join(FINE_TUNED)}, this objective has the head {others[0]}")


def choose(architecture: Architecture, options: TrainingOptions) -> tuple[Target, ...]:
    """The modules of an encoder that get adapters, in the order of the network.

    Args:
        architecture: The model.
        options: `lora_layers` are names separated by commas, or `all-linear`: a name chooses every module that it is,
            or is the end of.
    """
    config = architecture.config
    shapes = network_shapes(config)
    linear = {
        name.removesuffix(".weight") for name, shape in shapes.items()
        if name.startswith("encoder.layers.") and name.endswith(".weight") and len(shape) == 2
    }  # fmt: skip
    found = targets(architecture.family, architecture.config_json, config)
    known = [target for target in found if linear.issuperset(target.ours)]
    every = options.lora_layers == ALL_LINEAR
    wanted = {} if every else {name.strip(): None for name in options.lora_layers.split(",")}
    for name in wanted:
        if not any(name in target.names for target in known):
            raise ArgumentError(
                f"lora_layers names {name!r:.60}, expected {ALL_LINEAR} or some of {', '.join(_shown(known))}"
            )
    chosen = tuple(target for target in known if every or not target.names.isdisjoint(wanted))
    for target in chosen:
        matrices = [shapes[f"{path}.weight"] for path in target.ours]
        most = min(sum(rows for rows, _ in matrices), matrices[0][1])
        if options.lora is not None and options.lora > most:  # no update of such a matrix has a higher rank
            raise ArgumentError(f"lora is {options.lora:,}, expected at most {most:,}: the width of {target.inside}")
    return chosen


def _shown(known: list[Target]) -> list[str]:
    """The modules of a layer by our names, with those of transformers."""
    found = {target.inside: [path.rpartition(".")[2] for path in target.ours] for target in known}
    return [f"{own} ({theirs})" for theirs, ours in found.items() for own in ours]
