"""The open indexes of a server; an index is reopened when its file is replaced."""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert.search.index_stores import exists, is_lance
from mlxbert.search.sqlite import SqliteStore
from mlxbert.serve.protocol import RequestError

if TYPE_CHECKING:
    from mlxbert.search.index import Index

_CHARACTERS = 6  # per token
_HIT_BYTES = 3000  # the memory of a `Hit` and its field values, without its text


@dataclass
class _OpenedIndex:
    index: "Index"
    # The result of `os.stat` for the file at the last request; `None` for a Lance table.
    file: os.stat_result | None = None


class OpenIndexes:
    """The open indexes; only the model thread may use them."""

    def __init__(self) -> None:
        self._open: dict[str | Path, _OpenedIndex] = {}

    def get(self, name: str, path: str | Path) -> "Index":
        """Returns the index that clients call `name`; opens it again if its file was replaced."""
        from mlxbert.search.index import open_index

        if is_lance(path):
            return self._get_lance(name, str(path))
        path = Path(path)
        try:
            state = path.stat()
        except OSError:
            self._close(path)  # opening it again would create it
            raise RequestError("not_found", f"the file of the index {name} no longer exists", param="index") from None
        entry = self._open.get(path)
        if entry is not None and not _is_same(path, entry, state):
            self._close(path)
            entry = None
        if entry is None:
            entry = self._open[path] = _OpenedIndex(open_index(path), state)
        entry.file = state
        return entry.index

    def _get_lance(self, name: str, location: str) -> "Index":
        """Returns the open index of a Lance table; opens it again if another index has taken its place."""
        from mlxbert.search.index import open_index

        entry = self._open.get(location)
        if not exists(location):
            self._close(location)
            raise RequestError("not_found", f"the index {name} no longer exists", param="index")
        if entry is not None:
            before = entry.index.about
            entry.index.store.refresh()
            after = entry.index.about
            if (before.created, before.hash) == (after.created, after.hash):
                return entry.index
            self._close(location)
        entry = self._open[location] = _OpenedIndex(open_index(location))
        return entry.index

    def _close(self, path: str | Path) -> None:
        if (opened := self._open.pop(path, None)) is not None:
            opened.index.close()


def _is_same(path: Path, opened: _OpenedIndex, state: os.stat_result) -> bool:
    """Whether a file still holds the opened index (possibly updated) and not another one."""
    before = opened.file
    assert before is not None
    if (state.st_dev, state.st_ino) != (before.st_dev, before.st_ino):
        return False
    if (state.st_mtime_ns, state.st_size) == (before.st_mtime_ns, before.st_size):
        return True
    with closing(SqliteStore(path)) as store:  # a new store: the open one may hold data that was overwritten since
        return (store.about.created, store.about.hash) == (opened.index.about.created, opened.index.about.hash)


def hits_bytes(count: int, index: "Index") -> int:
    """Returns the approximate memory of `count` hits in bytes; there is at most one hit for each chunk of the index."""
    return min(count, index.store.size()) * (index.about.tokens * _CHARACTERS + _HIT_BYTES)
