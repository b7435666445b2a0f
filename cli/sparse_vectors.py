"""Writes sparse vectors for `mlxbert embed`."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mlxbert.cli import session
from mlxbert.cli.output.formats import SPARSE, choose
from mlxbert.cli.shared_options import FileOptions, ServedOptions
from mlxbert.readers.stream import RecordStream
from mlxbert.tasks.catalogue import TaskEntry
from mlxbert.tasks.options import SparseOptions

if TYPE_CHECKING:
    from mlxbert.cli.server_models import RemoteModel
    from mlxbert.model import Model


def write(
    entry: TaskEntry,
    loaded: "Model | RemoteModel",
    records: RecordStream,
    model: ServedOptions,
    chosen: SparseOptions,
    out: FileOptions,
    keep: Sequence[str] | None,
) -> None:
    """Computes the sparse vectors of records, and draws or writes them."""
    from mlxbert.cli.views import sparse
    from mlxbert.text.usage import Usage

    usage, settings = Usage(), chosen.deciding()
    metadata = {"task": entry.name, "model": loaded.source, "options": json.dumps(settings, sort_keys=True)}
    width = loaded.facts["vocabulary"] if session.is_remote(loaded) else loaded.config.vocab_size
    format: Any = choose(out.output, SPARSE, width=width, metadata=metadata, keep=keep, sparse=True)
    results = session.results(entry, loaded, records, chosen, usage)
    task = session.OutputManifest(entry.name, loaded, model, settings, format)
    session.stream(records, results, sparse.draw, out, task=task, usage=usage)
