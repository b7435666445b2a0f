"""The options that several commands share, in groups that commands have as parameters.

A group is a dataclass whose fields are declared with `Option` (`mlxbert.option_declarations`), here or in the library.
`flatten` adds these fields to the signature of the command, where typer finds them, and passes instances of the
dataclasses to the command.
"""

import csv
import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import typer

from mlxbert.cli.output.written_paths import check_written
from mlxbert.errors import ArgumentError
from mlxbert.option_declarations import TEXTS, Device, DType, Option, OutputPath, kinds_of
from mlxbert.readers.text_lines import UTF8
from mlxbert.tasks.options import TaskOptions
from mlxbert.weights.model_source import BUILTIN, ModelRef

TextFormat = Literal["txt", "jsonl", "json", "csv", "tsv", "parquet"]  # the formats that do not hold words with tags

_Mark = TypeVar("_Mark")
INDEX_HELP = (  # of the option that chooses an index
    "Index file. By default it is in your data folder. lance:DIR and s3://BUCKET/PATH are Lance tables, which several "
    "processes may update at once; they need the package pylance."
)
_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_NUMBERS = tuple[int, ...]  # typed as N,N,…
_UNITS = {_NUMBERS: "N,N,…", TEXTS: "A,B"}  # an option of texts may be repeated

Revision = Annotated[str | None, Option("Branch, tag or commit on the hub.", panel="Model")]
Offline = Annotated[bool, Option("Use only the cache; never contact the hub.", panel="Model")]
Adapter = Annotated[str | None, Option("Adapter (LoRA, DoRA): folder, or name on the hub.", "DIR", panel="Model")]
ComputingDType = Annotated[
    DType, Option("Dtype. Used for computations; with auto, it depends on the device.", panel="Model")
]
ComputingDevice = Annotated[Device, Option("Device. With auto, the GPU if there is one.", panel="Model")]
NoHeader = Annotated[bool, Option("Tables have no header; columns are named 1, 2, …")]
Encoding = Annotated[str, Option("Text encoding, such as latin-1.")]


@dataclass(frozen=True)
class ModelName:
    """Options that choose a model."""

    panel: ClassVar[str] = "Model"
    model: Annotated[
        str,
        Option(
            "Hub name, folder or 'builtin'. Names on the Hugging Face hub are ORG/NAME; a folder holds a checkpoint.",
            short="-m",
            variable="MLXBERT_MODEL",
        ),
    ] = BUILTIN
    revision: Revision = None
    offline: Offline = False


@dataclass(frozen=True)
class ComputingOptions(ModelName):
    """Options that choose a model and how it computes."""

    adapter: Adapter = None
    dtype: ComputingDType = "auto"
    device: ComputingDevice = "auto"

    @property
    def ref(self) -> ModelRef:
        """The options that choose a model and how it computes, as the `ModelRef` that the library takes."""
        return ModelRef(self.model, self.adapter, self.revision, self.offline, self.dtype, self.device)


@dataclass(frozen=True)
class ModelOptions(TaskOptions, ComputingOptions):
    """Options that choose a model, how it computes, and the size of batches."""


@dataclass(frozen=True)
class ServedOptions(ModelOptions):
    """Options that choose a model, either in this process or on a server."""

    server: Annotated[
        str | None,
        Option("Use the server at this URL. `mlxbert serve` starts one; --model names a model that it serves.", "URL"),
    ] = None


@dataclass(frozen=True)
class InputOptions:
    """Options that say where inputs come from if there are no arguments."""

    panel: ClassVar[str] = "Input"
    input: Annotated[
        list[str] | None, Option("Read inputs from a file; - is stdin. May be repeated.", "FILE", short="-i")
    ] = None
    format: Annotated[
        TextFormat | None,
        Option("Input format. By default guessed from the file extension, or from the first line of stdin."),
    ] = None
    field: Annotated[
        str | None, Option("Field with the text, in .jsonl and .json files. Not for pairs. The default is text.")
    ] = None
    text_column: Annotated[
        str | None,
        Option("Column or field with the text. The default is text, or guessed in a table.", short="--column"),
    ] = None
    no_header: NoHeader = False
    encoding: Encoding = UTF8
    strict: Annotated[bool, Option("Stop at the first bad record.")] = False


