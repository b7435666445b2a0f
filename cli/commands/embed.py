"""`mlxbert embed`."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mlxbert.cli import session
from mlxbert.cli.inputs import ARGUMENTS, open_input
from mlxbert.cli.output.formats import ANY_VECTORS, FORMATS, JSON_LINES, OutputFormat, choose
from mlxbert.cli.output.resumable_file import check_output
from mlxbert.cli.shared_options import FileOptions, RecordOptions, ServedOptions, options_of, with_options
from mlxbert.cli.views import console, vectors as vector_views
from mlxbert.errors import ArgumentError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.option_declarations import Option, declared_options
from mlxbert.tasks.catalogue import CATALOGUE
from mlxbert.tasks.options import EmbedOptions, EmbedWordsOptions, SparseOptions

if TYPE_CHECKING:
    from pathlib import Path

    from mlxbert.cli.session import RemoteModel
    from mlxbert.model import Model

Vectors = Literal["auto", "dense", "sparse", "tokens"]
_ENTRY = CATALOGUE["embed"]
_ENTRIES = {"dense": _ENTRY, **{kind: CATALOGUE[f"embed-{kind}"] for kind in ("sparse", "tokens", "words")}}
_OPTIONS: Mapping[str, Any] = {kind: entry.options for kind, entry in _ENTRIES.items()}
_DEFAULTS = {name: getattr(options, name) for options in _OPTIONS.values() for name in declared_options(options)}


def _embed(
    model: ServedOptions,
    source: RecordOptions,
    chosen: EmbedOptions,
    out: FileOptions,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT…", help="Texts.")] = None,
    words: Annotated[bool, Option("Make a vector for each word in its context.", panel="Vectors")] = False,
    vectors: Annotated[
        Vectors, Option("Kind of vectors. auto is the kind that the model's files state.", panel="Vectors")
    ] = "auto",
    **values: Any,
) -> None:
    if words and vectors != "auto":
        raise ArgumentError("--vectors cannot be combined with --words")
    wanted, given = "words" if words else vectors, vars(chosen) | values
    if wanted != "auto":
        options_of_kind(wanted, given)
    check_output(out.output, out.overwrite, FORMATS.get(wanted, ANY_VECTORS), source.input)
    records = open_input(texts or (), source, "text")
    loaded = session.load_or_ask(_ENTRIES[vectors if vectors != "auto" else "dense"].name, model)
    kind = loaded.vectors[0] if wanted == "auto" else wanted
    check_output(out.output, out.overwrite, FORMATS[kind], source.input)
    options = options_of_kind(kind, given)
    from mlxbert.text.usage import Usage

    entry, usage, settings = _ENTRIES[kind], Usage(), options.deciding()
    format = _format(kind, loaded, options, out.output, source.keep)
    draw, last = _views(kind, compare=records.name == ARGUMENTS and settings.get("output_dtype") != "binary")
    results = session.results(entry, loaded, records, options, usage)
    task = session.OutputManifest(entry.name, loaded, model, settings, format)
    session.stream(records, results, draw, out, task=task, usage=usage, last=last)


embed = with_options(
    _embed,
    _ENTRY.about or "",
    [*options_of(EmbedWordsOptions, only=["layer"]), *options_of(SparseOptions, only=["top_k"])],
)


def options_of_kind(kind: str, given: Mapping[str, Any]) -> Any:
    """Makes the options of a kind of vectors from all that were given; refuses an option of another kind."""
    own = declared_options(_OPTIONS[kind])
    for name, value in given.items():
        if name not in own and value is not None and value != _DEFAULTS[name]:
            kinds = [_title(other) for other, options in _OPTIONS.items() if name in declared_options(options)]
            words = ", or add --words" if kinds == [_title("words")] else " or --words" if kind == "words" else ""
            raise ArgumentError(
                f"`{name}` works only for {' and '.join(kinds)} vectors, but these are {_title(kind)} vectors",
                hint=f"omit `{name}`{words}",
            )
    return _OPTIONS[kind](**{name: value for name, value in given.items() if name in own and value is not None})


def _title(kind: str) -> str:
    return kind.removesuffix("s")


def _views(kind: str, *, compare: bool) -> tuple[Any, Any]:
    if kind in ("sparse", "tokens"):
        return {"sparse": vector_views.draw_sparse, "tokens": vector_views.draw_tokens}[kind], tuple
    view = (vector_views.VectorView if kind == "dense" else vector_views.WordVectors)(compare=compare)
    return view.draw, view.draw_cosines


def _format(
    kind: str, model: "Model | RemoteModel", chosen: Any, path: "Path | None", keep: Sequence[str] | None
) -> OutputFormat:
    from mlxbert.tasks.vector_dtype import stored_width

    options = chosen.deciding()
    about = {"task": _ENTRIES[kind].name, "model": model.source, "options": json.dumps(options, sort_keys=True)}
    dtype, width = options.get("output_dtype", "float32"), None
    if kind == "dense":
        width = _width(model, options, path)
        about["format"] = "mlxbert embeddings"
        if path is not None and not session.is_remote(model):
            about["fingerprint"] = hash_model(model.files, times=False)
    elif kind != "tokens":
        fact, name = {"sparse": ("vocabulary", "vocab_size"), "words": ("hidden", "hidden_size")}[kind]
        width = model.facts[fact] if session.is_remote(model) else getattr(model.config, name)
    elif not session.is_remote(model):
        width = stored_width(dtype, model.token_embedder.size)
        about |= {"dtype": dtype, "size": str(model.token_embedder.size)}
    elif path is not None and path.suffix.lower() not in JSON_LINES:
        raise ArgumentError(f"--output {path}: with --server, token vectors are written as .jsonl only")
    return choose(path, FORMATS[kind], width=width, metadata=about, keep=keep, kind=kind, dtype=dtype)


def _width(model: "Model | RemoteModel", options: dict[str, Any], path: "Path | None") -> int:
    """Returns the number of values that are stored for a dense vector; notes defaults that may surprise users.

    If the model is on a server and nothing is written to a file, the number is not needed and is 0.
    """
    from mlxbert.tasks.vector_dtype import check_output_dtype, stored_width

    session.note_assumed_pooling(model, options["pooling"])
    if session.is_remote(model):
        width = 0 if path is None else model.width(options)
        unit = model.embedder.unit and not (options["dimensions"] or math.inf) < model.facts["size"]
    else:
        embedder = model.embedder.variant(**{name: options[name] for name in ("pooling", "normalize", "dimensions")})
        check_output_dtype(options["output_dtype"], embedder.size)
        width, unit = stored_width(options["output_dtype"], embedder.size), embedder.unit
    if options["normalize"] is None and model.embedder.unit and not unit:
        console.say("note", "shortened vectors no longer have length 1; --normalize scales them")
    return width
