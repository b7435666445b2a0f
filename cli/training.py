"""Options of training and evaluation, in groups as in `options`; `--sweep`."""

import typing
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

import typer

from mlxbert.cli import processes as launched
from mlxbert.cli.inputs import STDIN
from mlxbert.cli.options import ComputingOptions, ModelOptions, OutputOptions
from mlxbert.errors import ArgumentError
from mlxbert.readers.formats import Format
from mlxbert.training.options import DEFAULT_LAYERS, ClassWeights, Schedule
from mlxbert.training.scores.summary import METRICS

_DATA, _TRAINING, _LORA, _SAVING, _OUTPUT = "Data", "Training", "Adapters", "Saving", "Output"
DEFAULT_METRICS = ", ".join(f"{task}: {next(iter(metrics))}" for task, metrics in METRICS.items())


_TRAIN = typer.Option("--train", metavar="FILE", help="Training data; - is stdin.", rich_help_panel=_DATA)
_VALID = typer.Option(
    "--valid",
    metavar="FILE",
    help="Validation data, which choose the best model; by default a part of the training data.",
    rich_help_panel=_DATA,
)


@dataclass(frozen=True)
class Group:
    """Options that are arguments of the library."""

    def given(self) -> dict[str, Any]:
        """The options as arguments of the library; values of enumerations are strings."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value.value if isinstance(value, StrEnum) else value for name, value in values.items()}


@dataclass(frozen=True)
class DataOptions(Group):
    """What is trained on."""

    train: Annotated[list[str], _TRAIN]
    valid: Annotated[list[str] | None, _VALID] = None
    validation_share: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="How much of the training data to validate on.",
            rich_help_panel=_DATA,
            show_default="0.1",
        ),
    ] = None
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Report on the data, estimate time and memory, stop.", rich_help_panel=_DATA),
    ] = False

    def __post_init__(self) -> None:
        if self.sources.count(STDIN) > 1:
            raise ArgumentError("stdin is named twice; it can be read only once")
        launched.check_stdin(self.sources)

    @property
    def sources(self) -> list[str]:
        """All that is read."""
        return [*self.train, *(self.valid or ())]


def column(text: str, default: Any = True) -> Any:
    """An option that names a column of the data."""
    return typer.Option(metavar="NAME", help=text, rich_help_panel=_DATA, show_default=default)


def length(text: str, default: Any = True) -> Any:
    """An option that counts tokens or words."""
    return typer.Option(metavar="N", help=text, rich_help_panel=_DATA, show_default=default)


FormatOption = Annotated[
    Format | None,
    typer.Option(help="Format of the files; by default taken from their extensions.", rich_help_panel=_DATA),
]


@dataclass(frozen=True)
class Columns(Group):
    """Where texts and labels stand in a row."""

    text_column: Annotated[str | None, column("Column of the text; guessed if left out.")] = None
    pair_column: Annotated[str | None, column("Column of the second text, if any.")] = None
    label_column: Annotated[str | None, column("Column of the label; guessed if left out.")] = None
    format: FormatOption = None
    max_length: Annotated[int | None, length("Truncate inputs to N tokens; by default to what the model takes.")] = None


def _number(text: str, default: Any = None) -> Any:
    return typer.Option(metavar="N", help=text, rich_help_panel=_TRAINING, show_default=default or True)


def _share(text: str, default: Any = None) -> Any:
    return typer.Option(metavar="X", help=text, rich_help_panel=_TRAINING, show_default=default or True)


def _lora(unit: str, text: str, default: Any = None) -> Any:
    return typer.Option(metavar=unit, help=text, rich_help_panel=_LORA, show_default=default or True)


@dataclass(frozen=True)
class LoraOptions(Group):
    """Adapters, which are trained instead of all weights."""

    lora: Annotated[int | None, _lora("R", "Train adapters of rank R, and the head alone beside them.", "off")] = None
    lora_alpha: Annotated[float | None, _lora("X", "Scale of adapters, divided by the rank.", "2R")] = None
    lora_dropout: Annotated[float, _lora("X", "Dropout rate of the inputs of adapters.")] = 0.0
    lora_layers: Annotated[str, _lora("NAMES", "Layers with adapters: A,B,… or all-linear.")] = DEFAULT_LAYERS
    dora: Annotated[
        bool, typer.Option("--dora", help="Learn the norms of adapted rows, too (DoRA).", rich_help_panel=_LORA)
    ] = False
    rslora: Annotated[
        bool, typer.Option("--rslora", help="Divide the scale by √R instead (rsLoRA).", rich_help_panel=_LORA)
    ] = False


@dataclass(frozen=True)
class TrainingOptions(LoraOptions):
    """How is trained: the same for every task."""

    epochs: Annotated[int | None, _number("Passes over the training data.", "3 to 20, by the size of the data")] = None
    lr: Annotated[float | None, _share("Highest learning rate.", "1e-4 to 2e-5, by the size of the model")] = None
    batch_size: Annotated[int, _number("Examples per batch.")] = 32
    accumulate: Annotated[int, _number("Batches per update of the weights.")] = 1
    schedule: Annotated[
        Schedule, typer.Option(help="How the learning rate falls after the warm-up.", rich_help_panel=_TRAINING)
    ] = "linear"
    warmup: Annotated[float, _share("Share of the updates in which the learning rate rises.")] = 0.1
    weight_decay: Annotated[float, _share("Weight decay of matrices.")] = 0.01
    clip: Annotated[float, _share("Maximum norm of the gradient; 0 for no limit.")] = 1.0
    dropout: Annotated[float | None, _share("Dropout rate everywhere.", "the model's")] = None
    layer_decay: Annotated[float, _share("Learning rate of each layer, relative to the layer above.")] = 1.0
    freeze: Annotated[int, _number("Keep the embeddings and the first N layers as they are.")] = 0
    checkpointing: Annotated[
        bool,
        typer.Option(
            "--checkpointing", help="Use less memory, but more time: gradient checkpointing.", rich_help_panel=_TRAINING
        ),
    ] = False
    patience: Annotated[int | None, _number("Stop after N evaluations without improvement.", "never")] = None
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Metric that chooses the best model.",
            rich_help_panel=_TRAINING,
            show_default=DEFAULT_METRICS,
        ),
    ] = None
    seed: Annotated[int, _number("Random seed of new weights, the order of the data, and dropout.")] = 0
    seeds: Annotated[int, _number("Train with N seeds, report mean and standard deviation, keep the best.")] = 1
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=A,B,…",
            help="Try each value of an option, keep the best: lr=1e-5,2e-5.",
            rich_help_panel=_TRAINING,
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """The options as arguments of the library, `sweep` with values of the options' types."""
        return super().given() | {"sweep": parse_sweep(self.sweep or ()) or None}


