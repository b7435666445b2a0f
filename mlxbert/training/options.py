"""How a model is trained: the options of the loop, which are the same for every task."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from mlxbert.bounds import MOST_RUNS, check_number, check_whole
from mlxbert.errors import ArgumentError

if TYPE_CHECKING:
    from mlxbert.nn.lora import LoraSettings

Schedule = Literal["linear", "cosine", "constant"]
ClassWeights = Literal["none", "balanced"]
VectorLossName = Literal["in-batch", "triplet", "cosent", "cosine"]
ALL_LINEAR, DEFAULT_LAYERS = "all-linear", "query,value"
RerankLoss = Literal["bce", "mse"]
SCHEDULES: tuple[str, ...] = get_args(Schedule)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """The options of a run.

    Attributes:
        epochs: Passes over the training data.
        lr: The highest learning rate.
        batch_size: Examples per batch.
        accumulate: Batches per update of the weights.
        schedule: How the learning rate falls after the warm-up: `linear` or `cosine` to 0, or `constant`.
        warmup: The share of updates in which it rises from 0.
        weight_decay: Decoupled weight decay of matrices (arXiv:1711.05101); biases and norms have none.
        clip: The greatest norm of the gradient; 0 for no limit.
        dropout: The rate wherever the model has dropout; `None` for the model's own rates.
        layer_decay: Each layer's learning rate as a factor of that of the layer above it.
        freeze: So many of the first layers, and the embeddings with them, are not trained.
        checkpointing: Whether the inside of layers is computed again in the backward pass, which saves memory.
        patience: Training stops after so many evaluations without a better one; `None` for never.
        eval_every: Updates between evaluations; `None` for one per epoch.
        save_every: Updates after which the state is saved, besides after each evaluation; `None` for 200.
        seed: Determines new weights, the order of the data, and dropout.
        lora: The rank of LoRA adapters: they and the heads are trained, and nothing else; `None` trains all weights.
        lora_alpha: The update of an adapter is multiplied by `lora_alpha / lora`; `None` for twice the rank.
        lora_dropout: The rate of the dropout of the inputs of adapters.
        lora_layers: The linear layers that get an adapter, by their names in transformers or in mlxbert, separated by
            commas; `all-linear` for all of the encoder's layers.
        dora: Whether the norms of the rows of adapted matrices are learned apart from their directions (DoRA).
        rslora: Whether the factor is `lora_alpha / √lora` instead (rsLoRA).
    """

    epochs: int = 3
    lr: float = 5e-5
    batch_size: int = 32
    accumulate: int = 1
    schedule: str = "linear"
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    dropout: float | None = None
    layer_decay: float = 1.0
    freeze: int = 0
    checkpointing: bool = False
    patience: int | None = None
    eval_every: int | None = None
    save_every: int | None = None
    seed: int = 0
    lora: int | None = None
    lora_alpha: float | None = None
    lora_dropout: float = 0.0
    lora_layers: str = DEFAULT_LAYERS
    dora: bool = False
    rslora: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "freeze", "seed"):
            check_whole(name, getattr(self, name))
        for name in ("patience", "eval_every", "save_every"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name))
        for name in ("lr", "warmup", "weight_decay", "clip", "layer_decay", "lora_dropout"):
            check_number(name, getattr(self, name))
        for name in ("dropout", "lora_alpha"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name))
        self._check_lora()
        if self.schedule not in SCHEDULES:
            raise ArgumentError(f"schedule is {self.schedule!r:.60}, expected one of {', '.join(SCHEDULES)}")

    def _check_lora(self) -> None:
        if self.lora is not None:
            check_whole("lora", self.lora)
            if self.freeze:
                raise ArgumentError(
                    f"freeze is {self.freeze} with lora, which freezes everything but adapters and heads"
                )
        for name in ("lora_alpha", "lora_dropout", "lora_layers", "dora", "rslora"):
            if self.lora is None and getattr(self, name) != getattr(TrainingOptions, name):
                raise ArgumentError(
                    f"{name} is {getattr(self, name)!r:.60} without lora", hint="lora=8 is a usual rank"
                )
        if not isinstance(self.lora_layers, str) or not all(name.strip() for name in self.lora_layers.split(",")):
            raise ArgumentError(
                f"lora_layers is {self.lora_layers!r:.60}, expected names separated by commas, or {ALL_LINEAR}"
            )

    @property
    def adapters(self) -> "LoraSettings | None":
        """How layers are adapted; `None` where all weights are trained."""
        if self.lora is None:
            return None
        from mlxbert.nn.lora import LoraSettings  # the command line reads these options where there is no MLX

        alpha = 2 * self.lora if self.lora_alpha is None else self.lora_alpha
        return LoraSettings(rank=self.lora, alpha=alpha, dropout=self.lora_dropout, rslora=self.rslora, dora=self.dora)

    def check_layers(self, layers: int) -> None:
        """Refuses to freeze more layers than a model has; layers that share their weights are one.

        Raises:
            ArgumentError: There are fewer layers.
        """
        if self.freeze > layers:
            raise ArgumentError(f"freeze is {self.freeze}, expected at most the {layers} layers whose weights differ")

    def to_dict(self) -> dict[str, Any]:
        """The options by name."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class TeacherOptions:
    """How much a teacher counts.

    Attributes:
        teacher_weight: The share of the loss that is the distance from the teacher; the rest is that of the labels.
        temperature: Divides the scores of teacher and student: larger, and less likely labels count more.
    """

    teacher_weight: float = 0.5
    temperature: float = 2.0

    def __post_init__(self) -> None:
        check_number("teacher_weight", self.teacher_weight)
        check_number("temperature", self.temperature)

    def refuse_alone(self) -> None:
        """Refuses options of a teacher where there is none.

        Raises:
            ArgumentError: One is not the default.
        """
        for name in self.__dataclass_fields__:
            if getattr(self, name) != getattr(TeacherOptions, name):
                raise ArgumentError(f"{name} is {getattr(self, name)!r:.60} without teacher")


def check_sweep(sweep: Mapping[str, Any] | None, seeds: int = 1) -> list[dict[str, Any]]:
    """The combinations of the values that are tried: `{"lr": [1e-5, 2e-5]}` gives two.

    Args:
        sweep: Values by option.
        seeds: With how many seeds each is tried.

    Raises:
        ArgumentError: An option cannot be varied, or has no values; or there are more than `MOST_RUNS`.
    """
    check_whole("seeds", seeds)
    combinations: list[dict[str, Any]] = [{}]
    runs = seeds
    varied = [name for name in TrainingOptions.__dataclass_fields__ if name not in ("save_every", "eval_every")]
    for name, values in (sweep or {}).items():
        if name not in varied:
            raise ArgumentError(f"sweep names {name!r:.60}, expected any of {', '.join(varied)}")
        if name == "lora" and None in [*values]:
            raise ArgumentError("sweep of lora has None, expected ranks", hint="compare with a run without adapters")
        if isinstance(values, str | bytes) or not isinstance(values, list | tuple) or not values:
            raise ArgumentError(f"sweep of {name} is {values!r:.60}, expected a list of values")
        runs *= len(values)
        if runs > MOST_RUNS:  # before they are listed
            raise ArgumentError(
                f"sweep asks for {runs:,} runs or more, expected at most {MOST_RUNS:,}, all seeds included"
            )
        combinations = [{**one, name: value} for one in combinations for value in values]
    return combinations
