"""The tables of an index in a SQLite file, and the conversion of SQLite's errors."""

import functools
import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import apsw

from mlxbert.durable_files import acquire_lock
from mlxbert.errors import ArgumentError, BusyError, MlxbertError, StoreError
from mlxbert.search.database import Database
from mlxbert.search.folding import folded
from mlxbert.search.store import SCHEMA, SPARSE_SCHEMA, TOKENS_SCHEMA, IndexSettings

APPLICATION = 0x6D6C7862  # "mlxb", in the header of the file
BLOCK = 256  # number of vectors whose signs are in one row
ENDINGS = ("", "-wal", "-shm", ".lock")  # endings of the names of an index's files
# The endings of the files next to an index that SQLite or mlxbert may open.
BESIDE = ("-wal", "-shm", "-journal", ".lock", ".unfinished")
_INDEXES = "`mlxbert indexes list` shows the existing indexes"
# The words come from `folding`; the tokenizer only splits them at spaces. Stemming of English words found more by words
# alone, but no more in a hybrid search, and fewer texts that are quoted.
WORDS = "fts5 (titles, text, content='', contentless_delete=1, tokenize='ascii')"
TABLES = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE files (id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, size INTEGER NOT NULL, "
    "mtime INTEGER NOT NULL, hash BLOB NOT NULL, problem TEXT, left_out INTEGER NOT NULL)",
    "CREATE TABLE documents (id INTEGER PRIMARY KEY, file INTEGER NOT NULL, place TEXT NOT NULL, title TEXT NOT NULL, "
    "fields TEXT NOT NULL)",
    "CREATE INDEX documents_of_file ON documents (file, place)",
    "CREATE TABLE chunks (id INTEGER PRIMARY KEY, document INTEGER NOT NULL, titles TEXT NOT NULL, "
    "text TEXT NOT NULL, first_line INTEGER, last_line INTEGER, page INTEGER)",
    "CREATE INDEX chunks_of_document ON chunks (document)",
    "CREATE TABLE windows (chunk INTEGER NOT NULL, vector INTEGER NOT NULL, PRIMARY KEY (chunk, vector)) WITHOUT ROWID",
    "CREATE INDEX windows_of_vector ON windows (vector)",
    "CREATE TABLE vectors (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, vector BLOB NOT NULL)",
    "CREATE TABLE signs (block INTEGER PRIMARY KEY, alive BLOB NOT NULL, bits BLOB NOT NULL, "
    "crc INTEGER NOT NULL)",  # the end of `bits` may be alone in a page, and a page of zeros passes
    "CREATE TABLE problems (id INTEGER PRIMARY KEY, file INTEGER NOT NULL, place TEXT NOT NULL, kind TEXT NOT NULL, "
    "reason TEXT NOT NULL, more INTEGER NOT NULL)",
    "CREATE INDEX problems_of_file ON problems (file, place)",
    f"CREATE VIRTUAL TABLE words USING {WORDS}",
)
# Blocks of the vectors that have a token, with the weight of the token in each (see `sparse_vectors`).
_LISTS = "CREATE TABLE lists (id INTEGER PRIMARY KEY, entries BLOB NOT NULL, crc INTEGER NOT NULL)"
# The token vectors of each text (see `late_interaction`).
_TOKENS = "CREATE TABLE tokens (vector INTEGER PRIMARY KEY, tokens BLOB NOT NULL, crc INTEGER NOT NULL)"
_TABLES_OF = {SCHEMA: TABLES, SPARSE_SCHEMA: (*TABLES, _LISTS), TOKENS_SCHEMA: (*TABLES, _TOKENS)}
_SHADOWS = (  # the tables that FTS5 creates
    "CREATE TABLE 'words_data'(id INTEGER PRIMARY KEY, block BLOB)",
    "CREATE TABLE 'words_idx'(segid, term, pgno, PRIMARY KEY(segid, term)) WITHOUT ROWID",
    "CREATE TABLE 'words_docsize'(id INTEGER PRIMARY KEY, sz BLOB, origin INTEGER)",
    "CREATE TABLE 'words_config'(k PRIMARY KEY, v) WITHOUT ROWID",
)

P = ParamSpec("P")
T = TypeVar("T")


class _HasPath(Protocol):
    path: str


S = TypeVar("S", bound=_HasPath)


