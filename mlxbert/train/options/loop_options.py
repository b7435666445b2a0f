"""The options of the training loop, which are the same for every task."""

import functools
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from mlxbert.errors import ArgumentError
from mlxbert.option_declarations import RATE, SEED, SMALLEST, STEPS, Bounds, Option, check_fields

if TYPE_CHECKING:
    from mlxbert.train.nn.lora_layers import LoraSettings

Schedule = Literal["linear", "cosine", "constant"]
VectorLossName = Literal["in-batch", "triplet", "cosent", "cosine"]
ALL_LINEAR, DEFAULT_LAYERS = "all-linear", "query,value"
RUNS = Bounds(1, 1000)  # number of runs of a sweep, including all seeds
_Lora = functools.partial(Option, panel="Adapters")


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options of a run, which are the same for every task.

    Biases and norms have no weight decay (arXiv:1711.05101).
    """

    panel: ClassVar[str] = "Training"
    # `finetune` replaces the defaults of `epochs`, `lr` and `patience` with those that suit the data and the model (see
    # `LabelledMaterial.usual`). By default, it plans no fewer than these 3 epochs.
    epochs: Annotated[
        int, Option("Passes over the data.", usual="3 to 20, depending on their size", bounds=Bounds(SMALLEST, 100_000))
    ] = 3
    minutes: Annotated[
        float | None, Option("Total training time, instead of epochs.", usual="off", bounds=Bounds(0.01, 1_000_000))
    ] = None
    lr: Annotated[
        float,
        Option(
            "Peak learning rate. The default depends on the model's size, and is higher for adapters, new weights and "
            "static models.",
            usual="1e-4 to 2e-5",
            bounds=Bounds(1e-12, 1),
        ),
    ] = 5e-5
    batch_size: Annotated[int, Option("Examples per batch.", bounds=Bounds(1, 1_000_000))] = 32
    gradient_accumulation: Annotated[int, Option("Batches per update of the weights.", bounds=Bounds(1, 100_000))] = 1
    schedule: Annotated[Schedule, Option("Learning rate schedule. How the rate falls after the warmup.")] = "linear"
    warmup: Annotated[float, Option("Share of updates with a rising learning rate.", bounds=Bounds(0, 1))] = 0.1
    weight_decay: Annotated[float, Option("Weight decay. Biases and norms have none.", bounds=Bounds(0, 1))] = 0.01
    max_grad_norm: Annotated[
        float, Option("Maximum gradient norm. 0 means no limit.", bounds=Bounds(0, 1_000_000_000))
    ] = 1.0
    dropout: Annotated[float | None, Option("Dropout rate of all layers.", usual="the model's", bounds=RATE)] = None
    layer_decay: Annotated[
        float,
        Option(
            "Factor of the learning rate per layer below the head. With 0.9, the last layer learns at 0.9 times the "
            "rate of the head, the layer below it at 0.81 times, and so on. 1 means the same rate everywhere.",
            bounds=Bounds(SMALLEST, 1),
        ),
    ] = 1.0
    freeze: Annotated[
        int, Option("Freeze the embeddings and the first N layers. 0 freezes nothing.", bounds=Bounds(0, 1_000))
    ] = 0
    checkpointing: Annotated[bool, Option("Save memory, but take longer (gradient checkpointing).")] = False
    fast_float32: Annotated[
        bool, Option("Round float32 products to TF32 (faster on M5, CUDA). Applies to the whole process.")
    ] = False
    patience: Annotated[
        int | None,
        Option(
            "Stop after N evaluations that bring nothing better. Better is a better score or a lower loss.",
            usual="5 epochs",
            bounds=Bounds(1, 1_000_000),
        ),
    ] = None
    eval_every: Annotated[
        int | None, Option("Steps between evaluations.", usual="one epoch", panel="Saving", bounds=STEPS)
    ] = None
    save_every: Annotated[
        int | None,
        Option(
            "Steps between saved states. The state is also saved after each evaluation.",
            usual="200",
            panel="Saving",
            bounds=STEPS,
        ),
    ] = None
    seed: Annotated[int, Option("Random seed for new weights, data order and dropout.", bounds=SEED)] = 0
    lora: Annotated[
        int | None, _Lora("Train only the head and LoRA adapters of rank R.", "R", usual="off", bounds=Bounds(1, 8_192))
    ] = None
    lora_alpha: Annotated[
        float | None,
        _Lora("LoRA alpha: adapters are scaled by alpha / R.", usual="2R", bounds=Bounds(SMALLEST, 1_000_000)),
    ] = None
    lora_dropout: Annotated[float, _Lora("Dropout rate of the adapters' inputs.", bounds=RATE)] = 0.0
    lora_layers: Annotated[str, _Lora("Layers that get adapters, or all-linear.", "NAMES")] = DEFAULT_LAYERS
    dora: Annotated[bool, _Lora("Also learn the norms of adapted rows (DoRA).")] = False
    rslora: Annotated[bool, _Lora("Scale by alpha / √R instead (rsLoRA).")] = False

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_lora()

    def _check_lora(self) -> None:
        if self.lora is not None and self.freeze:
            raise ArgumentError(
                f"`freeze` is {self.freeze}, but `lora` already freezes everything except adapters and heads"
            )
        for name in ("lora_alpha", "lora_dropout", "lora_layers", "dora", "rslora"):
            if self.lora is None and getattr(self, name) != getattr(TrainingOptions, name):
                problem = f"`{name}` is {getattr(self, name)!r:.60}, which works only with `lora`"
                raise ArgumentError(problem, hint="`lora=8` is a common rank")
        if not isinstance(self.lora_layers, str) or not all(name.strip() for name in self.lora_layers.split(",")):
            raise ArgumentError(
                f"`lora_layers` is {self.lora_layers!r:.60}, expected names separated by commas, or {ALL_LINEAR}"
            )

    @property
    def adapters(self) -> "LoraSettings | None":
        """The settings of the adapters; `None` if all weights are trained."""
        if self.lora is None:
            return None
        from mlxbert.train.nn.lora_layers import LoraSettings  # the command line also runs without MLX

        alpha = 2 * self.lora if self.lora_alpha is None else self.lora_alpha
        return LoraSettings(rank=self.lora, alpha=alpha, dropout=self.lora_dropout, rslora=self.rslora, dora=self.dora)

    def check_layers(self, layers: int) -> None:
        """Raises `ArgumentError` if more layers are frozen than a model has.

        Layers that share their weights count as one.
        """
        if self.freeze > layers:
            raise ArgumentError(
                f"`freeze` is {self.freeze}, expected at most {layers}, the number of layers with separate weights"
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class TeacherOptions:
    """The options of distillation."""

    panel: ClassVar[str] = "Training"
    teacher_weight: Annotated[
        float, Option("Weight of the teacher in the loss. The labels get the rest.", bounds=Bounds(SMALLEST, 1))
    ] = 0.5
    temperature: Annotated[
        float,
        Option(
            "Temperature of distillation. Higher values give unlikely labels more weight.",
            bounds=Bounds(SMALLEST, 1_000_000),
        ),
    ] = 2.0

    def __post_init__(self) -> None:
        check_fields(self)

    def refuse_alone(self) -> None:
        """Raises `ArgumentError` if options of distillation were set without a teacher."""
        for name in (field.name for field in fields(self)):
            if getattr(self, name) != getattr(TeacherOptions, name):
                raise ArgumentError(f"`{name}` is {getattr(self, name)!r:.60}, which works only with `teacher`")


_NOT_VARIED = ("minutes", "save_every", "eval_every", "fast_float32")
# Options that a sweep can vary.
VARIED = tuple(field.name for field in fields(TrainingOptions) if field.name not in _NOT_VARIED)


def check_sweep(sweep: Mapping[str, Any] | None, seeds: int = 1) -> list[dict[str, Any]]:
    """Checks a sweep, and returns all combinations of its values: `{"lr": [1e-5, 2e-5]}` gives two."""
    seeds = RUNS.check_whole("seeds", seeds)
    combinations: list[dict[str, Any]] = [{}]
    runs = seeds
    for name, values in (sweep or {}).items():
        if name not in VARIED:
            raise ArgumentError(f"`sweep` names {name!r:.60}, expected any of {', '.join(VARIED)}")
        if name == "lora" and None in [*values]:
            raise ArgumentError(
                "`sweep` of `lora` contains None, expected ranks", hint="compare with a separate call without `lora`"
            )
        if isinstance(values, str | bytes) or not isinstance(values, list | tuple) or not values:
            raise ArgumentError(f"`sweep` of `{name}` is {values!r:.60}, expected a list of values")
        runs *= len(values)
        if runs > RUNS.most:  # checked before the combinations take memory
            raise ArgumentError(f"`sweep` has {runs:,} runs or more, expected at most {RUNS.most:,} with all seeds")
        combinations = [{**options, name: value} for options in combinations for value in values]
    return combinations


def variants(sweep: Mapping[str, Any] | None, seeds: int, seed: int) -> tuple[Mapping[str, Any], ...]:
    """Returns the varied options of each run: every combination of a sweep, once for each seed from `seed` on."""
    return tuple(
        {**combination, "seed": combination.get("seed", seed) + number}
        for combination in check_sweep(sweep, seeds)
        for number in range(seeds)
    )
