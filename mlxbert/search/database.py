"""Database connections that verify the checksum of each page that they read from the file of an index.

The checksums come from SQLite's extension cksumvfs: eight bytes at the end of each page, written with the page to the
file or its log. Other programs can read the file, but the pages that they write have wrong checksums.

A page of zeros passes, since its checksum is zero. SQLite rejects such a page in a table, but not at the end of a long
value; so the store checks long values itself.
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
from mlxbert.other_libraries import pip_install

CHECKSUM = 8  # bytes at the end of a page
_FLAGS = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
_BUSY_TIMEOUT = 10_000  # milliseconds to wait for other processes
_LOADING = threading.Lock()  # if two threads load the extension, it stays the default of the process


class Database(apsw.Connection):
    """An open database file."""

    def rows(self, command: str, values: Sequence[Any] = ()) -> list[Any]:
        return self.execute(command, values).fetchall()

    def row(self, command: str, values: Sequence[Any] = ()) -> Any:
        """Executes a command and returns the first row, or `None`."""
        return self.execute(command, values).fetchone()

    def define(self, name: str, function: Any, values: int) -> None:
        """Defines an SQL function.

        Args:
            function: The function, which must be deterministic.
            values: The number of its arguments.
        """
        self.create_scalar_function(name, function, values, deterministic=True)


def connect(path: str, mode: str) -> Database:
    """Opens the file of a database.

    Args:
        mode: `rwc` to read, write and create the file; `ro` to read it; `ro&immutable=1` to read from a
            read-only disk.
    """
    address = Path(os.path.abspath(path)).as_uri()
    with _LOADING:
        vfs = _checking_vfs()
    connection = Database(f"{address}?mode={mode}", flags=_FLAGS, vfs=vfs)
    connection.set_busy_timeout(_BUSY_TIMEOUT)
    return connection


@functools.cache
def _checking_vfs() -> str:
    """Loads SQLite's virtual file system that verifies pages; returns its name."""
    default = apsw.vfs_names()[0]
    try:
        memory = apsw.Connection(":memory:")
        apsw.sqlite_extra.load(memory, "cksumvfs")
        memory.close()
    except (apsw.sqlite_extra.NotAvailable, LookupError, OSError, apsw.Error) as problem:
        raise MlxbertError(
            f"the package apsw has no cksumvfs, which checks the pages of an index ({problem})",
            hint=pip_install("--force-reinstall --only-binary apsw apsw"),
        ) from None
    apsw.set_default_vfs(default)  # the extension makes itself the default of this process
    return "cksmvfs"