@dataclass(frozen=True)
class ClassOptions(Group):
    """What differs where labels are predicted."""

    label_smoothing: Annotated[float, _share("Share of the target that is spread over all labels.")] = 0.0
    class_weights: Annotated[
        ClassWeights,
        typer.Option(help="balanced: rare labels count more.", rich_help_panel=_TRAINING),
    ] = "none"
    few_shot: Annotated[
        bool,
        typer.Option(
            "--few-shot",
            help="For 8 to 64 examples per label: train on pairs of texts (SetFit).",
            rich_help_panel=_TRAINING,
        ),
    ] = False


@dataclass(frozen=True)
class TeacherOptions(Group):
    """From whom a task is learned, besides the labels."""

    teacher: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Also learn from what a finished model predicts.", rich_help_panel=_TRAINING),
    ] = None
    teacher_weight: Annotated[float, _share("Share of the teacher in the loss; the labels have the rest.")] = 0.5
    temperature: Annotated[
        float, _share("Divides scores of teacher and model: larger, and unlikely labels count more.")
    ] = 2.0


@dataclass(frozen=True)
class SavingOptions(Group):
    """What is written."""

    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="DIR", help="Folder of the trained model.", rich_help_panel=_SAVING),
    ]
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier model.", rich_help_panel=_SAVING)
    ] = False
    eval_every: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Steps between evaluations.", rich_help_panel=_SAVING, show_default="one per epoch"
        ),
    ] = None
    save_every: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Steps between saved states; the state is also saved after each evaluation.",
            rich_help_panel=_SAVING,
        ),
    ] = None


