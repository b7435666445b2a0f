"""`mlxbert inspect`."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import progress, render, session
from mlxbert.cli.options import Offline, OutputOptions, Revision

if TYPE_CHECKING:
    from rich.console import RenderableType


def inspect(
    out: OutputOptions,
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", envvar="MLXBERT_MODEL", help="Hub name, folder of a checkpoint, or 'builtin'."),
    ] = "builtin",
    revision: Revision = None,
    offline: Offline = False,
    tensors: Annotated[
        bool, typer.Option("--tensors", help="Every tensor, instead of one line for all layers.")
    ] = False,
) -> None:
    """Show what is in a checkpoint: configuration, parameters, and which tensor becomes what.

    Only the configuration and the headers of the weights are read.

    Example: mlxbert inspect builtin
    """
    from mlxbert.weights.inspect import inspect_folder
    from mlxbert.weights.source import find_folder

    with progress.download(model) as update:
        folder = find_folder(model, revision=revision, offline=offline, on_progress=update)
    found = inspect_folder(folder)
    session.show_object(found, lambda: _draw(found, whole=tensors), out)


def _draw(found: dict[str, Any], *, whole: bool) -> Iterator["RenderableType"]:
    config, tokenizer = found["config"], found["tokenizer"]
    yield from render.facts(
        f"{found['family']} in {found['folder']}",
        [
            ("parts", ", ".join(found["parts"])),
            ("longest input", f"{found['max_length']} tokens"),
            ("stored as", found["storage"]),
            (
                "vocabulary",
                f"{tokenizer['vocab_size']} tokens; special: {' '.join(tokenizer['special'].values())}",
            ),
        ],
    )
    yield from render.facts("configuration", _config_rows(config))
    total = found["parameters"]["total"]
    yield from render.facts(
        "parameters", [(part, f"{count:>12,}  {count / total:6.1%}") for part, count in found["parameters"].items()]
    )
    yield from render.facts("memory", [(dtype, f"{size / 1e6:9.1f} MB") for dtype, size in found["memory"].items()])
    rows = found["tensors"] if whole else _by_layer(found["tensors"])
    yield render.listing(
        ("tensor", "dtype", "shape", "becomes"),
        ((row["name"], row["dtype"], " x ".join(map(str, row["shape"])), row["becomes"]) for row in rows),
    )


def _config_rows(config: dict[str, Any]) -> Iterable[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, dict):
            facts = ", ".join(f"{name} {fact}" for name, fact in value.items() if name != "type")
            yield key, f"{value['type']}({facts})"
        elif key == "layer_schedule":
            yield "layers", f"{len(value)} steps through {len(set(value))} stored layers"
        else:
            yield key, value


def _by_layer(tensors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for tensors that differ only in the number of their layer."""
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    counts: dict[tuple[str, ...], int] = {}
    for row in tensors:
        plain = {key: re.sub(r"\.\d+\.", ".{}.", str(row[key])) for key in ("name", "becomes")}
        key = (plain["name"], plain["becomes"], row["dtype"], str(row["shape"]))
        rows.setdefault(key, row | plain)
        counts[key] = counts.get(key, 0) + 1
    return [
        row | {"name": row["name"].replace("{}", f"{{0…{counts[key] - 1}}}")} if counts[key] > 1 else row
        for key, row in rows.items()
    ]
