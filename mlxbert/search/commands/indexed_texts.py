"""Reads the texts of an index for the commands that compare many texts."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlxbert.readers.stream import Record
from mlxbert.readers.text_collection import TextCollection
from mlxbert.search.commands.indexes import find_file
from mlxbert.search.views import search as view

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = NDArray[np.float32]


def indexed_texts(name: str) -> TextCollection:
    """Reads the passages and vectors of an index, which is given by its file or by a path that it covers."""
    import numpy as np

    from mlxbert.search.index import open_index
    from mlxbert.search.stored_passages import stored_passages

    with open_index(find_file(name)) as index:
        passages, files, width = [*stored_passages(index.store)], index.store.files(), index.about.dimensions

    def age(passage: "tuple[Mapping[str, Any], Vectors]") -> tuple[bool, float, int]:
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
    name = view.near(path) + f":{line}" * (line is not None) if path else ""
    return ", ".join(filter(None, (name, inside))) or "record"
