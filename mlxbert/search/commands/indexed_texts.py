"""Reads the passages and vectors of an index for the commands that compare many texts.

Legend: W values per vector.
"""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from mlxbert.errors import StoreError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.readers.stream import Record
from mlxbert.readers.text_collection import TextCollection
from mlxbert.search import views
from mlxbert.search.commands.indexes import find_file

if TYPE_CHECKING:
    from mlxbert.search.store import IndexStore, StoredChunk, StoredDocument
Vector: TypeAlias = "NDArray[np.float32]"


def stored_passages(store: "IndexStore") -> "Iterator[tuple[Mapping[str, Any], Vector]]":
    """Yields each passage as the search shows it, and its vector (W,); of several windows, the mean of their vectors.

    Passages are sorted by file, and in the order of the file; records that were added come last.
    """
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


def indexed_texts(name: str) -> TextCollection:
    """Reads the passages and vectors of an index, which is given by its file or by a path that it covers."""
    from mlxbert.search.index import open_index

    with open_index(find_file(name)) as index:
        passages, files, width = [*stored_passages(index.store)], index.store.files(), index.about.dimensions

    def age(passage: "tuple[Mapping[str, Any], Vector]") -> tuple[bool, float, int]:
        path = passage[0]["path"]
        file = files.get(path)  # none of a record, and of a file that another process has just removed
        changed = file.changed if file else -1  # -1 also of a file that was new when it was read
        return not path, math.inf if changed < 0 else changed, len(path or "")

    passages.sort(key=age)  # an original before its copy, which is younger or, as "a copy.md", has a longer name
    vectors = np.array([vector for _, vector in passages], np.float32).reshape(len(passages), width)
    records = [Record(row, "", text=row["text"]) for row, _ in passages]
    found = TextCollection([record.text for record in records], records, [*range(len(records))], vectors)
    found.names = [_name(row) for row, _ in passages]
    return found


def _name(passage: Mapping[str, Any]) -> str:
    """Returns the place of a passage: `notes/a.md:3`, `mail.mbox, message 2`."""
    path, place, line, page = (passage[name] for name in ("path", "place", "start_line", "page"))
    inside = f"page {page}" if page is not None else place
    name = views.near(path) + f":{line}" * (line is not None) if path else ""
    return ", ".join(filter(None, (name, inside))) or "record"