@dataclass(frozen=True)
class CheckedOptions(SavingOptions):
    """What is written, and whether it is checked."""

    check: Annotated[
        bool,
        typer.Option("--check", help="Compare the finished model with transformers.", rich_help_panel=_SAVING),
    ] = False


@dataclass(frozen=True)
class EventOptions(OutputOptions):
    """Where events go."""

    log: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Append all events to a file of JSON lines.", rich_help_panel=_OUTPUT),
    ] = None
    tensorboard: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Write the curves for TensorBoard (needs tensorboard).", rich_help_panel=_OUTPUT
        ),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Draw the curves as .png, .svg or .pdf (needs matplotlib).", rich_help_panel=_OUTPUT
        ),
    ] = None


@dataclass(frozen=True)
class FinetuneOptions:
    """What every `finetune` takes, besides columns and what differs between tasks."""

    data: DataOptions
    saving: CheckedOptions
    model: ComputingOptions
    training: TrainingOptions
    out: EventOptions

    def given(self) -> dict[str, Any]:
        """The options as arguments of the library."""
        where = {name: getattr(self.model, name) for name in ("model", "adapter", "revision", "offline")}
        where |= {"dtype": self.model.dtype.value, "device": self.model.device.value}
        return self.data.given() | self.saving.given() | self.training.given() | where


@dataclass(frozen=True)
class LabelledData(Group):
    """What is evaluated on, and which metric counts."""

    data: Annotated[
        list[str], typer.Option("--data", metavar="FILE", help="Labelled data; - is stdin.", rich_help_panel=_DATA)
    ]
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Metric to put first.", rich_help_panel=_DATA, show_default=DEFAULT_METRICS),
    ] = None


@dataclass(frozen=True)
class EvaluateOptions:
    """What every `evaluate` takes, besides columns and what differs between tasks."""

    test: LabelledData
    model: ModelOptions
    out: OutputOptions

    def given(self) -> dict[str, Any]:
        """The options as arguments of the library."""
        return self.test.given() | {"batch_tokens": self.model.batch_tokens}


def parse_sweep(given: typing.Sequence[str]) -> dict[str, list[Any]]:
    """The values to try, by option: `lr=1e-5,2e-5` is `{"lr": [1e-5, 2e-5]}`.

    Raises:
        ArgumentError: It is not NAME=A,B, names no option of training, or a value is none of that option.
    """
    hints = typing.get_type_hints(TrainingOptions)
    known = [name for name in hints if name not in ("metric", "seeds", "sweep")]
    found: dict[str, list[Any]] = {}
    for entry in given:
        name, equals, values = entry.partition("=")
        key = name.strip().removeprefix("--").replace("-", "_")
        if not equals or not key:
            raise ArgumentError(f"--sweep {entry!r:.60} is not NAME=A,B,…", hint="for example --sweep lr=1e-5,2e-5")
        if key not in known:
            options = ", ".join(option.replace("_", "-") for option in known)
            raise ArgumentError(
                f"--sweep {name!r:.60} is not an option that can be tried", hint=f"these can: {options}"
            )
        if key in found:
            raise ArgumentError(f"--sweep names {name!r:.60} twice")
        found[key] = [_value(key, value.strip(), hints[key]) for value in values.split(",")]
    return found


def _value(name: str, text: str, hint: Any) -> Any:
    """A value of an option from its text."""
    one_of = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    kind = str if one_of else next(part for part in (*typing.get_args(hint), hint) if part is not NoneType)
    try:
        value = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
        if one_of and value not in one_of:
            raise ValueError
    except (ValueError, KeyError):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: " or ".join(one_of)}
        raise ArgumentError(
            f"--sweep {name.replace('_', '-')} has the value {text!r:.60}, expected {names[kind]}"
        ) from None
    return value
