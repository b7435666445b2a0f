"""The open indexes of a server; an index is reopened when its file is replaced."""

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert.search.index_stores import exists, is_lance
from mlxbert.search.sqlite import SqliteStore
from mlxbert.serve.protocol import RequestError

if TYPE_CHECKING:
    from mlxbert.search.index import Index

_CHARACTERS = 6  # per token
_HIT_BYTES = 3000  # the memory of a `Hit` and its field values, without its text


class OpenIndexes:
    """The open indexes; only the model thread may use them."""

    def __init__(self) -> None:
        # Each with the result of `os.stat` for its file at the last request; `None` for a Lance table.
        self._open: dict[str | Path, tuple[Index, os.stat_result | None]] = {}

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
        if path in self._open and not _is_same(path, *self._open[path], state):
            self._close(path)
        index = self._open[path][0] if path in self._open else open_index(path)
        self._open[path] = index, state
        return index

    def _get_lance(self, name: str, location: str) -> "Index":
        """Returns the open index of a Lance table; opens it again if another index has taken its place."""
        from mlxbert.search.index import open_index

        if not exists(location):
            self._close(location)
            raise RequestError("not_found", f"the index {name} no longer exists", param="index")
        if location in self._open:
            index, _ = self._open[location]
            before = index.about
            index.store.refresh()
            if (before.created, before.hash) == (index.about.created, index.about.hash):
                return index
            self._close(location)
        index = open_index(location)
        self._open[location] = index, None
        return index

    def _close(self, path: str | Path) -> None:
        if path in self._open:
            self._open.pop(path)[0].close()


def _is_same(path: Path, index: "Index", before: os.stat_result | None, state: os.stat_result) -> bool:
    """Whether a file still holds the opened index (possibly updated) and not another one."""
    assert before is not None
    if (state.st_dev, state.st_ino) != (before.st_dev, before.st_ino):
        return False
    if (state.st_mtime_ns, state.st_size) == (before.st_mtime_ns, before.st_size):
        return True
    with closing(SqliteStore(path)) as store:  # a new store: the open one may hold data that was overwritten since
        return (store.about.created, store.about.hash) == (index.about.created, index.about.hash)


def hits_bytes(count: int, index: "Index") -> int:
    """Returns the approximate memory of `count` hits in bytes; there is at most one hit for each chunk of the index."""
    return min(count, index.store.size()) * (index.about.tokens * _CHARACTERS + _HIT_BYTES)
