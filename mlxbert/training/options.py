"""How a model is trained: the options of the loop, which are the same for every task."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from mlxbert.errors import ArgumentError, check_whole

Schedule = Literal["linear", "cosine", "constant"]
ClassWeights = Literal["none", "balanced"]
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

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate"):
            check_whole(name, getattr(self, name), 1)
        for name in ("freeze", "seed"):
            check_whole(name, getattr(self, name), 0)
        for name in ("patience", "eval_every", "save_every"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        _number("lr", self.lr, 0, 1, above=True)
        _number("warmup", self.warmup, 0, 1)
        _number("weight_decay", self.weight_decay, 0, 1)
        _number("clip", self.clip, 0, 1e9)
        _number("layer_decay", self.layer_decay, 0, 1, above=True)
        if self.dropout is not None:
            _number("dropout", self.dropout, 0, 0.99)
        if self.schedule not in SCHEDULES:
            raise ArgumentError(f"schedule is {self.schedule!r:.60}, expected one of {', '.join(SCHEDULES)}")

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


def _number(name: str, value: object, least: float, most: float, *, above: bool = False) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not least <= value <= most or (above and value == least):  # type: ignore[operator]
        bound = f"above {least}, up to {most:g}" if above else f"from {least} to {most:g}"
        raise ArgumentError(f"{name} is {value!r:.60}, expected a number {bound}")


def check_sweep(sweep: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The combinations of the values that are tried: `{"lr": [1e-5, 2e-5]}` gives two.

    Raises:
        ArgumentError: An option cannot be varied, or has no values.
    """
    combinations: list[dict[str, Any]] = [{}]
    varied = [name for name in TrainingOptions.__dataclass_fields__ if name not in ("save_every", "eval_every")]
    for name, values in (sweep or {}).items():
        if name not in varied:
            raise ArgumentError(f"sweep names {name!r:.60}, expected any of {', '.join(varied)}")
        if isinstance(values, str | bytes) or not isinstance(values, list | tuple) or not values:
            raise ArgumentError(f"sweep of {name} is {values!r:.60}, expected a list of values")
        combinations = [{**one, name: value} for one in combinations for value in values]
    return combinations