@dataclass(frozen=True)
class RecordOptions(InputOptions):
    """Options that say where inputs come from, and which of their fields are kept in the results."""

    keep: Annotated[TEXTS | None, Option("Copy columns or fields to results.", usual="id, if any")] = None


@dataclass(frozen=True)
class PairInputOptions(RecordOptions):
    """Options that say where texts or pairs of texts come from if there are no arguments."""

    pair_column: Annotated[str | None, Option("Column or field with the second text of a pair.")] = None


@dataclass(frozen=True)
class TalkOptions:
    """Options that say how much is printed on stderr."""

    panel: ClassVar[str] = "Output"
    quiet: Annotated[bool, Option("Print no notes and no progress.", short="-q")] = False
    verbose: Annotated[bool, Option("Print more details.", short="-v")] = False


@dataclass(frozen=True)
class OutputOptions(TalkOptions):
    """Options that say how results are shown."""

    json: Annotated[bool | None, Option("Print JSON lines, or tables.", usual="JSON in a pipe")] = None


@dataclass(frozen=True)
class FileOptions(OutputOptions):
    """Options that say how results are shown, or to which file they are written."""

    output: Annotated[Path | None, Option("Write results to a file.", "FILE", short="-o"), OutputPath("file")] = None
    overwrite: Annotated[bool, Option("Replace an existing output file.")] = False


def flatten(command: Callable[..., None], prepare: Callable[[TalkOptions], None]) -> Callable[..., None]:
    """Returns a command whose signature has the options of all groups; it calls `prepare` before the command runs.

    A command with the parameter `**values` also gets the options that `with_options` has added.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    named = [option for option in signature.parameters.values() if option.kind is not option.VAR_KEYWORD]
    groups = {option.name: hints[option.name] for option in named if dataclasses.is_dataclass(hints[option.name])}
    direct = [
        option.replace(annotation=hints[option.name], kind=option.KEYWORD_ONLY)
        for option in named
        if option.name not in groups
    ]
    extra = getattr(command, "options", [])
    grouped = [option for group in groups.values() for option in options_of(group)]
    declared: dict[str, inspect.Parameter] = {}
    for option in (*direct, *extra, *grouped):  # several groups may have the same option
        declared.setdefault(option.name, option)
    options = [*declared.values()]
    parameters = [_for_typer(option) for option in options]
    marks = {option.name: mark for option in options if (mark := _mark(option, OutputPath)) is not None}
    arguments = {option.name for option in options if _mark(option, Option) is None}

    @functools.wraps(command)
    def run(**values: Any) -> None:
        values = {name: _checked(declared[name], value) for name, value in values.items()}
        for name, mark in marks.items():
            if values[name] is not None:
                check_written(None if name in arguments else name, values[name], mark.kind_of(values[name], values))
        filled = {}
        for name, group in groups.items():
            typed = {field.name: values[field.name] for field in dataclasses.fields(group)}
            filled[name] = group(**{option: value for option, value in typed.items() if value is not None})
            if isinstance(filled[name], TalkOptions):
                prepare(filled[name])
        command(**{option.name: values[option.name] for option in [*direct, *extra]}, **filled)

    run.written = {name: mark.kind for name, mark in marks.items()}  # type: ignore[attr-defined]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in parameters}
    run.__doc__ = "\n\n".join(" ".join(part.split()) for part in (command.__doc__ or "").split("\n\n"))
    del run.__dict__["__wrapped__"]  # typer would follow it to the signature with groups
    return run


def options_of(*groups: Any, only: Collection[str] = (), without: Collection[str] = ()) -> list[inspect.Parameter]:
    """Returns the options that groups declare, as parameters of a function.

    If `only` is not empty, only the options that it names are returned; otherwise, all options except those in
    `without`.
    """
    options = [option for group in groups for option in _declared(group)]
    return [option for option in options if (option.name in only if only else option.name not in without)]


@functools.cache  # many commands have the same groups
def _declared(group: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    options = []
    for field in dataclasses.fields(group):
        if typing.get_origin(hints[field.name]) is not Annotated:  # a field without an option
            continue
        kind, mark, *marks = typing.get_args(hints[field.name])
        if isinstance(mark, Option) and mark.panel is None:
            mark = dataclasses.replace(mark, panel=getattr(group, "panel", None))
        default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
        annotation: Any = Annotated[kind, mark, *marks]
        options.append(inspect.Parameter(field.name, _KEYWORD, default=default, annotation=annotation))
    return options


def with_options(command: Callable[..., None], about: str, options: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """Gives a command a help text and more options, which `flatten` passes to the command's `**values`."""
    command.__doc__ = about
    command.options = options  # type: ignore[attr-defined]
    return command


