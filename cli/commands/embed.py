"""`mlxbert embed`."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import ARGUMENTS, open_input, single
from mlxbert.cli.options import FileOptions, InputOptions, ModelOptions, VectorOptions
from mlxbert.cli.output.base import OutputFormat
from mlxbert.cli.output.file import check_output
from mlxbert.cli.output.formats import VECTORS, choose
from mlxbert.cli.views import console, vectors

if TYPE_CHECKING:
    from pathlib import Path

    from mlxbert.model import Model


def embed(
    model: ModelOptions,
    source: InputOptions,
    vector: VectorOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None,
    normalize: Annotated[
        bool | None,
        typer.Option(
            "--normalize/--no-normalize",
            help="Vectors of length 1, or not.",
            rich_help_panel="Vectors",
            show_default="as the model does",
        ),
    ] = None,
) -> None:
    """Turn texts into vectors whose cosines say how near the texts are in meaning.

    Pooling, normalizing and prompts are the model's own unless options say otherwise. --output takes .npy, .jsonl,
    .safetensors and .parquet; after an interruption the same command goes on where it stopped.

    Example: mlxbert embed --input reviews.csv --column text --output reviews.npy
    """  # fmt: skip
    check_output(out.output, out.overwrite, VECTORS, source.input)
    opened = open_input(texts or (), source, ("text",))
    loaded = session.load("embed", model)
    from mlxbert.tasks.embed import embed_stream
    from mlxbert.text.batch import Usage

    usage, given = Usage(), vector.given() | {"normalize": normalize}
    how: dict[str, Any] = given | {"batch_tokens": model.batch_tokens, "usage": usage, "on_error": opened.on_error}
    task = session.Task("embed", loaded, model, given, _format(loaded, out.output, given))
    seen = vectors.Seen(compare=opened.name == ARGUMENTS)
    session.stream(
        opened,
        lambda records: embed_stream(loaded, single(records), **how),
        session.View(seen.each, last=seen.heat_map),
        out,
        task=task,
        usage=usage,
    )


def _format(model: "Model", path: "Path | None", given: dict[str, Any]) -> OutputFormat:
    """The format of the output, told how wide vectors will be; what goes without saying in the options is said."""
    embedder = model.embedder.variant(**{name: given[name] for name in ("pooling", "normalize", "dimensions")})
    say_assumed(model, given["pooling"])
    if given["normalize"] is None and model.embedder.unit and not embedder.unit:
        console.say("note", "cut vectors are no longer of length 1; --normalize makes them so")
    about = {"model": model.source, "options": json.dumps(given, sort_keys=True)}
    return choose(path, VECTORS, width=embedder.size, metadata=about)


def say_assumed(model: "Model", pooling: str | None) -> None:
    """Says that a model's pooling was assumed, where nobody named one."""
    if not model.embedder.config.stated and pooling is None:
        console.say("note", f"{model.source} has no modules.json: mean pooling is assumed")
