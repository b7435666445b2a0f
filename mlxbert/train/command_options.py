"""The options of training and evaluation commands that the library does not declare in its own option classes."""

import dataclasses
import inspect
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal

import typer

from mlxbert.cli.shared_options import Encoding, NoHeader, OutputOptions, TextFormat, options_of
from mlxbert.errors import ArgumentError
from mlxbert.option_declarations import LENGTH, SHARE, SMALLEST, STEPS, Bounds, Option, OutputPath, choices_of, kinds_of
from mlxbert.readers.text_lines import UTF8, check_encoding
from mlxbert.train.options.loop_options import RUNS, VARIED, TrainingOptions
from mlxbert.train.options.training_tasks import TaskSpec

SIZES = ("tiny", "mini", "small", "medium", "base")  # sizes of new models


@dataclass(frozen=True)
class DataFiles:
    """Options that say how files of labelled data are read."""

    panel: ClassVar[str] = "Data"
    format: Annotated[TextFormat | None, Option("File format. By default guessed from the extensions.")] = None
    no_header: NoHeader = False
    encoding: Encoding = UTF8


def task_options(spec: TaskSpec, *groups: type) -> list[inspect.Parameter]:
    """Returns the options that groups declare, adapted to a task.

    `--metric` accepts the metrics of the task, and `--format` also accepts the file formats of the task.
    """
    metric = {"usual": spec.usual_metric, "values": spec.metrics}
    formats = {"kind": Literal[(*typing.get_args(TextFormat), *spec.formats)] | None}
    return with_changes(options_of(*groups), metric=metric, format=formats)


@dataclass(frozen=True)
class TrainingData:
    """Options that name the data to train on and to evaluate on."""

    panel: ClassVar[str] = "Data"
    train: Annotated[list[str], Option("Training data; - is stdin.", "FILE")]
    valid: Annotated[
        list[str] | None,
        Option("Validation data. Used to choose the best model.", "FILE", "a part of --train"),
    ] = None
    validation_fraction: Annotated[
        float | None,
        Option(
            "Share of --train to validate on. With few examples, the default is about 0.2.", usual="0.1", bounds=SHARE
        ),
    ] = None
    dry_run: Annotated[bool, Option("Report on the data, estimate time and memory, then stop.")] = False


@dataclass(frozen=True)
class RunOptions:
    """Options for the number of runs, and for how the best run is chosen."""

    panel: ClassVar[str] = "Training"
    metric: Annotated[str | None, Option("Main metric. Used to choose the best model.")] = None
    seeds: Annotated[
        int, Option("Train with N seeds and keep the best. The report gives mean and standard deviation.", bounds=RUNS)
    ] = 1
    sweep: Annotated[
        list[str] | None,
        Option("Try several values of an option and keep the best. For example lr=1e-5,2e-5.", "NAME=A,B,…"),
    ] = None


@dataclass(frozen=True)
class SavingOptions:
    """Options for the folder that training writes."""

    panel: ClassVar[str] = "Saving"
    output: Annotated[Path, Option("Folder of the trained model.", "DIR", short="-o"), OutputPath("folder")]
    overwrite: Annotated[bool, Option("Replace an earlier model.")] = False


@dataclass(frozen=True)
class CheckOptions:
    """Options for checking the trained model."""

    panel: ClassVar[str] = "Saving"
    check: Annotated[bool, Option("Compare the finished model with transformers.")] = False


@dataclass(frozen=True)
class EventOptions(OutputOptions):
    """Options that name the destinations of training events."""

    log: Annotated[Path | None, Option("Append all events to a file of JSON lines.", "FILE"), OutputPath("file")] = None
    tensorboard: Annotated[
        Path | None, Option("Write the curves for TensorBoard. Needs tensorboard.", "DIR"), OutputPath("folder")
    ] = None
    plot: Annotated[
        Path | None, Option("Plot the curves as .png, .svg or .pdf. Needs matplotlib.", "FILE"), OutputPath("file")
    ] = None


@dataclass(frozen=True)
class LabelledData:
    """Options for the data and the main metric of an evaluation."""

    panel: ClassVar[str] = "Data"
    data: Annotated[list[str], Option("Labelled data; - is stdin.", "FILE")]
    metric: Annotated[str | None, Option("Main metric. Shown first.")] = None


@dataclass(frozen=True)
class CorpusFiles:
    """Options that name the text files to train on."""

    panel: ClassVar[str] = "Data"
    corpus: Annotated[
        list[str],
        typer.Argument(metavar="CORPUS…", help="Text files: .txt, .jsonl or .json, optionally compressed (.gz, .xz)."),
    ]
    valid: Annotated[list[str] | None, Option("Text to evaluate on.", "FILE", "1% of the corpus")] = None
    shards: Annotated[
        str | None,
        Option("Folder to keep the token ids in, for reuse. By default they are deleted.", "DIR"),
        OutputPath("folder"),
    ] = None


