"""Options that commands share: a command takes groups of options as parameters.

A group is a frozen dataclass whose fields are typer options. `flatten` puts these fields into the signature of the
command, where typer finds them, and passes filled dataclasses to the command. A field may be a group itself.
"""

import copy
import dataclasses
import functools
import inspect
import math
import re
import shlex
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from mlxbert.bounds import BOUNDS
from mlxbert.errors import ArgumentError


class DType(StrEnum):
    """The dtype of computation."""

    auto = "auto"
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


class Device(StrEnum):
    """The device of computation."""

    auto = "auto"
    gpu = "gpu"
    cpu = "cpu"


class TextFormat(StrEnum):
    """How a file stores texts: the formats of `mlxbert.readers.records.Format` that do not hold words with tags."""

    txt = "txt"
    jsonl = "jsonl"
    csv = "csv"
    tsv = "tsv"
    parquet = "parquet"


class Window(StrEnum):
    """What happens to a text too long for the model, where windows can cover it."""

    window = "window"
    truncate = "truncate"
    error = "error"


class Overflow(StrEnum):
    """What happens to a text too long for the model, where it becomes one vector or a few scores."""

    truncate = "truncate"
    window = "window"
    error = "error"


class Kind(StrEnum):
    """What texts are in a search: `mlxbert.tasks.embed.KINDS`."""

    query = "query"
    document = "document"


class OutputDType(StrEnum):
    """The dtype of vectors: `mlxbert.tasks.vector_dtype.OUTPUT_DTYPES`."""

    float32 = "float32"
    int8 = "int8"
    binary = "binary"


class Aggregation(StrEnum):
    """How tokens with tags become entities; those of transformers."""

    none = "none"
    simple = "simple"
    first = "first"
    average = "average"
    max = "max"


class NoWindow(StrEnum):
    """What happens to a text too long for the model, where windows cannot cover it."""

    truncate = "truncate"
    error = "error"


Revision = Annotated[
    str | None,
    typer.Option("--revision", metavar="NAME", help="Branch, tag or commit on the hub.", rich_help_panel="Model"),
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Use only the cache; never contact the hub.", rich_help_panel="Model")
]
Adapter = Annotated[
    str | None,
    typer.Option(
        "--adapter",
        metavar="DIR",
        help="Adapter of the model (LoRA, DoRA): its folder, or its name on the hub.",
        rich_help_panel="Model",
    ),
]


@dataclass(frozen=True)
class ModelName:
    """Which model."""

    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            envvar="MLXBERT_MODEL",
            help="Name on the Hugging Face hub, folder of a checkpoint, or 'builtin'.",
            rich_help_panel="Model",
        ),
    ] = "builtin"
    revision: Revision = None
    offline: Offline = False


@dataclass(frozen=True)
class ComputingOptions(ModelName):
    """Which model, and how to compute."""

    adapter: Adapter = None
    dtype: Annotated[
        DType, typer.Option(help="Dtype of computation; auto depends on the device.", rich_help_panel="Model")
    ] = DType.auto
    device: Annotated[
        Device, typer.Option(help="Device of computation; auto uses the GPU if there is one.", rich_help_panel="Model")
    ] = Device.auto


@dataclass(frozen=True)
class ModelOptions(ComputingOptions):
    """Which model, how to compute, and how much at once."""

    batch_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Tokens per batch, padding included.",
            rich_help_panel="Model",
            show_default="1024, on a GPU 16384",
        ),
    ] = None


@dataclass(frozen=True)
class VectorOptions:
    """How texts become vectors; the model's own files decide what is not given."""

    pooling: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cls, mean, max, mean_sqrt_len, weighted_mean, last_token or attention; join several with +.",
            rich_help_panel="Vectors",
        ),
    ] = None
    dimensions: Annotated[
        int | None,
        typer.Option(metavar="N", help="Keep only the first N values (Matryoshka).", rich_help_panel="Vectors"),
    ] = None
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Text to put before each text.", rich_help_panel="Vectors")
    ] = None
    prompt_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of the model's own prompts.", rich_help_panel="Vectors")
    ] = None
    overflow: Annotated[
        Overflow, typer.Option(help="What to do with a text too long for the model.", rich_help_panel="Vectors")
    ] = Overflow.truncate

    def given(self) -> dict[str, Any]:
        """The options as arguments of the library."""
        return vars(self) | {"overflow": self.overflow.value}


@dataclass(frozen=True)
class InputOptions:
    """Where inputs come from if they are not arguments."""

    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="Read inputs from a file; - is stdin. May be repeated.",
            rich_help_panel="Input",
        ),
    ] = None
    format: Annotated[
        TextFormat | None,
        typer.Option(
            help="Format of the input; by default taken from the file extension, or for stdin from the first line.",
            rich_help_panel="Input",
        ),
    ] = None
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field of a .jsonl file.", rich_help_panel="Input")
    ] = None
    column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column of a .csv, .tsv or .parquet file.", rich_help_panel="Input"),
    ] = None
    no_header: Annotated[
        bool,
        typer.Option(
            "--no-header",
            help="The first row of a .csv or .tsv file is data; columns are called 1, 2, …",
            rich_help_panel="Input",
        ),
    ] = False
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad record.", rich_help_panel="Input")] = (
        False
    )


