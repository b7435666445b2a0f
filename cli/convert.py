"""`mlxbert convert`."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mlxbert.cli import progress, render, session
from mlxbert.cli.options import Offline, OutputOptions, Revision
from mlxbert.cli.verify import numbers

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mlxbert.conversion import Conversion


_SHOWN = 3  # names


class StoredDType(StrEnum):
    """What weights are stored in."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


def convert(
    out: OutputOptions,
    source: Annotated[str, typer.Argument(metavar="SRC", help="Hub name, folder of a checkpoint, or 'builtin'.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to; not there yet.")],
    dtype: Annotated[StoredDType | None, typer.Option(help="Convert the weights; left as they are otherwise.")] = None,
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
    from mlxbert.conversion import convert as write

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
        ("files", f"{len(found.written)} and a manifest, {render.size(found.bytes)}"),
    ]
    rows += [("changed", sentence) for sentence in found.changed or ("nothing",)]
    if found.left_out:
        more = f" and {len(found.left_out) - _SHOWN} more" if len(found.left_out) > _SHOWN else ""
        rows.append(("left out", ", ".join(found.left_out[:_SHOWN]) + more))
    yield from render.facts(str(found.folder), rows)
    yield from render.facts("measured against the source", numbers(found.difference["outputs"]))
    for difference in found.difference["differences"]:
        yield from render.facts("differs", [("", difference["text"])])
