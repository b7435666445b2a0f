"""Writes vectors of tokens for `mlxbert embed`."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert.cli import session
from mlxbert.cli.output.formats import JSON_LINES, TOKENS, choose
from mlxbert.cli.output.output_format import OutputFormat
from mlxbert.cli.shared_options import FileOptions, ServedOptions
from mlxbert.errors import ArgumentError
from mlxbert.readers.stream import RecordStream
from mlxbert.tasks.catalogue import TaskEntry
from mlxbert.tasks.options import TokenVectorOptions

if TYPE_CHECKING:
    from mlxbert.cli.server_models import RemoteModel
    from mlxbert.model import Model


def write(
    entry: TaskEntry,
    loaded: "Model | RemoteModel",
    records: RecordStream,
    model: ServedOptions,
    chosen: TokenVectorOptions,
    out: FileOptions,
    keep: Sequence[str] | None,
) -> None:
    """Computes the vectors of the tokens of records, and draws or writes them."""
    from mlxbert.cli.views import token_vectors
    from mlxbert.text.usage import Usage

    usage, settings = Usage(), chosen.deciding()
    format = _format(entry, loaded, chosen, out.output, keep)
    results = session.results(entry, loaded, records, chosen, usage)
    task = session.OutputManifest(entry.name, loaded, model, settings, format)
    session.stream(records, results, token_vectors.draw, out, task=task, usage=usage)


def _format(
    entry: TaskEntry,
    model: "Model | RemoteModel",
    chosen: TokenVectorOptions,
    path: Path | None,
    keep: Sequence[str] | None,
) -> OutputFormat:
    """Returns the output format for vectors of this model."""
    about = {"task": entry.name, "model": model.source, "options": json.dumps(chosen.deciding(), sort_keys=True)}
    if path is None or path.suffix.lower() in JSON_LINES:
        return choose(path, TOKENS, metadata=about, keep=keep)
    from mlxbert.cli.output.token_columns import TokenParquet, TokenSafetensors

    if session.is_remote(model):
        raise ArgumentError(f"--output {path}: with --server, vectors of tokens are written as .jsonl only")
    width = model.token_embedder.size
    kind = TokenParquet if path.suffix.lower() == TokenParquet.ending else TokenSafetensors
    choose(path, TOKENS, keep=keep)  # checks the columns to keep
    dtype = chosen.output_dtype
    about |= {"dtype": dtype, "size": str(width)}
    return kind(width // 8 if dtype == "binary" else width, about, tuple(dict.fromkeys(keep or ())), dtype=dtype)
