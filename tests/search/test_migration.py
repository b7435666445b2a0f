"""An index of an older version is converted when it is opened."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

import mlxbert
from mlxbert.errors import BusyError, StoreError
from mlxbert.folders import fingerprint
from mlxbert.search import migration, schema
from mlxbert.search.database import Database, connect
from mlxbert.search.index import Index, open_index
from mlxbert.search.index_locations import find_index
from mlxbert.search.index_stores import about_of
from mlxbert.search.store import SCHEMA
from mlxbert.search.update_events import FileIndexed, IndexUpdated
from tests.helpers.indexes import check_same, contents, copy_files, write_files

FILES = 12
# Opens an index; after the words of some chunks it says so, and waits for its end.
CHILD = """
import sys
from mlxbert.search import schema
from mlxbert.search.sqlite import SqliteStore
path, last, put = sys.argv[1], int(sys.argv[2]), schema.put_words
def put_words(connection, chunk, *values):
    put(connection, chunk, *values)
    if chunk == last:
        print("waiting", flush=True)
        sys.stdin.read()
schema.put_words = put_words
SqliteStore(path)
"""


def make_older(path: Path) -> None:
    """Changes the tables of an index to those of the older version, in which a chunk has a single vector."""
    connection = connect(str(path), "rwc")
    connection.execute("BEGIN")
    vector = "(SELECT min(vector) FROM windows WHERE chunk = id) AS vector"
    connection.execute(f"CREATE TEMP TABLE kept AS SELECT *, {vector} FROM chunks")
    connection.execute("DROP TABLE chunks")
    for kind, name, sql in connection.rows("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"):
        if sql not in migration._TABLES and not name.startswith("words_") and kind == "table":
            connection.execute(f"DROP {kind} {name}")
    present = {sql for (sql,) in connection.rows("SELECT sql FROM sqlite_master")}
    for sql in migration._TABLES:
        if sql not in present and "words_" not in sql:
            connection.execute(sql)
    columns = "id, document, vector, titles, text, first_line, last_line, page"
    connection.execute(f"INSERT INTO chunks ({columns}) SELECT {columns} FROM temp.kept")
    connection.execute("INSERT INTO words (words) VALUES ('rebuild')")
    connection.execute(f"PRAGMA user_version = {migration.OLDER}")
    connection.execute("COMMIT")
    connection.close()


def version(path: Path) -> int:
    """Returns the version of an index, whose tables must be those of the version."""
    connection = connect(str(path), "rwc")
    number = schema.version_of(str(path), connection)
    if not migration.is_older(str(path), connection):
        schema.check(str(path), connection)
    connection.close()
    return number


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that were changed long ago."""
    folder = write_files(tmp_path / "docs", FILES)
    (folder / "greek.txt").write_text("Αθήνα milk")
    for file in folder.iterdir():
        os.utime(file, (1_700_000_000, 1_700_000_000))
    return folder


@pytest.fixture
def older(tmp_path: Path, folder: Path, tiny: mlxbert.Model) -> Path:
    """An index of the older version, with an added record."""
    path = tmp_path / "index.db"
    with open_index(path, model=tiny, paths=[folder]) as index:
        run(index)
        index.add([{"id": "1", "text": "dog in Łódź"}])
    make_older(path)
    return path


def run(index: Index) -> IndexUpdated:
    """Updates an index; returns the last event."""
    *_, last = index.update()
    assert isinstance(last, IndexUpdated)
    return last


def test_an_older_index_is_converted_when_it_is_opened(
    older: Path, folder: Path, tiny: mlxbert.Model, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert version(older) == migration.OLDER
    with open_index(older, model=tiny) as index:
        assert [record.levelname for record in caplog.records] == ["WARNING"] and str(older) in caplog.text
        assert version(older) == SCHEMA
        index.check()
        assert index.search("ΑΘΗΝΑ", mode="words")[0].path == str(folder / "greek.txt")
        last = run(index)
        assert last.embedded == 0 and last.reused >= last.chunks - 1 and last.failed == 0
        assert [(hit.path, hit.text) for hit in index.search("lodz", mode="words")] == [(None, "dog in Łódź")]
        assert not [event for event in index.update() if isinstance(event, FileIndexed)]
        index.check()
        with open_index(tmp_path / "new.db", model=tiny, paths=[folder]) as new:
            run(new)
            new.add([{"id": "1", "text": "dog in Łódź"}])
            check_same(contents(index), contents(new))
    caplog.clear()
    open_index(older, model=tiny).close()
    assert not caplog.records


def test_an_older_index_that_cannot_be_written_is_refused(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StoreError, match="older") as caught:
        open_index(older)
    assert caught.value.hint and version(older) == migration.OLDER


def test_an_older_index_is_not_converted_while_another_process_updates_it(older: Path) -> None:
    with schema.locked(str(older)), pytest.raises(BusyError):
        open_index(older)
    assert version(older) == migration.OLDER


def test_an_older_index_with_other_tables_is_damaged(older: Path) -> None:
    connection = connect(str(older), "rwc")
    connection.execute("CREATE TRIGGER t AFTER DELETE ON chunks BEGIN DELETE FROM files; END")
    connection.close()
    with pytest.raises(StoreError, match="damaged"):
        open_index(older)


def test_a_conversion_that_fails_changes_nothing(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(connection: Database) -> None:
        raise apsw.FullError("disk full")

    with monkeypatch.context() as patch, pytest.raises(StoreError, match="no space left"):
        patch.setattr(migration, "_STEPS", (*migration._STEPS, full))
        open_index(older)
    assert version(older) == migration.OLDER
    open_index(older).close()
    assert version(older) == SCHEMA


def test_an_installation_changes_the_times_of_the_built_in_model_alone(
    older: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(str(older), "rwc")
    connection.execute("UPDATE about SET value = '\"builtin\"' WHERE name = 'model'")
    connection.close()
    installed = shutil.copytree(tiny_folder, older.parent / "installed")
    for module in (migration, fingerprint):
        monkeypatch.setattr(module, "builtin_folder", lambda: installed)
    for seconds in (1, 2):
        os.utime(installed / "model.safetensors", (seconds, seconds))
        with open_index(older) as index:
            assert index.about.hash == fingerprint.hash_folder(installed)


@pytest.mark.slow
@pytest.mark.parametrize("last", [1, 20, 37])
def test_a_conversion_that_is_killed_changes_nothing(older: Path, tiny: mlxbert.Model, last: int) -> None:
    command = [sys.executable, "-c", CHILD, str(older), str(last)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stdout.readline() == "waiting\n"
        copied = copy_files(older, older.parent / "copy" / "index.db")  # as it is after a power cut
        with pytest.raises(BusyError):
            open_index(older)
        child.kill()
    for path in (older, copied):
        assert version(path) == migration.OLDER
        with open_index(path, model=tiny) as index:
            assert run(index).embedded == 0 and len(index.search("lodz", mode="words")) == 1
            index.check()
        assert version(path) == SCHEMA


def test_an_older_index_is_found_as_it_is_and_converted_when_it_is_opened(
    folder: Path, tmp_path: Path, tiny: mlxbert.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLXBERT_DATA", str(tmp_path / "data"))
    with open_index(paths=[folder], model=tiny) as index:
        [*index.update()]
        path = Path(index.path)
    make_older(path)
    assert find_index([folder / "greek.txt"]) == path and find_index([tmp_path]) is None
    about = about_of(path)
    assert about is not None and about.roots == (str(folder),) and version(path) == migration.OLDER
    with open_index(paths=[folder], model=tiny):
        assert version(path) == SCHEMA
