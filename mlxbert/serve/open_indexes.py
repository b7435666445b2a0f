"""Indexes that a server has open, as long as their files are those that were opened."""

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mlxbert.search.sqlite import SqliteStore
from mlxbert.serve.protocol import RequestError

if TYPE_CHECKING:
    from mlxbert.search.index import Index

_CHARACTERS = 6  # of a token
_HIT_BYTES = 3000  # of a `Hit` and the values of its fields, without its text


@dataclass
class _OpenedIndex:
    """An index that is open.

    Attributes:
        index: The index.
        file: What the system said of its file when it was looked at last.
    """

    index: "Index"
    file: os.stat_result


class OpenIndexes:
    """Indexes that are open; for the thread of the models alone."""

    def __init__(self) -> None:
        self._open: dict[Path, _OpenedIndex] = {}

    def get(self, name: str, path: Path) -> "Index":
        """An index; if its file was replaced, what is there now.

        Args:
            name: What clients call it.
            path: Its file.
        """
        from mlxbert.search.index import open_index

        try:
            found = path.stat()
        except OSError:
            self._close(path)
            raise RequestError("not_found", f"the index {name} is gone", param="index") from None  # or it would be made
        opened = self._open.get(path)
        if opened is not None and not _is_same(path, opened, found):
            self._close(path)
            opened = None
        if opened is None:
            opened = self._open[path] = _OpenedIndex(open_index(path), found)
        opened.file = found
        return opened.index

    def _close(self, path: Path) -> None:
        if (opened := self._open.pop(path, None)) is not None:
            opened.index.close()


def _is_same(path: Path, opened: _OpenedIndex, found: os.stat_result) -> bool:
    """Whether a file has the index that was opened, perhaps with other content, and not another one in its place."""
    before = opened.file
    if (found.st_dev, found.st_ino) != (before.st_dev, before.st_ino):
        return False
    if (found.st_mtime_ns, found.st_size) == (before.st_mtime_ns, before.st_size):
        return True
    with closing(SqliteStore(path)) as store:  # the open one may have read before what was overwritten
        return (store.about.created, store.about.hash) == (opened.index.about.created, opened.index.about.hash)


def hits_bytes(count: int, index: "Index") -> int:
    """About how much memory as many hits take; no more than the index has."""
    return min(count, index.stats().chunks) * (index.about.tokens * _CHARACTERS + _HIT_BYTES)