@dataclass(frozen=True)
class RecordOptions(InputOptions):
    """Where inputs come from whose results are written one by one."""

    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Copy a column or field into the results. May be repeated.",
            rich_help_panel="Input",
            show_default="id, if there is one",
        ),
    ] = None


@dataclass(frozen=True)
class PairInputOptions(RecordOptions):
    """Where texts or pairs of texts come from if they are not arguments."""

    text_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column or field of the text, in any format.", rich_help_panel="Input"),
    ] = None
    pair_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Column or field of the second text of a pair.", rich_help_panel="Input"),
    ] = None


@dataclass(frozen=True)
class TalkOptions:
    """How much is printed on stderr."""

    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print no notes, hints or progress.", rich_help_panel="Output")
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print details of what is done.", rich_help_panel="Output")
    ] = False


@dataclass(frozen=True)
class OutputOptions(TalkOptions):
    """How results are shown."""

    json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines, even at a terminal.", rich_help_panel="Output")
    ] = False


@dataclass(frozen=True)
class FileOptions(OutputOptions):
    """How results are shown or written."""

    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write results to a file.", rich_help_panel="Output"),
    ] = None
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing output file.", rich_help_panel="Output")
    ] = False


def flatten(command: Callable[..., None], prepare: Callable[[TalkOptions], None]) -> Callable[..., None]:
    """The command with a signature that has options instead of groups; it calls `prepare` first."""
    hints = typing.get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    groups = {name: hints[name] for name in signature.parameters if dataclasses.is_dataclass(hints[name])}
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name not in groups
    ]
    spread = [option for group in groups.values() for option in _spread(group)]
    every = [_bounded(option, command.__name__) for option in own + spread]

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        for name, value in values.items():
            if isinstance(value, float) and math.isnan(value):  # within any range, as typer compares
                raise ArgumentError(f"{name} is nan, expected a number")
        filled = {name: _fill(group, values, prepare) for name, group in groups.items()}
        command(**{name: values[name] for name in signature.parameters if name not in groups}, **filled)

    flat.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in every}
    flat.__doc__ = "\n\n".join(" ".join(part.split()) for part in (command.__doc__ or "").split("\n\n"))
    del flat.__dict__["__wrapped__"]  # typer would follow it to the signature with groups
    return flat


def _bounded(option: inspect.Parameter, command: str) -> inspect.Parameter:
    """An option with the bounds that the library has for its number."""
    own = f"{command}.{option.name}"
    bounds = BOUNDS.get(own if own in BOUNDS else option.name)
    kind, *more = typing.get_args(option.annotation) or (option.annotation,)
    if bounds is None or not more or not {int, float} & {kind, *typing.get_args(kind)}:
        return option
    whole = float not in {kind, *typing.get_args(kind)}
    described = copy.copy(more[0])
    described.min, described.max = math.ceil(bounds[0]) if whole else bounds[0], bounds[1]
    return option.replace(annotation=Annotated[kind, described])


def _spread(group: Any) -> Iterator[inspect.Parameter]:
    """The options of a group and of the groups in it, as parameters."""
    hints = typing.get_type_hints(group, include_extras=True)
    for field in dataclasses.fields(group):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _spread(hints[field.name])
        else:
            default = inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            kind = inspect.Parameter.KEYWORD_ONLY
            yield inspect.Parameter(field.name, kind, default=default, annotation=hints[field.name])


def _fill(group: Any, values: Mapping[str, Any], prepare: Callable[[TalkOptions], None]) -> Any:
    """A group, and the groups in it, filled with the values of options."""
    hints = typing.get_type_hints(group)
    filled = group(
        **{
            field.name: _fill(hints[field.name], values, prepare)
            if dataclasses.is_dataclass(hints[field.name])
            else values[field.name]
            for field in dataclasses.fields(group)
        }
    )
    if isinstance(filled, TalkOptions):
        prepare(filled)
    return filled


# `name='value'`, `name=True`, `name=8` or `name=` as words of a sentence; a path may contain something like them.
_ARGUMENT = re.compile(
    r"""(?<![^\s(])([a-z]\w*)=(?:(True|False)|'([^']+)'|"([^"]+)"|(\d+(?:\.\d+)?))?(?=[,;:)]|\.?(?:\s|$))"""
)


def to_options(text: str) -> str:
    """A hint of the library as one for the command line.

    `dtype='float32'` becomes `--dtype float32`, `overwrite=True` becomes `--overwrite`, `top_k=` becomes `--top-k`.
    """

    def option(found: re.Match[str]) -> str:
        name, truth, *values = found.groups()
        no = "no-" if truth == "False" else ""
        value = next((f" {shlex.quote(value)}" for value in values if value), "")
        return f"--{no}{name.replace('_', '-')}{value}"

    return _ARGUMENT.sub(option, text)
