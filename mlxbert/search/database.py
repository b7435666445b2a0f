"""Connections to the file of an index that compare each page they read with its checksum.

The checksums are those of SQLite's own extension cksumvfs: eight bytes at the end of a page, written with it into the
file or its log. Other programs can read the file, but what they write has no right checksums.

A page of zeros passes, as its checksum is zero. SQLite refuses it where a table has it, but not as the end of a long
value: the store looks at these itself.
"""

import functools
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import apsw.sqlite_extra

from mlxbert.errors import MlxbertError

CHECKSUM = 8  # bytes at the end of a page
_FLAGS = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
_WAITS = 10_000  # milliseconds for other processes
_LOADING = threading.Lock()  # two threads that load the extension would leave it as the default of the process


class Database(apsw.Connection):
    """An open file."""

    def rows(self, command: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows that a command gives."""
        return self.execute(command, values).fetchall()

    def row(self, command: str, values: Sequence[Any] = ()) -> Any:
        """The first row that a command gives, or `None`."""
        return self.execute(command, values).fetchone()

    def define(self, name: str, function: Any, values: int) -> None:
        """Makes a function of Python one of SQL.

        Args:
            name: What it is called in SQL.
            function: The function, which gives the same for the same values.
            values: How many values it takes.
        """
        self.create_scalar_function(name, function, values, deterministic=True)


def connect(path: str, mode: str) -> Database:
    """The open file.

    Args:
        path: Its path.
        mode: `rwc` to read, write and make it; `ro` to read it, `ro&immutable=1` on a disk that cannot be written.
    """
    address = Path(os.path.abspath(path)).as_uri()
    with _LOADING:
        vfs = _checking_vfs()
    connection = Database(f"{address}?mode={mode}", flags=_FLAGS, vfs=vfs)
    connection.set_busy_timeout(_WAITS)
    return connection


@functools.cache
def _checking_vfs() -> str:
    """The name of the file system that checks pages, which is there when it has been loaded."""
    usual = apsw.vfs_names()[0]
    try:
        memory = apsw.Connection(":memory:")
        apsw.sqlite_extra.load(memory, "cksumvfs")
        memory.close()
    except (apsw.sqlite_extra.NotAvailable, LookupError, OSError, apsw.Error) as problem:
        raise MlxbertError(
            f"the package apsw has no cksumvfs, which checks the pages of an index ({problem})",
            hint="pip install --force-reinstall --only-binary apsw apsw",
        ) from None
    apsw.set_default_vfs(usual)  # it makes itself that of all connections in this process
    return "cksmvfs"