@dataclass(frozen=True)
class PretrainingOptions:
    """Options for the objective and the length of pre-training."""

    panel: ClassVar[str] = "Training"
    objective: Annotated[
        str | None,
        Option(
            "Losses. Any of mlm, nsp, sop, soft, hidden, vectors, with optional weights (mlm,nsp:0.5); or electra.",
            "TERMS",
            "mlm",
        ),
    ] = None
    steps: Annotated[int | None, Option("Number of updates.", usual="set by --epochs", bounds=STEPS)] = None
    epochs: Annotated[float | None, Option("Passes over the corpus.", usual="1", bounds=Bounds(SMALLEST, 100_000))] = (
        None
    )
    fill: Annotated[
        list[str] | None, Option("A text with [MASK] to fill at each evaluation. May be repeated.", "TEXT")
    ] = None
    eval_every: Annotated[
        int | None,
        Option("Steps between evaluations.", usual="a tenth of all steps", panel="Saving", bounds=STEPS),
    ] = None
    temperature: Annotated[float, Option("Temperature of the soft loss.", bounds=Bounds(SMALLEST, 1_000_000))] = 2.0


@dataclass(frozen=True)
class NewModelOptions:
    """Options for a model with new weights, and for a teacher to learn from."""

    panel: ClassVar[str] = "Model"
    config: Annotated[
        str | None,
        Option(
            "Size of a new model, or its config.json. Without it, training continues from --model.",
            "SIZE",
            values=SIZES,
        ),
    ] = None
    vocabulary: Annotated[str | None, Option("Vocabulary of a new model. `mlxbert vocabulary` trains one.", "DIR")] = (
        None
    )
    teacher: Annotated[
        str | None,
        Option("Teacher for the losses soft, hidden and vectors.", usual="the model", panel="Training"),
    ] = None


@dataclass(frozen=True)
class StudentOptions:
    """Options for the teacher and the student of a distillation."""

    panel: ClassVar[str] = "Model"
    teacher: Annotated[str, Option("Model to learn from.")]
    student: Annotated[str | None, Option("Model to train.", usual="made of the teacher's layers")] = None
    layers: Annotated[
        tuple[int, ...] | None,
        Option("Layers of the teacher to start with.", usual="every other one", bounds=Bounds(0, 1_000)),
    ] = None


@dataclass(frozen=True)
class PlainText:
    """Options for the plain text to evaluate on."""

    panel: ClassVar[str] = "Data"
    data: Annotated[list[str], Option("Text to evaluate on.", "FILE")]
    examples: Annotated[int | None, Option("Number of examples, drawn at random.", bounds=STEPS)] = 1000
    length: Annotated[int, Option("Tokens per example.", bounds=LENGTH)] = 128
    objective: Annotated[str, Option("mlm, or with pairs mlm,nsp or mlm,sop.", "TERMS", panel="")] = "mlm"


def parse_sweep(entries: Sequence[str]) -> dict[str, list[Any]]:
    """Parses the values to try for each option: `lr=1e-5,2e-5` becomes `{"lr": [1e-5, 2e-5]}`."""
    hints = typing.get_type_hints(TrainingOptions)
    sweep: dict[str, list[Any]] = {}
    for entry in entries:
        name, equals, values = entry.partition("=")
        key = name.strip().removeprefix("--").replace("-", "_")
        if not equals or not key:
            raise ArgumentError(
                f"--sweep is {entry!r:.60}, expected NAME=A,B,…", hint="for example: --sweep lr=1e-5,2e-5"
            )
        if key not in VARIED:
            options = ", ".join(option.replace("_", "-") for option in VARIED)
            raise ArgumentError(
                f"--sweep names {name!r:.60}, expected an option that can be varied", hint=f"choose one of {options}"
            )
        if key in sweep:
            raise ArgumentError(f"--sweep names {name!r:.60} twice")
        sweep[key] = [_value(key, value.strip(), hints[key]) for value in values.split(",")]
    return sweep


def _value(name: str, text: str, hint: Any) -> Any:
    choices = choices_of(hint)
    kind = str if choices else next(part for part in kinds_of(hint) if part is not NoneType)
    try:
        value = {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
        if choices and value not in choices:
            raise ValueError
    except (ValueError, KeyError):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: " or ".join(choices)}
        raise ArgumentError(
            f"--sweep {name.replace('_', '-')} has the value {text!r:.60}, expected {names[kind]}"
        ) from None
    return value


def check_data(paths: Sequence[str], encoding: str) -> None:
    """Raises an error if a data file is missing or the encoding is unknown; called before a model is downloaded."""
    from mlxbert.train.data.labelled_rows import check_sources

    check_encoding(encoding)
    for path in paths:
        check_sources(path)


def with_changes(options: Sequence[inspect.Parameter], **changes: dict[str, Any]) -> list[inspect.Parameter]:
    """Returns the options with changes.

    `changes` maps the name of an option to a dict with new values for attributes of `Option`, or a new type as `kind`.
    """

    def changed(option: inspect.Parameter) -> inspect.Parameter:
        kind, mark, *marks = typing.get_args(option.annotation)
        new = {"kind": kind} | changes[option.name]
        return option.replace(annotation=Annotated[new.pop("kind"), dataclasses.replace(mark, **new), *marks])

    return [changed(option) if option.name in changes else option for option in options]