def _mark(option: inspect.Parameter, kind: type[_Mark]) -> _Mark | None:
    """Returns the object of the class `kind` from the annotation of an option; `None` if there is none."""
    return next((mark for mark in typing.get_args(option.annotation) if isinstance(mark, kind)), None)


def _for_typer(option: inspect.Parameter) -> inspect.Parameter:
    kind, *marks = typing.get_args(option.annotation) or (option.annotation,)
    if not marks or typing.get_origin(option.annotation) is not Annotated:
        return option
    mark, default, kinds = marks[0], option.default, kinds_of(kind)
    kind = str | None if _NUMBERS in kinds else list[str] | None if TEXTS in kinds else kind
    if isinstance(mark, Option):
        default = None if mark.usual and default is not inspect.Parameter.empty else default
        values, bounds, unit = mark.values, mark.bounds, next((_UNITS[part] for part in kinds if part in _UNITS), None)
        mark = typer.Option(
            *_names(option.name, kinds, default, mark), metavar=mark.unit or unit,
            help=" ".join([
                mark.help,
                *([f"One of {', '.join(values)}."] if values else []),
                *(["May be repeated."] if TEXTS in kinds else []),
            ]),
            rich_help_panel=mark.panel, envvar=mark.variable, show_default=mark.usual or True,
            autocompletion=(lambda: values) if values else None,
        )  # fmt: skip
        kind = kind if default is not None or NoneType in kinds else kind | None
        if bounds is not None:
            mark.min, mark.max = bounds if float in kinds else (math.ceil(bounds.least), bounds.most)
    return option.replace(annotation=Annotated[kind, mark], default=default)


def _names(name: str, kinds: Collection[Any], default: Any, mark: Option) -> tuple[str, ...]:
    """Returns the names of an option. A flag that is on by default, or has no default, also has a name with --no-."""
    words = name.replace("_", "-")
    negatable = bool in kinds and default is not False
    return (f"--{words}/--no-{words}" if negatable else f"--{words}", *([mark.short] if mark.short else []))


def _checked(option: inspect.Parameter, value: Any) -> Any:
    """Checks the value of an option; converts several numbers to a list, and several texts to a tuple."""
    if isinstance(value, float) and math.isnan(value):  # typer's comparison finds NaN within any range
        raise ArgumentError(f"`{option.name}` is nan, expected a number")
    kinds = kinds_of((typing.get_args(option.annotation) or (option.annotation,))[0])
    if value is not None and TEXTS in kinds:
        return _split(option.name, value)
    if isinstance(value, str) and _NUMBERS in kinds:
        try:
            return [int(number) for number in value.split(",")]
        except ValueError:
            raise ArgumentError(
                f"`{option.name}` is {value!r:.60}, expected whole numbers separated by commas"
            ) from None
    return value


def _split(name: str, typed: Sequence[str]) -> tuple[str, ...]:
    """Splits values such as `A,B` into texts; as in a .csv file, a text that contains a comma can be quoted."""
    try:
        rows = [row or [""] for joined in typed for row in csv.reader([joined], skipinitialspace=True)]
    except csv.Error as problem:  # a line break outside quotes, or a field that is too long
        raise ArgumentError(f"`{name}` is not a list of texts separated by commas ({problem})") from None
    texts = tuple(text.strip() for row in rows for text in row)
    if not all(texts):
        raise ArgumentError(f"`{name}` is {','.join(typed)!r:.60}, expected non-empty texts separated by commas")
    return texts
