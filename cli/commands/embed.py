"""`mlxbert embed`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mlxbert.cli import processes, session
from mlxbert.cli.inputs import ARGUMENTS, STDIN, open_input
from mlxbert.cli.options import FileOptions, ModelOptions, RecordOptions, VectorOptions
from mlxbert.cli.output.base import OutputFormat
from mlxbert.cli.output.file import check_output
from mlxbert.cli.output.formats import VECTORS, choose
from mlxbert.cli.views import console, vectors
from mlxbert.options import Option

if TYPE_CHECKING:
    from pathlib import Path

    from mlxbert.model import Model

Kind = Literal["query", "document"]
OutputDType = Literal["float32", "int8", "binary"]


def embed(
    model: ModelOptions,
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
) -> None:
    """Turn texts into vectors: texts of similar meaning have similar vectors.

    Options you leave out keep the model's own settings. --output takes .npy, .jsonl, .csv, .sqlite, .safetensors and
    .parquet; after an interruption the same command resumes.

    Example: mlxbert embed --input reviews.csv --column text --output reviews.npy
    """  # fmt: skip
    check_output(out.output, out.overwrite, VECTORS, source.input, shared=True)
    processes.check_stdin([] if texts else source.input or [STDIN])  # before its first line is waited for
    opened = open_input(texts or (), source, "text")
    processes.check_stdin([] if opened.files or opened.name == ARGUMENTS else [STDIN])
    loaded = session.load("embed", model)
    from mlxbert.machine.distributed import join
    from mlxbert.tasks.embed import embed_stream
    from mlxbert.text.batch import Usage

    group = join()
    usage, given = Usage(), vars(vector) | {"normalize": normalize, "output_dtype": output_dtype, "kind": kind}
    task = session.OutputManifest("embed", loaded, model, given, _format(loaded, out.output, given, source.keep))
    how: dict[str, Any] = given | {"batch_tokens": model.batch_tokens, "usage": usage, "on_error": opened.on_error}
    view = vectors.Embeddings(compare=opened.name == ARGUMENTS and output_dtype != "binary")
    results = embed_stream(loaded, opened.records, group=group, **how)
    session.stream(opened, results, view.draw, out, task=task, usage=usage, last=view.draw_cosines, group=group)


def _format(model: "Model", path: "Path | None", given: dict[str, Any], keep: Sequence[str] | None) -> OutputFormat:
    """The format of the output, which knows the width of the vectors; prints notes on defaults that may surprise."""
    from mlxbert.tasks.vector_dtype import check_output_dtype, stored_width

    embedder = model.embedder.variant(**{name: given[name] for name in ("pooling", "normalize", "dimensions")})
    note_assumed_pooling(model, given["pooling"])
    if given["normalize"] is None and model.embedder.unit and not embedder.unit:
        console.say("note", "shortened vectors no longer have length 1; --normalize scales them")
    about = {
        "format": "mlxbert embeddings",
        "task": "embed",
        "model": model.source,
        "options": json.dumps(given, sort_keys=True),
    }
    dtype = given["output_dtype"]
    check_output_dtype(dtype, embedder.size)
    size, whole = stored_width(dtype, embedder.size), dtype != "float32"
    return choose(path, VECTORS, width=size, metadata=about, whole=whole, keep=keep)


def note_assumed_pooling(model: "Model", pooling: str | None) -> None:
    """Prints a note if neither the model nor an option names the pooling."""
    if not model.embedder.config.stated and pooling is None:
        console.say("note", f"{model.source} has no modules.json: mean pooling is assumed")
