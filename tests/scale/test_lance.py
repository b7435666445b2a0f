"""Indexes in Lance tables: several writers, also killed ones, tidying, the vector index, and what cannot be opened."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest

import mlxbert
from mlxbert.errors import ArgumentError, BusyError, InputError, MlxbertError, StoreError
from mlxbert.scale import lance_table
from mlxbert.search import index_stores
from mlxbert.search.commands.indexes import find_file
from mlxbert.search.index_stores import copy_store, open_store, remove_store
from mlxbert.search.store import IndexProblem, IndexStore, StoredChunk, StoredDocument, StoredFile
from tests.helpers.cases import ALL, fast
from tests.helpers.object_storage import object_storage
from tests.search.test_store import ABOUT, EVERYTHING, document, nearest, put, texts, vector

lance = pytest.importorskip("lance", reason="pylance is not installed")
pa = pytest.importorskip("pyarrow")


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"lance:{tmp_path}/table"


def test_of_two_transactions_at_once_the_later_one_counts(place: str) -> None:
    first, second = open_store(place, ABOUT), open_store(place)
    put(first, "/docs/old", document("old words"))
    with first.writing():
        first.put(StoredFile("/docs/a"), [document("from the first")], {b"from the first": vector(1)})
        first.remove(["/docs/old"])
        put(second, "/docs/a", document("from the second", "and more"))
        put(second, "/docs/b", document("another file"))
        put(second, "/docs/old", document("newer words"))
    for store in (first, second):
        assert {*store.files()} == {"/docs/a", "/docs/b"}
        assert texts(store, "from and another words") == ["another file", "from the first"]
    first.check()
    numbers = [number for number, _ in first.with_words("from another", 9, EVERYTHING)]
    assert len({*numbers}) == 2


def test_settings_that_two_processes_change_are_both_kept(place: str) -> None:
    first, second = open_store(place, replace(ABOUT, roots=("/a", "/b"))), open_store(place)
    with first.writing():
        first.set_about(replace(first.about, roots=("/a", "/c"), updated="now"))
        with second.writing():
            second.set_about(replace(second.about, roots=("/a", "/b", "/d"), unrelated=(0.1, 0.2)))
    assert first.about.roots == ("/a", "/d", "/c") and first.about.updated == "now"
    second.refresh()
    assert second.about == first.about and first.about.unrelated == (0.1, 0.2)


def test_vectors_that_another_process_keeps_for_later_are_not_pruned(place: str) -> None:
    first, second = open_store(place, ABOUT), open_store(place)
    with first.writing():
        first.put_vectors({b"later": vector(1)})
    with second.writing():
        second.put_vectors({b"own": vector(2)})
        second.prune()
    second.refresh()
    assert second.known([b"later", b"own"]) == {b"later"}
    with mock.patch("mlxbert.scale.lance_store._SPARE_SECONDS", -5), second.writing():
        second.prune()  # as a day later
    assert second.known([b"later"]) == set()
    with pytest.raises(BusyError), first.writing():
        first.put(StoredFile("/docs/a"), [document("later")], {})
    assert first.files() == {}


def test_a_table_does_not_grow_without_end(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_table, "_KEPT", timedelta(0))
    monkeypatch.setattr(lance_table, "_SMALL", 3)
    store, sizes = open_store(place, ABOUT), []
    for turn in range(3):
        for file in range(5):
            put(store, f"/docs/{file}", document(f"turn {turn} of file {file}"))
        with store.writing():
            store.prune()
        sizes.append(store.stats().size)
    assert sizes[2] < 1.5 * sizes[1]
    assert store.stats().vectors == 5 and len(texts(store, "turn")) == 5
    assert len(store._table.dataset.get_fragments()) <= 4  # type: ignore[attr-defined]
    store.check()


def test_a_reader_of_an_older_version_is_not_disturbed_by_tidying(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lance_table, "_SMALL", 3)
    store, reader = open_store(place, ABOUT), open_store(place)
    for file in range(5):
        put(store, f"/docs/{file}", document(f"file {file}"))
    with reader.reading():
        assert len(texts(reader, "file")) == 5
        for file in range(5):
            put(store, f"/docs/{file}", document("other words"))
        with store.writing():
            store.prune()
        assert len(texts(reader, "file")) == 5 and len(nearest(reader, 3)) == 5
    assert texts(reader, "file") == [] and len(texts(reader, "other")) == 5


@pytest.mark.parametrize("similarity", fast(["cosine", "dot", "euclidean", "manhattan"], "cosine", "manhattan"))
def test_the_vector_index(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, similarity: str) -> None:
    monkeypatch.setattr(lance_table, "_INDEXED", 100)
    store = open_store(place, replace(ABOUT, similarity=similarity))
    exact = open_store(tmp_path / "exact.db", replace(ABOUT, similarity=similarity))
    for each in (store, exact):
        for start in range(0, 200, 100):
            put(each, f"/docs/{start}", document(*["x" * size for size in range(start + 1, start + 101)]))
    with store.writing():
        store.prune()
    assert store._table.vector_index() == "vectors-200"  # type: ignore[attr-defined]
    for each in (store, exact):  # not in the index yet
        put(each, "/docs/0", document(*["y" * size for size in range(1, 101)]))
    found = 0
    for query in range(5000, 5010):
        expected = nearest(exact, query, count=10)
        found += len({text for text, _ in expected} & {text for text, _ in nearest(store, query, count=10)})
    assert found >= 95
    monkeypatch.setattr(lance_table, "_RETRAINED", 1)
    put(store, "/docs/more", document("new"))
    with store.writing():
        store.prune()
    assert store._table.vector_index() == "vectors-201"  # type: ignore[attr-defined]
    store.check()


def test_a_copy_has_everything(tmp_path: Path, place: str) -> None:
    source = open_store(tmp_path / "index.db", ABOUT)
    windows = [StoredChunk("of two windows", ("A",), (b"w1", b"w2"), 1, 2, 3)]
    with source.writing():
        problems = [IndexProblem("/docs/a", "row 3", "left out", "no text", 4)]
        documents = [StoredDocument("row 1", "T", {"x": 1}, windows), document("second one", place="row 2")]
        vectors = {b"w1": vector(1), b"w2": vector(2), b"second one": vector(3), b"added": vector(4)}
        source.put(StoredFile("/docs/a", 5, 6, b"h"), documents, vectors, problems)
        source.put(StoredFile("/docs/\udcff", 5, 6, b"", "broken"), [], {})
        lacking = [IndexProblem(None, "empty", "left out", "no text")]
        source.put_documents([document("added", place="id"), StoredDocument("empty", "", {}, [])], vectors, lacking)
    locations: tuple[str | Path, ...] = place, tmp_path / "back.db", f"{place}2"
    for number, location in enumerate(locations):
        source = copy_store(source, location)
        assert source.about == ABOUT and {*source.files()} == {"/docs/a", "/docs/\udcff"}, number
        assert source.files()["/docs/a"] == StoredFile("/docs/a", 5, 6, b"h")
        assert [*source.documents("/docs/a")] == documents
        assert {one.place: len(one.chunks) for one in source.documents("")} == {"id": 1, "empty": 0}
        assert {*source.problems()} == {*problems, *lacking, IndexProblem("/docs/\udcff", "", "left out", "broken")}
        assert [text for text, _ in nearest(source, 2, count=1)] == ["of two windows"]
        assert source.stats().vectors == 4 and source.stats().problems == {"left out": 7}
        source.check()
        with pytest.raises(ArgumentError, match="exists"):
            copy_store(source, location)


@pytest.mark.parametrize("prefix", ["", "lance:"])
@pytest.mark.parametrize("kind", ["device", "fifo", "sqlite", "lance", "text", "folder", "link to a folder"])
def test_a_copy_replaces_nothing(tmp_path: Path, kind: str, prefix: str) -> None:
    source, target = open_store(tmp_path / "index.db", ABOUT), tmp_path / "target"
    put(source, "/docs/a", document("a"))
    index = f"lance:{target}" if kind == "lance" else str(target)
    if kind in ("sqlite", "lance"):
        other = open_store(index, ABOUT)  # stays open: closing it removes a file
        put(other, "/docs/b", document("b"))
    elif kind == "device":
        target = Path(os.devnull)
    elif kind == "fifo":
        os.mkfifo(target)
    elif kind == "text":
        target.write_text("dear")
    else:
        folder = target if kind == "folder" else tmp_path / "folder"
        folder.mkdir()
        (folder / "letter.txt").write_text("dear")
        if kind != "folder":
            target.symlink_to(folder)

    def state() -> object:
        found = os.lstat(target)
        sizes = {path: path.lstat().st_size for path in tmp_path.rglob("*")}
        return found.st_mode, found.st_ino, found.st_dev, found.st_mtime_ns, sizes

    before = state()
    with pytest.raises(MlxbertError) as caught:
        copy_store(source, f"{prefix}{target}")
    assert str(target) in str(caught.value) and "damaged" not in str(caught.value) and state() == before
    assert kind not in ("sqlite", "lance") or {*open_store(index).files()} == {"/docs/b"}


def test_a_copy_that_fails_is_removed(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_store(tmp_path / "index.db", ABOUT)
    put(source, "/docs/a", document("a"))
    monkeypatch.setattr(index_stores, "_copy_file", lambda *_: exec("raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        copy_store(source, place)
    assert not Path(place.removeprefix("lance:")).exists()


def test_what_a_killed_process_left_is_no_index(place: str) -> None:
    folder = Path(place.removeprefix("lance:"))
    with pytest.raises(InputError):
        find_file(place)
    assert not folder.exists()
    (folder / "_versions").mkdir(parents=True)
    (folder / "data").mkdir()
    for name in ("part.lance", ".tmp1aB"):
        (folder / "data" / name).touch()
    with pytest.raises(InputError):
        find_file(place)
    store = open_store(place, ABOUT)
    put(store, "/docs/a", document("a"))
    assert find_file(place) == place and {*open_store(place).files()} == {"/docs/a"}


def test_what_is_no_index_is_refused(tmp_path: Path, place: str) -> None:
    folder = Path(place.removeprefix("lance:"))
    with pytest.raises(StoreError, match="does not exist"):
        open_store(place)
    lance.write_dataset(pa.table({"a": [1]}), folder)
    with pytest.raises(StoreError, match="not an index"):
        open_store(place)
    with pytest.raises(ArgumentError, match="is a folder") as caught:
        mlxbert.open_index(folder)
    assert caught.value.hint and place in caught.value.hint
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("dear")
    with pytest.raises(ArgumentError, match="other files"):
        open_store(f"lance:{tmp_path}/other", ABOUT)
    with pytest.raises(StoreError, match="is a file"):
        open_store(f"lance:{tmp_path}/other/letter.txt", ABOUT)
    for location in ("lance:", "s3://", "lance:/"):
        with pytest.raises(ArgumentError):
            mlxbert.open_index(location)


@pytest.mark.parametrize(("damage", "is_certain"), [
    ("truncated", None), ("empty", True), ("no manifest", False), ("no data", False), ("truncated data", True),
])  # fmt: skip
def test_damage_is_found(place: str, damage: str, is_certain: bool | None) -> None:
    folder = Path(place.removeprefix("lance:"))
    put(open_store(place, ABOUT), "/docs/a", document("one dog"))
    files = sorted((folder / ("data" if "data" in damage else "_versions")).iterdir())
    for file in files:
        if damage.startswith("no "):
            file.unlink()
        else:
            os.truncate(file, 0 if damage == "empty" else file.stat().st_size // 2)
    with pytest.raises(StoreError) as caught:
        open_store(place).check()
    if is_certain is not None:  # a missing file may be transient: other processes remove those of earlier versions
        assert ("indexes remove" in (caught.value.hint or "")) == is_certain


@pytest.mark.parametrize(("folder", "text"), [
    ("table", "Not found: t/data/1.lance"), ("table", "Generic S3 error: 503 Slow Down"),
    ("table", "Too many open files"),
    *((name, f"Not found: /t/{name}/data/1.lance") for name in ("Connect", "timed out", "403 Forbidden")),
])  # fmt: skip
def test_an_error_that_says_no_cause_does_not_advise_removing_the_index(tmp_path: Path, folder: str, text: str) -> None:
    store = open_store(f"lance:{tmp_path}/{folder}", ABOUT)
    with (
        mock.patch.object(lance_table.LanceTable, "scan", side_effect=OSError(f"{text}, /build/rust/lance/a.rs:1:2")),
        pytest.raises(StoreError) as caught,
    ):
        store.files()
    assert text in caught.value.message and ".rs" not in caught.value.message
    assert caught.value.hint is None and "damaged" not in caught.value.message


@pytest.mark.parametrize(("name", "value", "said", "hint"), [
    ("lance_table.VERSION", "2", "version 2", "update"),
    ("lance_store.asdict", lambda about: {**vars(about), "tokens": -1}, "", "indexes remove"),
])  # fmt: skip
def test_settings_that_mlxbert_does_not_write_are_refused(
    place: str, monkeypatch: pytest.MonkeyPatch, name: str, value: object, said: str, hint: str
) -> None:
    with monkeypatch.context() as patch, suppress(StoreError):
        patch.setattr(f"mlxbert.scale.{name}", value)
        open_store(place, ABOUT)
    with pytest.raises(StoreError, match=said) as caught:
        open_store(place)
    assert hint in (caught.value.hint or "")


def test_a_folder_that_cannot_be_written(place: str) -> None:
    folder = Path(place.removeprefix("lance:"))
    put(open_store(place, ABOUT), "/docs/a", document("one dog"))
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(path.stat().st_mode & ~0o222)
    try:
        store = open_store(place)
        assert texts(store, "dog") == ["one dog"]
        if os.getuid():  # root may write anyway
            assert not store.writable
            with pytest.raises(StoreError, match="cannot be written"):
                put(store, "/docs/b", document("two dogs"))
    finally:
        for path in paths:
            path.chmod(path.stat().st_mode | 0o200)


def test_removing_leaves_other_files(tmp_path: Path, place: str) -> None:
    folder = Path(place.removeprefix("lance:"))
    open_store(place, ABOUT)
    (folder / "letter.txt").write_text("dear")
    with pytest.raises(ArgumentError, match=r"letter\.txt"):
        remove_store(place)
    (folder / "letter.txt").unlink()
    remove_store(place)
    assert not folder.exists() or not [*folder.rglob("*.manifest")]


def test_without_the_package_it_is_said(place: str) -> None:
    with mock.patch.dict(sys.modules, {"lance": None}), pytest.raises(MlxbertError, match="pylance") as caught:
        open_store(place, ABOUT)
    assert caught.value.hint and "pylance" in caught.value.hint


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_storage() as address:
        yield address


@pytest.mark.slow
def test_buckets_and_credentials(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="no such bucket"):
        open_store("s3://missing/index", ABOUT)
    with pytest.raises(StoreError, match="does not exist"):
        open_store(f"{bucket}/missing")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreError, match="credentials") as caught:
        open_store(f"{bucket}/new", ABOUT)
    assert caught.value.hint and "AWS_ACCESS_KEY_ID" in caught.value.hint


@pytest.mark.slow
def test_object_storage_holds_an_index(bucket: str, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("# Lamps\n\nA lamp that flickers is sent back.\n")
    with mlxbert.open_index(f"{bucket}/docs", paths=[folder]) as index:
        list(index.update())
        (folder / "b.md").write_text("# Bills\n\nA bill is paid within a month.\n")
        list(index.update())
        index.check()
        assert index.search("When do I pay?")[0].path == str(folder / "b.md")
        index.copy(tmp_path / "copy.db")
    with mlxbert.open_index(tmp_path / "copy.db") as copied:
        assert copied.search("When do I pay?")[0].path == str(folder / "b.md")
    remove_store(f"{bucket}/docs")
    assert not index_stores.exists(f"{bucket}/docs")


KILLS = 30 if ALL else 3
ROOT = Path(__file__).parents[2]
# Changes files, records and settings at random; each text names the writer and the transaction. Tidies often.
WRITER = """
import random, sys
from dataclasses import replace
from mlxbert.scale import lance_store, lance_table
from mlxbert.search.store import StoredFile
from tests.search.test_store import document, open_store, vector
lance_table._SMALL, lance_store._COMMITS = 4, 10
store, me, steps = open_store(sys.argv[1]), sys.argv[2], int(sys.argv[3])
draws = random.Random(me)
for step in range(steps):
    name = f"/docs/{draws.randrange(6)}"
    texts = [f"writer {me} step {step} line {line}" for line in range(draws.randrange(1, 6))]
    vectors = {text.encode(): vector(len(text)) for text in texts}
    with store.writing():
        match draws.choice(("put", "put", "put", "remove", "record", "root", "prune")):
            case "put":
                store.put(StoredFile(name, step), [document(*texts)], vectors)
            case "remove":
                store.remove([name])
            case "record":
                store.put_documents([document(*texts, place=f"r{draws.randrange(3)}")], vectors)
            case "root":
                store.set_about(replace(store.about, roots=(*store.about.roots, f"/{me}-{step}")))
                print("root", flush=True)
            case "prune":
                store.prune()
    print("done", flush=True)