def guarded(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorates a method of a store, so that errors caused by its file become StoreErrors."""

    @functools.wraps(method)
    def checked(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except MlxbertError:
            raise
        except apsw.Error as problem:
            raise error_of(self.path, problem) from None
        except OSError as problem:
            raise StoreError(
                f"{self.path}: the index cannot be read or written ({problem.strerror or problem})"
            ) from None
        except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError, MemoryError) as problem:
            raise damaged(self.path, str(problem)) from problem

    return checked


def error_of(path: str, problem: apsw.Error) -> StoreError:
    """Converts an SQLite error to a StoreError."""
    match problem:
        case apsw.BusyError() | apsw.LockedError():
            return BusyError(
                f"{path}: another process is updating this index", hint="try again when the other process has finished"
            )
        case apsw.FullError():
            return StoreError(f"{path}: no space left on the disk", hint="the index still has its earlier content")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError() | apsw.AuthError():
            hint = "`mlxbert.open_index(path=FILE)` opens an index at another place"
            return StoreError(f"{path}: the index cannot be opened for writing ({problem})", hint=hint)
        case apsw.NotADBError():
            return StoreError(f"{path}: the file is not an index of mlxbert", hint=_INDEXES)
        case apsw.ConnectionClosedError():
            return StoreError(f"{path}: the index is closed")
        case apsw.IOError() if getattr(problem, "extendedresult", 0) == apsw.SQLITE_IOERR_DATA:
            return damaged(path, "a page has a wrong checksum")
        case apsw.IOError():
            return StoreError(f"{path}: the disk cannot be read or written ({problem})")
    return damaged(path, str(problem))


def damaged(path: str, why: str) -> StoreError:
    """Makes the error for a damaged index."""
    return StoreError(f"{path}: the index is damaged ({why:.200})", hint=_again(path))


def _again(path: str) -> str:
    return f"`mlxbert indexes remove {shlex.quote(path)}` removes the index, then `mlxbert index` creates a new one"


def create(connection: Database, about: IndexSettings) -> None:
    """Creates the tables of a new index, within the caller's transaction."""
    version = SPARSE_SCHEMA if about.is_sparse else TOKENS_SCHEMA if about.token_size else SCHEMA
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    for table in _TABLES_OF[version]:
        connection.execute(table)
    connection.execute(f"PRAGMA user_version = {version}")


def put_words(connection: Database, chunk: int, titles: Sequence[str], text: str, table: str = "words") -> None:
    """Inserts the words of a chunk."""
    values = chunk, folded("\n".join(titles)), folded(text)
    connection.execute(f"INSERT INTO {table} (rowid, titles, text) VALUES (?, ?, ?)", values)


def fill_words(connection: Database, table: str) -> None:
    """Inserts the words of all chunks into an empty table."""
    for chunk, titles, text in connection.execute("SELECT id, titles, text FROM chunks"):
        put_words(connection, chunk, json.loads(titles), text, table)


def check(path: str, connection: Database) -> None:
    """Raises StoreError if a file has another version, pages without checksums, or other tables, triggers or views."""
    if _pragma(connection, "application_id") != APPLICATION:
        raise StoreError(f"{path}: the file is not an index of mlxbert", hint=_INDEXES)
    version = _pragma(connection, "user_version")
    if version not in _TABLES_OF:
        known = ", ".join(map(str, _TABLES_OF))
        message = f"{path}: the index has schema version {version}, but this mlxbert supports only {known}"
        raise StoreError(
            message, hint="update mlxbert, or create a new index" if version > max(_TABLES_OF) else _again(path)
        )
    if _pragma(connection, "checksum_verification") != 1:  # a damaged header turns it off
        raise damaged(path, "the pages have no checksums")
    present = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master")}
    if present - {None} != {*_TABLES_OF[version], *_SHADOWS}:
        raise damaged(path, "some tables are missing or unexpected")


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Within this context, other processes cannot update an index."""
    try:
        lock = acquire_lock(Path(f"{path}.lock"), "process")
    except ArgumentError:
        raise BusyError(
            f"{path}: another process is updating this index", hint="try again when the other process has finished"
        ) from None
    except OSError as problem:
        raise StoreError(
            f"{path}: the index cannot be written ({problem.strerror})",
            hint="`mlxbert.open_index(path=FILE)` opens an index at another place",
        ) from None
    with lock:
        yield


def remove(path: str) -> None:
    """Removes the files of an index."""
    for ending in ENDINGS:
        Path(f"{path}{ending}").unlink(missing_ok=True)


def exists(path: str) -> bool:
    """Whether the path is an index or any other non-empty file."""
    try:
        return os.stat(path).st_size > 0
    except FileNotFoundError:
        return False
    except OSError as problem:
        raise StoreError(f"{path}: the index cannot be read ({problem.strerror})") from None


def _pragma(connection: Database, name: str) -> int:
    return int(connection.row(f"PRAGMA {name}")[0])
