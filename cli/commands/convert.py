"""`mlxbert convert`."""

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlxbert.cli import session
from mlxbert.cli.commands.verify import differences, measured
from mlxbert.cli.options import Offline, OutputOptions, Revision
from mlxbert.cli.views import console, progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mlxbert.folders.convert import Conversion


_SHOWN = 3  # names
_SOURCE = "Hub name, 'builtin', or folder of a checkpoint: safetensors, torch .bin, TensorFlow 1, .npz or ONNX."
# What training needs besides weights: an optimizer's numbers and counters, by the last part of a name.
_TRAINING = re.compile(
    r"(.*[/.])?(adam\w*|lamb\w*|momentum\w*|exp_avg\w*|ExponentialMovingAverage"
    r"|global_step|beta\d_power|(current_)?loss_scale\w*|(good|bad)_steps\w*)",
    re.I,
)


class StoredDType(StrEnum):
    """What weights are stored in."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


def convert(
    out: OutputOptions,
    source: Annotated[str, typer.Argument(metavar="SRC", help=_SOURCE)],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to: a new folder, or an empty one.")],
    dtype: Annotated[
        StoredDType | None,
        typer.Option(metavar="DTYPE", help="float32, float16 or bfloat16; weights are left as they are otherwise."),
    ] = None,
    quantize: Annotated[
        int | None, typer.Option(metavar="4|8", help="Bits of a number: MLX's layout, not for transformers.")
    ] = None,
    group_size: Annotated[
        int | None, typer.Option(metavar="32|64|128", help="Numbers that share a scale when quantized; 64.")
    ] = None,
    max_shard_size: Annotated[str, typer.Option(metavar="SIZE", help="How much one file of weights holds.")] = "5GB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier conversion wrote.")] = False,
    revision: Revision = None,
    offline: Offline = False,
) -> None:
    """Write a model as a folder that transformers and sentence-transformers open, or quantized for MLX.

    Example: mlxbert convert ./bert-from-2019 ./bert --dtype float16
    """
    from mlxbert.folders.convert import convert as write

    with progress.download(source) as fetched, progress.download(str(folder), "writing") as written:
        found = write(
            source,
            folder,
            dtype=dtype and dtype.value,
            quantize=quantize,
            group_size=group_size,
            max_shard_size=max_shard_size,
            revision=revision,
            offline=offline,
            overwrite=overwrite,
            on_progress=fetched,
            on_written=written,
        )
    session.show_object(found.to_dict() | {"folder": str(found.folder)}, lambda: _draw(found), out)


def _draw(found: "Conversion") -> Iterator["RenderableType"]:
    rows: list[tuple[str, object]] = [
        ("from", f"{found.source} ({found.family}, {found.format})"),
        ("files", f"{len(found.written)} and a manifest, {console.size(found.bytes)}"),
    ]
    rows += [("changed", sentence) for sentence in found.changed or ("nothing",)]
    training = [name for name in found.left_out if _TRAINING.fullmatch(name)]
    others = [name for name in found.left_out if not _TRAINING.fullmatch(name)]
    rows += [("left out", _counted("tensors", others))] if others else []
    rows += [("left out", _counted("of an optimizer", training))] if training else []
    yield from console.facts(str(found.folder), rows)
    apart, tensors = found.difference, found.difference["tensors"]
    if not apart["agree"]:
        yield from console.facts("the result does not agree with its source", [])
        yield from differences([(one["kind"], one["text"]) for one in apart["differences"]], tensors)
    if apart["notes"]:
        yield from console.facts("notes on source (A) and result (B)", [("", note) for note in apart["notes"]])
    yield from measured(tensors, apart["outputs"], " against the source")


def _counted(what: str, names: list[str]) -> str:
    """How many there are, and the first of them."""
    more = ", …" if len(names) > _SHOWN else ""
    return f"{len(names):,} {what}: {', '.join(names[:_SHOWN])}{more}"
