"""`mlxbert serve`: models for other programs, over HTTP."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from mlxbert.cli.shared_options import ComputingDevice, ComputingDType, Offline, TalkOptions
from mlxbert.cli.views import console
from mlxbert.errors import ArgumentError
from mlxbert.option_declarations import Option
from mlxbert.serve.engine.serving_options import EngineOptions, ServeOptions
from mlxbert.weights.model_source import BUILTIN, ModelRef


def serve(
    talk: TalkOptions,
    options: ServeOptions,
    engine: EngineOptions,
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL…", help="Models: hub names, folders, or NAME=MODEL.")
    ] = None,
    index: Annotated[
        list[str] | None,
        Option(
            "Index to search: FILE or NAME=FILE. May be repeated. FILE may be a Lance table, lance:DIR or "
            "s3://BUCKET/PATH.",
            "FILE",
        ),
    ] = None,
    offline: Offline = False,
    dtype: ComputingDType = "auto",
    device: ComputingDevice = "auto",
) -> None:
    """Serve models to other programs over HTTP.

    It speaks the protocols of OpenAI, Cohere, Jina, ollama, Text Embeddings Inference and Hugging Face (see
    docs/serve.md).
    Clients refer to a model by its NAME; by default this is its name on the hub, or the name of its folder. Without
    MODEL it serves the model that MLXBERT_MODEL names, or the built-in one.

    Example: mlxbert serve small=BAAI/bge-small-en-v1.5
    """
    from mlxbert.search.commands.indexes import find_file
    from mlxbert.search.index_stores import exists, is_lance, open_store

    sources = _named(models or [os.environ.get("MLXBERT_MODEL") or BUILTIN], "MODEL")
    named = _named(index or (), "--index").items()
    indexes = {name: str(find_file(file)) if os.path.isdir(file) else file for name, file in named}
    if missing := [file for file in indexes.values() if not (exists(file) if is_lance(file) else os.path.isfile(file))]:
        raise ArgumentError(
            f"--index is {missing[0]}, but this file does not exist", hint="`mlxbert indexes list` shows the indexes"
        )
    for file in indexes.values():
        open_store(file).close()  # a file that is not an index is refused now, not at the first search
    from mlxbert.serve.http.server import serve as run

    refs = {name: ModelRef(source, None, None, offline, dtype, device) for name, source in sources.items()}
    run(
        refs, options, engine_options=engine, indexes=indexes, quiet=talk.quiet,
        say=lambda text: console.say("note", text),
    )  # fmt: skip


def _named(words: Sequence[str], what: str) -> dict[str, str]:
    """Splits words of the form NAME=VALUE; a VALUE without a name is named after its file or folder."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or os.path.exists(word):
            name, value = (Path(word).absolute().stem if what == "--index" else Path(word).absolute().name), word
            if what != "--index" and not os.path.isdir(word):
                name = word
        if not name or not value or not name.isprintable():
            kind = "FILE" if what == "--index" else what
            raise ArgumentError(f"{what} is {word!r:.100}, expected {kind} or NAME={kind}")
        if name in values:
            raise ArgumentError(f"{what} {name!r:.100} is given twice", hint=f"choose another name: OTHER={value}")
        values[name] = value
    return values
