"""Reads all passages of an index with their vectors.

Legend: W values per vector.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mlxbert.errors import StoreError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlxbert.search.store import IndexStore, StoredChunk, StoredDocument

    Vector = NDArray[np.float32]


def stored_passages(store: "IndexStore") -> "Iterator[tuple[Mapping[str, Any], Vector]]":
    """Yields each passage as the search shows it, and its vector (W,); of several windows, the mean of their vectors.

    Passages are sorted by file, and in the order of the file; records that were added come last.
    """
    import numpy as np

    if store.about.is_sparse:
        raise StoreError(f"{store.path}: the index has sparse vectors, expected dense ones")
    with store.reading():
        for path in (*sorted(store.files()), ""):
            for document in store.documents(path):
                vectors = store.vectors({hash for chunk in document.chunks for hash in chunk.hashes})
                for chunk in document.chunks:
                    if not chunk.hashes or not vectors.keys() >= {*chunk.hashes}:
                        raise StoreError(f"{store.path}: a passage of {path or document.place} has no vector")
                    yield _passage(path, document, chunk), np.mean([vectors[hash] for hash in chunk.hashes], 0)


def _passage(path: str, document: "StoredDocument", chunk: "StoredChunk") -> dict[str, Any]:
    return {
        "path": path or None, "place": document.place, "start_line": chunk.first_line, "end_line": chunk.last_line,
        "page": chunk.page, "title": " > ".join(chunk.titles), "text": chunk.text, "fields": dict(document.fields),
    }  # fmt: skip
