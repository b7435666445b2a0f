"""`mlxbert embed`."""

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mlxbert.cli import processes, session
from mlxbert.cli.inputs import ARGUMENTS, open_input
from mlxbert.cli.options import FileOptions, RecordOptions, ServedOptions, VectorOptions
from mlxbert.cli.output.base import OutputFormat
from mlxbert.cli.output.file import check_output
from mlxbert.cli.output.formats import VECTORS, WORDS, choose
from mlxbert.cli.views import console, vectors
from mlxbert.errors import ArgumentError
from mlxbert.options import Option
from mlxbert.readers.inputs import STDIN
from mlxbert.readers.stream import RecordStream

if TYPE_CHECKING:
    from pathlib import Path

    from mlxbert.cli.remote import RemoteModel
    from mlxbert.model import Model

Kind = Literal["query", "document"]
OutputDType = Literal["float32", "int8", "binary"]


def embed(
    model: ServedOptions,
    source: RecordOptions,
    vector: VectorOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None,
    normalize: Annotated[
        bool | None,
        Option("Scale vectors to length 1.", usual="the model's", panel="Vectors"),
    ] = None,
    kind: Annotated[
        Kind | None,
        Option("Use the model's own prompt. For queries, or for documents.", panel="Vectors"),
    ] = None,
    output_dtype: Annotated[
        OutputDType,
        Option("Dtype of the vectors. binary is one bit per dimension.", panel="Vectors"),
    ] = "float32",
    words: Annotated[bool, Option("A vector for each word in its context.", panel="Vectors")] = False,
    layer: Annotated[
        int | None,
        Option("Layer of --words. 0 is the embeddings, 1 the first layer.", usual="the last", panel="Vectors"),
    ] = None,
) -> None:
    """Turn texts into vectors: texts of similar meaning have similar vectors.

    Options you leave out keep the model's own settings. --output takes .npy, .jsonl, .csv, .sqlite, .safetensors and
    .parquet, with --words .jsonl and .parquet; after an interruption the same command resumes.

    Example: mlxbert embed --input reviews.csv --column text --output reviews.npy
    """  # fmt: skip
    given = vars(vector) | {"normalize": normalize, "output_dtype": output_dtype, "kind": kind}
    _check_words(words, layer, given)
    check_output(out.output, out.overwrite, WORDS if words else VECTORS, source.input, shared=not words)
    processes.check_stdin([] if texts else source.input or [STDIN])  # before its first line is waited for
    opened = open_input(texts or (), source, "text")
    processes.check_stdin([] if opened.files or opened.name == ARGUMENTS else [STDIN])
    loaded = session.load_or_ask("embed", model)
    if words:
        chosen = {"layer": -1 if layer is None else layer, "overflow": vector.overflow}
        _embed_words(loaded, opened, model, chosen, out, source.keep)
        return
    from mlxbert.text.usage import Usage

    group, usage = None, Usage()
    more: dict[str, Any] = {"usage": usage}
    if not session.is_remote(loaded):
        from mlxbert.machine.distributed import join

        group = more["group"] = join()
    task = session.OutputManifest("embed", loaded, model, given, _format(loaded, out.output, given, source.keep))
    view = vectors.Embeddings(compare=opened.name == ARGUMENTS and output_dtype != "binary")
    results = session.results("embed", loaded, opened, model, given, **more)
    session.stream(opened, results, view.draw, out, task=task, usage=usage, last=view.draw_cosines, group=group)


def _check_words(words: bool, layer: int | None, given: dict[str, Any]) -> None:
    if not words and layer is not None:
        raise ArgumentError("--layer works only with --words")
    of_texts = [name for name, value in given.items() if name != "overflow" and value not in (None, "float32")]
    if words and of_texts:
        raise ArgumentError(f"--{of_texts[0].replace('_', '-')} is for vectors of texts: it does not work with --words")


def _embed_words(
    loaded: "Model | RemoteModel",
    opened: RecordStream,
    model: ServedOptions,
    given: dict[str, Any],
    out: FileOptions,
    keep: Sequence[str] | None,
) -> None:
    from mlxbert.text.usage import Usage

    usage = Usage()
    about = {"model": loaded.source, "options": json.dumps(given)}
    width = loaded.facts["hidden"] if session.is_remote(loaded) else loaded.config.hidden_size
    format = choose(out.output, WORDS, width=width, metadata=about, keep=keep, words=True)
    results = session.results("embed-words", loaded, opened, model, given, usage=usage)
    view = vectors.WordVectors(compare=opened.name == ARGUMENTS)
    task = session.OutputManifest("embed words", loaded, model, given, format)
    session.stream(opened, results, view.draw, out, task=task, usage=usage, last=view.draw_cosines)


def _format(
    model: "Model | RemoteModel", path: "Path | None", given: dict[str, Any], keep: Sequence[str] | None
) -> OutputFormat:
    """The format of the output, which knows the width of the vectors; prints notes on defaults that may surprise."""
    note_assumed_pooling(model, given["pooling"])
    size, unit = _width(model, given, path)
    if given["normalize"] is None and model.embedder.unit and not unit:
        console.say("note", "shortened vectors no longer have length 1; --normalize scales them")
    about = {
        "format": "mlxbert embeddings",
        "task": "embed",
        "model": model.source,
        "options": json.dumps(given, sort_keys=True),
    }
    return choose(path, VECTORS, width=size, metadata=about, whole=given["output_dtype"] != "float32", keep=keep)


def _width(model: "Model | RemoteModel", given: dict[str, Any], path: "Path | None") -> tuple[int, bool]:
    """How many numbers a vector is stored in, and whether it has length 1; of a server's only for a file is asked."""
    chosen = {name: given[name] for name in ("pooling", "normalize", "dimensions")}
    if session.is_remote(model):
        shorter = (given["dimensions"] or math.inf) < model.facts["size"]
        return 0 if path is None else model.width(given), model.embedder.unit and not shorter
    from mlxbert.tasks.vector_dtype import check_output_dtype, stored_width

    embedder = model.embedder.variant(**chosen)
    check_output_dtype(given["output_dtype"], embedder.size)
    return stored_width(given["output_dtype"], embedder.size), embedder.unit


def note_assumed_pooling(model: "Model | RemoteModel", pooling: str | None) -> None:
    """Prints a note if neither the model nor an option names the pooling."""
    if not model.embedder.config.stated and pooling is None:
        pooled = "+".join(model.embedder.config.poolings)
        console.say("note", f"{model.source} has no modules.json: {pooled} pooling is assumed")
