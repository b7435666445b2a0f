"""Changes the tables of an index of an older version to those of the present version."""

import json
import re

from mlxbert.folders.fingerprint import hash_folder
from mlxbert.search import schema
from mlxbert.search.database import Database
from mlxbert.search.store import SCHEMA
from mlxbert.weights.model_source import BUILTIN, builtin_folder

WRITABLE = "open the index once with write permission, which converts the index"
OLDER = 2  # the only older version
# All tables of version 2, as they are in its files.
_TABLES = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE files (id INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, size INTEGER NOT NULL, "
    "mtime INTEGER NOT NULL, hash BLOB NOT NULL, problem TEXT, left_out INTEGER NOT NULL)",
    "CREATE TABLE documents (id INTEGER PRIMARY KEY, file INTEGER NOT NULL, place TEXT NOT NULL, title TEXT NOT NULL, "
    "fields TEXT NOT NULL)",
    "CREATE INDEX documents_of_file ON documents (file, place)",
    "CREATE TABLE chunks (id INTEGER PRIMARY KEY, document INTEGER NOT NULL, vector INTEGER NOT NULL, "
    "titles TEXT NOT NULL, text TEXT NOT NULL, first_line INTEGER, last_line INTEGER, page INTEGER)",
    "CREATE INDEX chunks_of_document ON chunks (document)",
    "CREATE INDEX chunks_of_vector ON chunks (vector)",
    "CREATE TABLE vectors (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, vector BLOB NOT NULL)",
    "CREATE TABLE signs (block INTEGER PRIMARY KEY, alive BLOB NOT NULL, bits BLOB NOT NULL, crc INTEGER NOT NULL)",
    "CREATE VIRTUAL TABLE words USING fts5 (titles, text, content='chunks', content_rowid='id', "
    "tokenize='unicode61 remove_diacritics 2')",
    "CREATE TABLE 'words_data'(id INTEGER PRIMARY KEY, block BLOB)",
    "CREATE TABLE 'words_idx'(segid, term, pgno, PRIMARY KEY(segid, term)) WITHOUT ROWID",
    "CREATE TABLE 'words_docsize'(id INTEGER PRIMARY KEY, sz BLOB)",
    "CREATE TABLE 'words_config'(k PRIMARY KEY, v) WITHOUT ROWID",
)


def is_older(path: str, connection: Database) -> bool:
    """Whether an index has the older version; raises StoreError if it has other tables than that version."""
    if schema.version_of(path, connection) != OLDER:
        return False
    schema.check_tables(path, connection, _TABLES)
    return True


def migrate(connection: Database) -> None:
    """Changes the tables of an index of the older version, within the caller's transaction.

    The texts, vectors and added records remain. The next update reads all files again, and embeds only new texts.
    """
    for step in _STEPS:
        step(connection)
    connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _create_tables(connection: Database) -> None:
    """Removes the old words, and creates the tables that the older version does not have."""
    connection.execute("DROP TABLE words")
    for table in schema.TABLES:
        connection.execute(re.sub(" (TABLE|INDEX) ", r" \1 IF NOT EXISTS ", table, count=1))


def _move_vectors(connection: Database) -> None:
    """Moves the only vector of each chunk to the table of windows, as the vector of the chunk's only window."""
    connection.execute("INSERT INTO windows SELECT id, vector FROM chunks")
    connection.execute("DROP INDEX chunks_of_vector")
    connection.execute("ALTER TABLE chunks DROP COLUMN vector")


def _read_again(connection: Database) -> None:
    """Makes the next update read all files."""
    connection.execute("UPDATE files SET mtime = -1, hash = x''")


def _identify_model(connection: Database) -> None:
    """Stores the fingerprint of the built-in model without the times of its files, which each installation changes.

    All indexes of the older version that have a built-in model have the present one.
    """
    where = "name = 'hash' AND (SELECT value FROM about WHERE name = 'model') = ?"
    values = json.dumps(hash_folder(builtin_folder())), json.dumps(BUILTIN)
    connection.execute(f"UPDATE about SET value = ? WHERE {where}", values)


_STEPS = (_create_tables, _move_vectors, schema.fill_words, _read_again, _identify_model)
