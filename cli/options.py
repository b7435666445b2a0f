"""Options that commands share, written once: a command names the groups it takes, and each becomes flags.

A group is a frozen dataclass whose fields are typer options. `flatten` spreads the groups over a command's signature,
where typer reads them, and hands the command the filled dataclasses.
"""

import dataclasses
import functools
import inspect
import re
import shlex
import typing
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer


class DType(StrEnum):
    """What to compute in."""

    auto = "auto"
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


class Device(StrEnum):
    """Where to compute."""

    auto = "auto"
    gpu = "gpu"
    cpu = "cpu"


class Format(StrEnum):
    """How an input is written."""

    txt = "txt"
    jsonl = "jsonl"
    csv = "csv"
    tsv = "tsv"


class Window(StrEnum):
    """What happens to a text too long for the model, where windows can cover it."""

    window = "window"
    truncate = "truncate"
    error = "error"


class Overflow(StrEnum):
    """What happens to a text too long for the model, where one vector is made of it."""

    truncate = "truncate"
    window = "window"
    error = "error"


class Cut(StrEnum):
    """What happens to a text too long for the model, where it has to fit."""

    truncate = "truncate"
    error = "error"


Revision = Annotated[
    str | None,
    typer.Option("--revision", metavar="NAME", help="Branch, tag or commit of a hub model.", rich_help_panel="Model"),
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Use what is in the cache; never ask the hub.", rich_help_panel="Model")
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
class ModelOptions(ModelName):
    """Which model, and how it computes."""

    dtype: Annotated[
        DType, typer.Option(help="What to compute in; auto suits the device.", rich_help_panel="Model")
    ] = DType.auto
    device: Annotated[
        Device, typer.Option(help="Where to compute; auto takes the GPU where there is one.", rich_help_panel="Model")
    ] = Device.auto
    batch_tokens: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Tokens per batch, padding included.", rich_help_panel="Model"),
    ] = None


@dataclass(frozen=True)
class VectorOptions:
    """How texts become vectors; what is not given is done as the model's own files say."""

    pooling: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cls, mean, max, mean_sqrt_len, weighted_mean, last_token or attention; several joined by +.",
            rich_help_panel="Vectors",
        ),
    ] = None
    dimensions: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Keep only the first N values (Matryoshka).", rich_help_panel="Vectors"),
    ] = None
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Put before each text.", rich_help_panel="Vectors")
    ] = None
    prompt_name: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of the model's own prompts.", rich_help_panel="Vectors")
    ] = None
    overflow: Annotated[
        Overflow, typer.Option(help="What to do with a text too long for the model.", rich_help_panel="Vectors")
    ] = Overflow.truncate

    def given(self) -> dict[str, Any]:
        """The options as the library takes them."""
        return vars(self) | {"overflow": self.overflow.value}


@dataclass(frozen=True)
class InputOptions:
    """Where inputs come from when they are no arguments."""

    input: Annotated[
        str | None,
        typer.Option(
            "--input", "-i", metavar="FILE", help="Read inputs from a file; - is stdin.", rich_help_panel="Input"
        ),
    ] = None
    format: Annotated[
        Format | None,
        typer.Option(help="How the input is written; by its ending, stdin as txt.", rich_help_panel="Input"),
    ] = None
    field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field of a .jsonl input.", rich_help_panel="Input")
    ] = None
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of a .csv or .tsv input.", rich_help_panel="Input")
    ] = None
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first bad record.", rich_help_panel="Input")] = (
        False
    )


@dataclass(frozen=True)
class TalkOptions:
    """How much is said on stderr."""

    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No notes, hints and progress.", rich_help_panel="Output")
    ] = False
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what is done.", rich_help_panel="Output")] = (
        False
    )


@dataclass(frozen=True)
class OutputOptions(TalkOptions):
    """How results are shown."""

    json: Annotated[bool, typer.Option("--json", help="JSON lines, also at a terminal.", rich_help_panel="Output")] = (
        False
    )


@dataclass(frozen=True)
class FileOptions(OutputOptions):
    """How results are shown or written."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write results to a file.",
            rich_help_panel="Output",
        ),
    ] = None
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing output file.", rich_help_panel="Output")
    ] = False


def flatten(command: Callable[..., None], listen: Callable[[TalkOptions], None]) -> Callable[..., None]:
    """A command whose option groups are spread over its signature; `listen` is told before it how much to say."""
    hints = typing.get_type_hints(command, include_extras=True)
    signature = inspect.signature(command)
    groups = {name: hints[name] for name in signature.parameters if dataclasses.is_dataclass(hints[name])}
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name not in groups
    ]
    spread = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=typing.get_type_hints(group, include_extras=True)[field.name],
        )
        for group in groups.values()
        for field in dataclasses.fields(group)
    ]

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        filled = {
            name: group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        for group in filled.values():
            if isinstance(group, TalkOptions):
                listen(group)
        command(**values, **filled)

    flat.__signature__ = signature.replace(parameters=own + spread)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in own + spread}
    flat.__doc__ = "\n\n".join(" ".join(part.split()) for part in (command.__doc__ or "").split("\n\n"))
    del flat.__dict__["__wrapped__"]  # typer would look through it at the unspread signature
    return flat


# `name='value'`, `name=True`, `name=8`, or `name=` before a space or at the end.
_ARGUMENT = re.compile(r"""\b([a-z]\w*)=(?:(True|False)\b|'([^']+)'|"([^"]+)"|(\d[\w.]*)|(?=[\s,;.)]|$))""")


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