"""


def start(location: str, name: str, steps: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, location, name, str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def check_whole(store: IndexStore) -> None:
    """Each file and record has the chunks of one transaction."""
    store.refresh()
    store.check()
    with store.reading():
        documents = [[*store.documents(path)] for path in store.files()]
        documents += [[document] for document in store.documents("")]
    for listed in documents:
        assert len({chunk.text.partition(" line")[0] for one in listed for chunk in one.chunks}) == 1


@pytest.mark.weekly
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "steps"), [("folder", 12), ("bucket", 4)])
def test_writers_at_once(place: str, kind: str, steps: int, request: pytest.FixtureRequest) -> None:
    """Nothing of three writers is lost or mixed."""
    location = place if kind == "folder" else f"{request.getfixturevalue('bucket')}/table"
    store, names = open_store(location, ABOUT), [f"w{number}" for number in range(3)]
    writers = [start(location, name, steps) for name in names]
    out = [writer.communicate()[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert all(each.count("done") == steps for each in out)
    check_whole(store)
    assert len(store.about.roots) == 1 + sum(each.count("root") for each in out)


@pytest.mark.slow
def test_killed_writers(tmp_path: Path) -> None:
    location, draws = f"lance:{tmp_path}/table", random.Random(0)
    store, statuses = open_store(location, ABOUT), []
    for number in range(KILLS):
        with start(location, f"k{number}", 10_000) as writer:
            assert writer.stdout
            for _ in range(draws.randrange(1, 15)):
                assert writer.stdout.readline()
            time.sleep(draws.random() * 0.1)
            os.kill(writer.pid, signal.SIGKILL)
        statuses.append(writer.returncode)
        check_whole(store)
    assert statuses == [-signal.SIGKILL] * KILLS and store.stats().documents
