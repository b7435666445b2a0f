"""What every store of an index does, the filters of its searches, and damaged indexes, which say so."""

import itertools
import os
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import mlxbert
from mlxbert.errors import ArgumentError, BusyError, MlxbertError, StoreError
from mlxbert.machine.device import mx
from mlxbert.nn.vector_settings import SIMILARITIES
from mlxbert.search import database, nearest_vectors, schema
from mlxbert.search.database import connect
from mlxbert.search.filters import Condition, Filter, Glob, Patterns, make_filter, matches
from mlxbert.search.index import MODES, open_index
from mlxbert.search.index_stores import open_store
from mlxbert.search.nearest_vectors import _WIDER, Signs, row_bytes, signs_of
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import IndexSettings, IndexStore, StoredChunk, StoredDocument, StoredFile
from mlxbert.tasks.query_ranking import scores_of_all
from tests.helpers.cases import ALL, together
from tests.helpers.indexes import QUERIES, build, write_files
from tests.helpers.object_storage import NEEDS_LANCE, object_storage
from tests.helpers.sparse_folder import save_splade
from tests.helpers.tiny import save

WIDTH = 70
ABOUT = IndexSettings(
    "model", "0" * 64, WIDTH, "cosine", "mean", ("query: ", ""), 200, True, (0.5, 1.0), ("/docs",), fields=("a", "b")
)
Open = Callable[..., IndexStore]
EVERYTHING = Filter()
STORES = ("sqlite", pytest.param("lance", marks=NEEDS_LANCE), pytest.param("s3", marks=pytest.mark.slow))


@pytest.fixture(scope="module")
def place_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Returns an unused location for a kind of store."""
    count, folder = itertools.count(), tmp_path_factory.mktemp("stores")
    with ExitStack() as servers:
        bucket = cache(lambda: servers.enter_context(object_storage()))

        def place(kind: str) -> str:
            name = f"{next(count)}.index"
            return f"{bucket()}/{name}" if kind == "s3" else f"{'lance:' * (kind == 'lance')}{folder}/{name}"

        yield place


@pytest.fixture(params=STORES)
def location(request: pytest.FixtureRequest, place_of: Callable[[str], str]) -> str:
    return place_of(request.param)


@pytest.fixture
def opened(location: str) -> Open:
    return lambda about=None: open_store(location, about)


@pytest.fixture
def store(opened: Open, location: str, new_tables: Path) -> Iterator[IndexStore]:
    """A new index; Lance tables are copies of one."""
    kind, _, path = location.rpartition(":")
    if kind == "lance":
        if not new_tables.exists():
            open_store(f"lance:{new_tables}", ABOUT).close()
        shutil.copytree(new_tables, path)
    made = opened(None if kind == "lance" else ABOUT)
    yield made
    made.close()


@pytest.fixture(scope="module")
def new_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a new Lance table is kept, once there is one."""
    return tmp_path_factory.mktemp("new") / "table"


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqliteStore]:
    made = SqliteStore(tmp_path / "index.db", ABOUT)
    yield made
    made.close()


def vector(seed: int) -> Any:
    drawn = np.random.default_rng(seed).standard_normal(WIDTH).astype(np.float32)
    return drawn / np.linalg.norm(drawn)


def document(*texts: str, place: str = "", **fields: Any) -> StoredDocument:
    """A document with a chunk of each text, whose hash is that of the text."""
    chunks = [StoredChunk(text, ("Top",), (text.encode(),), line, line) for line, text in enumerate(texts, 1)]
    return StoredDocument(place, "Top", fields, chunks)


def put(store: IndexStore, path: str, *documents: StoredDocument, **file: Any) -> None:
    """Puts a file; the vector of a text is drawn from its length."""
    texts = {hash for one in documents for chunk in one.chunks for hash in chunk.hashes}
    vectors = {text: vector(len(text)) for text in texts - store.known(texts)}
    with store.writing():
        store.put(StoredFile(path, **file), documents, vectors)


def texts(store: IndexStore, query: str, only: Filter = EVERYTHING) -> list[str]:
    return sorted(one.chunk.text for one in store.chunks([number for number, _ in store.with_words(query, 99, only)]))


def nearest(store: IndexStore, seed: int, only: Filter = EVERYTHING, count: int = 9) -> list[tuple[str, float]]:
    scores = store.nearest(vector(seed), count, only)
    found = store.chunks([number for number, _ in scores])
    return [(one.chunk.text, score) for one, (_, score) in zip(found, scores, strict=True)]


def changed(path: Path, *commands: str) -> Path:
    """An index of one file, changed by commands of SQL; returns its path."""
    path.unlink(missing_ok=True)
    store = SqliteStore(path, ABOUT)
    put(store, "/docs/a", document("one dog"))
    store.check()
    store.close()
    with connect(str(path), "rwc") as connection:
        for command in commands:
            connection.execute(command)
    connection.close()
    return path


def test_what_is_put_is_found(store: IndexStore, opened: Open) -> None:
    put(store, "/docs/a", document("one dog", "two cats here", year=2020, lang="de"), size=5, changed=7, hash=b"h")
    assert store.files() == {"/docs/a": StoredFile("/docs/a", 5, 7, b"h")}
    again = opened()
    assert again.about == ABOUT and again.files() == store.files()
    assert texts(again, "DOG") == ["one dog"] and texts(again, "cats dog") == ["one dog", "two cats here"]
    (first, score), *_ = nearest(again, len("one dog"))
    assert first == "one dog" and score == pytest.approx(1, abs=1e-3)
    found = again.chunks([number for number, _ in again.with_words("dog", 9, Filter())])[0]
    assert (found.path, found.place, found.fields) == ("/docs/a", "", {"year": 2020, "lang": "de"})
    assert found.chunk == StoredChunk("one dog", ("Top",), (), 1, 1)
    assert [one.chunk.text for one in again.around(found.number, 1, 1)] == ["one dog", "two cats here"]
    assert again.around(found.number + 99, 1, 1) == [] == again.chunks([99])
    again.check()
    again.close()


def test_vectors_that_no_chunk_has_are_not_found(store: IndexStore) -> None:
    put(store, "/docs/a", document("one dog"))
    with store.writing():
        store.put_vectors({bytes([seed]): vector(seed) for seed in range(1, 40)})
    for only in (EVERYTHING, make_filter(["path=*a"])):
        assert [text for text, _ in nearest(store, 30, only, count=2)] == ["one dog"]
    store.check()
    put(store, "/docs/b", StoredDocument("", "", {}, [StoredChunk("later", (), (bytes([30]),))]))
    assert [text for text, _ in nearest(store, 30, count=1)] == ["later"] and store.stats().vectors == 40
    with store.writing():
        store.prune()
    assert store.stats().vectors == 2
    store.check()
    put(store, "/docs/a", document(*["x" * size for size in range(1, 60)]))
    put(store, "/docs/b", document("y" * 100))
    put(store, "/docs/a", document("z" * 101))  # not yet pruned
    assert {text[0] for text, _ in nearest(store, 5, count=2)} == {"y", "z"}


def test_a_file_takes_the_place_of_what_was_under_its_path(store: IndexStore) -> None:
    put(store, "/docs/a", document("old words"))
    put(store, "/docs/b", document("other words"))
    put(store, "/docs/a", document("new words now"))
    assert texts(store, "words") == ["new words now", "other words"]
    assert store.stats().vectors == 3
    with store.writing():
        store.prune()
    stats = store.stats()
    assert (stats.files, stats.documents, stats.chunks, stats.vectors) == (2, 2, 2, 2)
    store.check()


def test_equal_chunks_share_a_vector_as_long_as_one_is_there(store: IndexStore) -> None:
    put(store, "/docs/a", document("the same"))
    put(store, "/docs/b", document("the same"))
    assert store.stats().vectors == 1 and len(nearest(store, len("the same"))) == 2
    with store.writing():
        store.remove(["/docs/a", "/docs/missing"])
        store.prune()
    assert store.known([b"the same", b"x"]) == {b"the same"}
    assert [text for text, _ in nearest(store, 8)] == ["the same"]
    with store.writing():
        store.remove(["/docs/b"])
        store.prune()
    assert store.known([b"the same"]) == set() and nearest(store, 8) == [] and texts(store, "same") == []
    store.check()


def test_the_nearest_are_those_of_all_vectors(store: IndexStore) -> None:
    words = ["x" * size for size in range(1, 401)]
    for start in range(0, 400, 100):
        put(store, f"/docs/{start}", document(*words[start : start + 100]))
    with store.writing():
        store.remove(["/docs/200"])
        store.prune()
    put(store, "/docs/new", document(*["x" * size for size in range(401, 450)]))  # in slots that are free now
    store.check()
    left = [size for size in (*range(1, 201), *range(301, 450))]
    for query in (2000, 2001):
        scores = {size: float(vector(query) @ vector(size).astype(np.float16).astype(np.float32)) for size in left}
        expected = sorted(scores, key=scores.__getitem__, reverse=True)[:9]
        found = nearest(store, query)
        assert [len(text) for text, _ in found] == expected
        assert [score for _, score in found] == pytest.approx([scores[size] for size in expected], abs=1e-5)
    only = make_filter(["path=*/100"])
    assert {len(text) for text, _ in nearest(store, 2000, only, 200)} == {*range(101, 201)}


@pytest.mark.parametrize(
    ("kind", "gpu"), [("sqlite", False), ("sqlite", True), pytest.param("lance", False, marks=NEEDS_LANCE)]
)
@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_every_similarity(
    kind: str, place_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, similarity: str, gpu: bool
) -> None:
    monkeypatch.setattr("mlxbert.search.nearest_vectors.on_gpu", lambda: gpu)
    store = open_store(place_of(kind), replace(ABOUT, similarity=similarity))
    put(store, "/docs/a", document(*["x" * size for size in range(1, 40)]))
    put(store, "/docs/b", document(*["x" * size for size in range(30, 60)]))
    stored = np.stack([vector(size) for size in range(1, 60)]).astype(np.float16).astype(np.float32)
    scores = scores_of_all(similarity, vector(99)[None], stored)[0]
    order = np.argsort(-scores, kind="stable")
    found = nearest(store, 99, count=100)
    assert len(found) == 69 and [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert list(dict.fromkeys(len(text) for text, _ in found)) == (order + 1).tolist()
    assert dict((len(text), score) for text, score in found) == pytest.approx(dict(enumerate(scores, 1)), abs=1e-5)
    only = make_filter(["path=*/b"])
    for _ in range(2):
        assert [len(text) for text, _ in nearest(store, 99, only)] == [one + 1 for one in order if one >= 29][:9]
    put(store, "/docs/b", document("x" * 12))
    assert [len(text) for text, _ in nearest(store, 99, only)] == [12]
    store.close()


def filled(place: str, similarity: str, vectors: Any) -> IndexStore:
    store = open_store(place, replace(ABOUT, similarity=similarity))
    names = [str(number) for number in range(len(vectors))]
    with store.writing():
        store.put(StoredFile("/docs/a"), [document(*names)], dict(zip(map(str.encode, names), vectors, strict=True)))
    return store


@pytest.mark.parametrize("length", [1, 1000, 1e5])
def test_a_gpu_finds_the_nearest_of_long_vectors(
    place_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, length: float
) -> None:
    monkeypatch.setattr(nearest_vectors, "NEAREST", 20)
    vectors = length * np.stack([vector(seed) for seed in range(600)])
    store, query, found = filled(place_of("sqlite"), "dot", vectors), length * vector(999), []
    for gpu in (False, True):
        monkeypatch.setattr(nearest_vectors, "on_gpu", lambda gpu=gpu: gpu)
        for only in (EVERYTHING, make_filter(["path=*a"])):
            found.append(store.nearest(query, 9, only))
        store.refresh()
        store._cache.forget()  # type: ignore[attr-defined]
    assert len(found[0]) == 9 and found == found[:1] * 4
    store.close()


def test_of_equal_scores_the_first_are_the_highest() -> None:
    scores = np.random.default_rng(0).integers(0, 9, 500).astype(np.float16)
    for count in (1, 7, 60, 499, 500, 501):
        expected = np.sort(np.argsort(-scores, kind="stable")[:count])
        assert nearest_vectors._highest(scores, count).tolist() == expected.tolist()


def test_a_gpu_gets_the_vectors_as_stored(place_of: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest_vectors, "on_gpu", lambda: True)
    count = 4000
    store = filled(place_of("sqlite"), "cosine", np.tile(vector(1), (count, 1)))
    store.nearest(vector(2), 1, EVERYTHING)
    store._cache.forget()  # type: ignore[attr-defined]
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    tracemalloc.start()
    try:
        store.nearest(vector(2), 1, EVERYTHING)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    stored = 2 * WIDTH * count
    assert peak < 2.5 * stored and mx.get_peak_memory() - before < 1.5 * stored
    store.close()


def test_what_fails_is_undone_whole(store: IndexStore, opened: Open) -> None:
    put(store, "/docs/a", document("one dog"))
    with pytest.raises(RuntimeError), store.writing():
        store.put(StoredFile("/docs/b"), [document("two dogs")], {b"two dogs": vector(1)})
        store.remove(["/docs/a"])
        store.set_about(replace(ABOUT, roots=("/other",)))
        raise RuntimeError
    assert store.about == ABOUT and [*store.files()] == ["/docs/a"] and texts(store, "dog dogs") == ["one dog"]
    with pytest.raises(StoreError), store.writing():
        store.put(StoredFile("/docs/b"), [document("big")], {b"big": vector(1) * 1e9})
    store.check()
    put(store, "/docs/b", document("three dogs"))
    assert texts(store, "three") == ["three dogs"] and len(nearest(store, 3)) == 2
    store.check()


def test_a_reader_sees_one_moment(store: IndexStore, opened: Open) -> None:
    put(store, "/docs/a", document("one dog"))
    reader = opened()
    assert len(nearest(reader, 3)) == 1
    with reader.reading():
        assert texts(reader, "dog") == ["one dog"]
        put(store, "/docs/b", document("second dog"))
        assert texts(reader, "dog") == ["one dog"] and len(nearest(reader, 3)) == 1
    assert texts(reader, "dog") == ["one dog", "second dog"] and len(nearest(reader, 3)) == 2
    with store.writing():
        store.put(StoredFile("/docs/c"), [document("third dog!!")], {b"third dog!!": vector(1)})
        assert len(texts(reader, "dog")) == 2 and len(nearest(reader, 3)) == 2
        store.set_about(replace(ABOUT, roots=("/other",)))
    assert reader.about == ABOUT
    reader.refresh()
    assert reader.about.roots == ("/other",)
    reader.close()


def test_records_take_the_place_of_those_with_their_id(store: IndexStore) -> None:
    vectors = {text.encode(): vector(len(text)) for text in ("one", "second", "third one", "one more")}
    with store.writing():
        store.put_documents([document("one", place="1"), document("second", place="2")], vectors)
        store.put_documents([document("third one", place="2"), document("one more", place="2")], vectors)
    assert texts(store, "one second third more") == ["one", "one more"]
    assert store.files() == {} and store.stats().files == 0 and store.stats().documents == 2
    with store.writing():
        assert store.remove_documents(["2", "7"]) == 1
        store.prune()
    assert texts(store, "one second third more") == ["one"]
    store.check()


def test_files_that_fail_are_kept_with_the_reason(store: IndexStore) -> None:
    put(store, "/docs/a", problem="broken", hash=b"h")
    put(store, "/docs/b", problem="binary", left_out=True)
    assert store.stats().failed == (("/docs/a", "broken"),) and store.stats().files == 0
    assert store.files()["/docs/b"].left_out and store.files()["/docs/a"].problem == "broken"
    put(store, "/docs/a", document("mended"), hash=b"i")
    assert store.stats().failed == () and store.files()["/docs/a"].problem is None


def test_names_are_bytes(store: IndexStore) -> None:
    path, new = "/docs/\udcff\udc80\n.txt", "/docs/ü\x1b[0m"
    put(store, path, document("a dog"))
    assert [*store.files()] == [path] and store.chunks([1])[0].path == path
    for only in (make_filter(["path=*.txt"]), make_filter((), ["/docs"]), make_filter({"path": path}, [path])):
        assert texts(store, "dog", only) == ["a dog"], only
    assert texts(store, "dog", make_filter(["path>/docs"])) == ["a dog"]
    with store.writing():
        store.touch(StoredFile(path, 3, 4))
        store.rename(path, new)
    assert store.files() == {new: StoredFile(new, 3, 4)} and store.chunks([1])[0].path == new


CASES: tuple[tuple[Any, str], ...] = (
    (["lang=de"], "b"), (["lang!=de"], "acd"), (["lang=d?"], "bc"), (["lang=[d]e"], "b"), (["lang=*"], "abcd"),
    (["year>=2020"], "bc"), (["year>2020"], "c"), (["year<2020"], "a"), (["year<=2020.0"], "ab"), (["year=2020"], "b"),
    (["date>=2026-01-01"], "d"), (["date<2026-01-01"], "c"), (["new=true"], "a"), ({"new": True}, "a"),
    ({"lang": "d*"}, "c"), ({"lang": "[de]"}, "d"), ({"year": 2020}, "b"), ({"lang": None}, "a"),
    (["path=a"], "a"),
    (["path=/docs/a"], "a"), (["path=docs/*"], "abcd"), (["path!=*/a"], "bcd"), (["place=part"], "a"),
    (["title=Top"], "abcd"), (["lang=de", "year=2020"], "b"), (["lang=de", "year=2019"], ""), (["no field=x"], ""),
    (["no field!=x"], "abcd"), (["odd\"'name=1"], "d"), (["score>=0.5"], "c"), (["lang=\ud800"], ""),
    (["\ud800=x"], ""),    (["lang>\ud800"], "bc"), (["nan>0"], ""),
)  # fmt: skip


@pytest.mark.parametrize("kind", STORES[:2])
def test_filters(kind: str, place_of: Callable[[str], str]) -> None:
    store, odd = open_store(place_of(kind), ABOUT), {"lang": "[de]", "date": "2026-01-01", "odd\"'name": 1, "year": "?"}
    put(store, "/docs/a", document("a", place="part", year=2019, new=True, nan=float("nan")))
    put(store, "/docs/b", document("b", lang="de", year=2020, new=False))
    put(store, "/docs/c", document("c", lang="d*", year=2021, date="2025-12-31T23:00", score=0.75))
    put(store, "/docs/d", StoredDocument("", "Top", odd, document("d").chunks))
    for where, expected in CASES:
        only = make_filter(where)
        assert "".join(texts(store, "a b c d", only)) == expected, where
        assert "".join(sorted(text for text, _ in nearest(store, 1, only))) == expected, where
        assert len(store.word_for_word('"a"', 9, only)) == ("a" in expected), where
    store.close()


def test_only_what_lies_under_paths(store: IndexStore) -> None:
    for path in ("/a/1", "/b/1"):  # the chunk behind the last that counts may have the same vector
        put(store, path, document("cat"))
    assert nearest(store, 1, make_filter((), ["/a"])) == nearest(store, 1, make_filter((), ["/b"])) != []
    assert len(nearest(store, 1)) == 2
    for path in ("/docs/a/1", "/docs/a.txt", "/docs/ab", "/docs/a"):
        put(store, path, document(f"dog {path}"))
    assert texts(store, "dog", make_filter((), ["/docs/a"])) == ["dog /docs/a", "dog /docs/a/1"]
    for paths, count in ((["/"], 4), (["/docs/ab", "/docs/a.txt"], 2)):
        assert len(texts(store, "dog", make_filter((), paths))) == count
    put(store, "/docs/1999", document("a word"))
    put(store, "/docs/2001", document("another word"))
    assert texts(store, "word", make_filter((), [f"/docs/{number}" for number in range(2000)])) == ["a word"]
    assert texts(store, "word", make_filter([f"path!=*{number}" for number in range(1900, 2000)])) == ["another word"]
    for where, too_many in (([f"path={'*a' * 30_000}"], []), ((), ["a"] * 10_000)):
        with pytest.raises(ArgumentError):
            make_filter(where, too_many)


def test_words_and_phrases_are_found_in_any_script(store: IndexStore) -> None:
    sentences = "Das Mädchen rief read_file auf", "read a file", "the file was read", "NEAR(x y) z-w"
    put(store, "/docs/a", document(*sentences))
    found = {query: texts(store, query) for query in ("madchen", "READ_FILE", "near(", "-w", "*", '"', "\0", "\ud800")}
    assert found["madchen"] == ["Das Mädchen rief read_file auf"] == found["READ_FILE"]
    assert found["near("] == ["NEAR(x y) z-w"] == found["-w"]
    assert found["*"] == found['"'] == found["\0"] == found["\ud800"] == []
    phrase = [store.chunks([number])[0].chunk.text for number, _ in store.word_for_word("a file", 9, Filter())]
    assert phrase == ["read a file"]
    put(store, "/docs/a", document("水の方法", "火山 水", "iPhone 水道", "no such word"))
    assert texts(store, "水") == ["iPhone 水道", "水の方法", "火山 水"]
    assert texts(store, "方法") == ["水の方法"]
    phrases = store.word_for_word('"iphone 水"', 9, EVERYTHING)
    assert [chunk.chunk.text for chunk in store.chunks([number for number, _ in phrases])] == ["iPhone 水道"]
    assert store.word_for_word('"火山 道"', 9, EVERYTHING) == []


def test_chunks_with_rare_words_come_first(store: IndexStore) -> None:
    common = [document(f"common word {'x' * number}") for number in range(1, 30)]
    put(store, "/docs/a", *common, document("rare word !"))
    (first, score), (second, lower), *_ = store.with_words("rare common", 40, EVERYTHING)
    assert store.chunks([first])[0].chunk.text == "rare word !" and score > lower
    assert len(store.with_words("rare common", 40, EVERYTHING)) == 30
    assert len(store.with_words("rare common", 7, EVERYTHING)) == 7
    weights = store.word_weights('rare "common word" missing')
    assert weights[("missing",)] > weights[("rare",)] > weights[("common", "word")] > 0
    assert second in {number for number, _ in store.with_words("common", 40, EVERYTHING)}


def test_equally_good_chunks_are_sorted_by_file_and_position(store: IndexStore) -> None:
    for path in ("/c", "/a", "/b"):
        put(store, path, document("same words", "same words"), document("same words"))
    later = store.begin_nearest(vector(3), 5, EVERYTHING)  # on another thread
    for scores in (store.with_words("same", 5, EVERYTHING), store.nearest(vector(3), 5, EVERYTHING), later()):
        chunks = store.chunks([number for number, _ in scores])
        assert [(chunk.path, chunk.chunk.first_line) for chunk in chunks] == [
            ("/a", 1), ("/a", 2), ("/a", 1), ("/b", 1), ("/b", 2),
        ]  # fmt: skip
        assert [*store.documents_of([number for number, _ in scores])] == [number for number, _ in scores]


def test_a_chunk_of_several_windows(store: IndexStore) -> None:
    windows = [StoredChunk("long", (), (b"a", b"b", b"c")), StoredChunk("short", (), (b"d",))]
    vectors = {name: vector(seed) for seed, name in enumerate((b"a", b"b", b"c", b"d"))}
    with store.writing():
        store.put(StoredFile("/docs/a"), [StoredDocument("", "", {}, windows)], vectors)
    (number, score), _ = store.nearest(vector(2), 2, EVERYTHING)
    assert store.chunks([number])[0].chunk.text == "long" and score == pytest.approx(1, abs=1e-3)
    assert store.similarities(vector(1), [number]) == pytest.approx({number: 1}, abs=1e-3)
    assert len(store.nearest(vector(2), 9, EVERYTHING)) == 2 and store.size() == 2 and store.stats().vectors == 4
    store.check()


def test_documents_vectors_and_places_are_read_as_they_were_put(store: IndexStore) -> None:
    put(store, "/docs/a", document("one", "two", "three"), document("four"))
    numbers = [store.chunk_at("/docs/a", line) for line in (1, 2, 3, 99)]
    assert None not in numbers and len({*numbers}) == 3 and store.chunk_at("/docs/b", 1) is None
    near = store.around(numbers[1] or 0, 0, 5)
    assert [chunk.chunk.text for chunk in near] == ["two", "three"]
    windows = [StoredChunk("long", ("A", "B"), (b"a", b"b"), 3, 4, 5), StoredChunk("short", (), (b"d",))]
    documents = [StoredDocument("p", "T", {"x": 1.5, "y": True}, windows), document("one", "two", place="q")]
    put(store, "/docs/a", *documents)
    assert [*store.documents("/docs/a")] == documents and [*store.documents("/docs/b")] == []
    with store.writing():
        store.put_documents([document("three", place="2"), StoredDocument("1", "", {}, [])], {b"three": vector(5)})
    assert [*store.documents("")] == [document("three", place="2"), StoredDocument("1", "", {}, [])]
    vectors = store.vectors([b"a", b"one", b"missing"])
    assert vectors.keys() == {b"a", b"one"} and vectors[b"one"] == pytest.approx(vector(3), abs=1e-3)


def test_files_that_are_no_indexes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(StoreError, match="the index does not exist"):
        SqliteStore(path)
    path.write_text("a text\n" * 1000)
    with pytest.raises(StoreError, match="is not an index"):
        SqliteStore(path, ABOUT)
    path.unlink()
    sqlite3.connect(path).execute("CREATE TABLE x (y)").connection.close()
    with pytest.raises(StoreError, match="is not an index"):
        SqliteStore(path, ABOUT)
    for wrong in (tmp_path, path / "below"):
        with pytest.raises(StoreError):
            SqliteStore(wrong, ABOUT)


@together(("version", "command"), [(1, "mlxbert index"), (2, "mlxbert index"), (7, "update")])
def test_another_schema_is_refused_by_its_number(tmp_path: Path, version: int, command: str) -> None:
    with pytest.raises(StoreError, match=f"version {version}") as caught:
        SqliteStore(changed(tmp_path / "index.db", f"PRAGMA user_version = {version}"))
    assert caught.value.hint and command in caught.value.hint


def test_without_the_extension_that_checks_pages_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database._checking_vfs.cache_clear()
    with monkeypatch.context() as patch, pytest.raises(MlxbertError, match="cksumvfs") as caught:
        patch.setattr("apsw.sqlite_extra.load", mock.Mock(side_effect=LookupError))
        SqliteStore(tmp_path / "index.db", ABOUT)
    assert caught.value.hint
    SqliteStore(tmp_path / "index.db", ABOUT).close()


def test_a_checkpoint_leaves_the_cache_of_the_disk(sqlite: SqliteStore) -> None:
    """On macOS; elsewhere SQLite's flushes always do. A log that arrives after its pages is half an update."""
    assert sqlite._connection.execute("PRAGMA checkpoint_fullfsync").fetchone() == (1,)


HOSTILE = (
    "CREATE TRIGGER words_content AFTER INSERT ON files BEGIN DELETE FROM about; END",
    "CREATE TRIGGER t AFTER INSERT ON files BEGIN SELECT load_extension('/tmp/x'); END",
    "CREATE VIEW words_content AS SELECT load_extension('/tmp/x')",
    "CREATE TABLE words_content (x, y AS (x || 'y'))",
    "CREATE TABLE more (x)",
    "CREATE INDEX more ON files (abs(size))",
    "DROP TABLE signs",
    "DROP INDEX windows_of_vector",
    "ALTER TABLE files ADD COLUMN y AS (size + 1)",
    "ALTER TABLE files RENAME TO files2; CREATE VIEW files AS SELECT * FROM files2",
    *(f"UPDATE about SET value = '{value}' WHERE name = '{name}'"  # a value of another type
      for name, value in (("updated", 5), ("include", [1]), ("text", 2.5), ("fields", 7), ("encoding", 8))),
)  # fmt: skip


@together("command", HOSTILE)
def test_tables_and_settings_of_others_are_refused(tmp_path: Path, command: str) -> None:
    with pytest.raises(StoreError, match="damaged"):
        SqliteStore(changed(tmp_path / "index.db", command))


def test_no_other_file_is_written_or_removed(tmp_path: Path) -> None:
    path, other = tmp_path / "index.db", tmp_path / "other"
    other.write_text("a text")
    SqliteStore(path, ABOUT).close()
    magic, name = bytes.fromhex("d9d505f920a163d7"), os.fsencode(other)
    header = (magic + struct.pack(">IIIII", 0, 0, path.stat().st_size // 8192, 512, 8192)).ljust(512, b"\0")
    owner = struct.pack(">I", 2**30 // 8192 + 1) + name + struct.pack(">II", len(name), sum(name)) + magic
    journal = Path(f"{path}-journal")
    journal.write_bytes(header + owner)  # SQLite would remove the file with this name
    with pytest.raises(StoreError, match="journal"):
        SqliteStore(path)
    journal.unlink()
    Path(f"{path}-wal").symlink_to(other)
    with pytest.raises(StoreError):
        put(SqliteStore(path), "/docs/a", document("one dog"))
    assert other.read_text() == "a text"


def test_a_score_that_is_no_number(tmp_path: Path) -> None:
    lengths, words = "UPDATE words_docsize SET sz = x'0000'", "UPDATE words_data SET block = x'010000' WHERE id = 1"
    with pytest.raises(StoreError, match="damaged"):
        SqliteStore(changed(tmp_path / "index.db", lengths, words)).with_words("dog", 9, EVERYTHING)


def test_a_new_index_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "index.db"
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", lambda *paths: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            SqliteStore(path, ABOUT)
    assert not path.exists()
    SqliteStore(path, ABOUT).check()
    with schema.locked(str(path)), pytest.raises(BusyError), schema.locked(str(path)):
        pass


def test_the_log_of_an_index_that_was_removed_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    first = SqliteStore(path, ABOUT)
    put(first, "/a", document("old words"))
    log = Path(f"{path}-wal").read_bytes()
    first.close()
    path.unlink()
    Path(f"{path}-wal").write_bytes(log)
    second = SqliteStore(path, ABOUT)
    second.check()
    assert second.files() == {}


def test_two_that_write_by_turns_use_numbers_once(sqlite: SqliteStore) -> None:
    put(sqlite, "/a", document("a"))
    put(SqliteStore(sqlite.path), "/b", document("bb"))
    sqlite.refresh()  # as every update begins
    put(sqlite, "/c", document("ccc"))
    sqlite.check()
    assert sqlite.stats().vectors == 3


@together(
    "change",
    [
        "UPDATE chunks SET text = 'other'", "UPDATE signs SET alive = zeroblob(256)", "DELETE FROM documents",
        "UPDATE vectors SET vector = zeroblob(140)", "DELETE FROM vectors",
    ],
)  # fmt: skip
def test_damage_that_sqlite_does_not_see_is_found(tmp_path: Path, change: str) -> None:
    with pytest.raises(StoreError, match="damaged"):
        SqliteStore(changed(tmp_path / "index.db", change)).check()


@together(
    "change",
    [
        "UPDATE signs SET crc = 1", "UPDATE signs SET bits = x'00'", "UPDATE vectors SET vector = x'00'",
        "UPDATE windows SET vector = 99", "UPDATE documents SET fields = 'x'",
    ],
)  # fmt: skip
def test_searches_of_a_damaged_index_raise_only_its_error(tmp_path: Path, change: str) -> None:
    store, refused = SqliteStore(changed(tmp_path / "index.db", change)), 0
    for only in (EVERYTHING, make_filter(["path=/docs/a"]), make_filter(["year=7"])):
        for search in (store.nearest, lambda *given: store.begin_nearest(*given)()):
            try:
                search(vector(1), 3, only)
            except StoreError:
                refused += 1
    assert refused or "windows" in change  # which finds nothing


def test_a_condition_is_looked_at_once_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matches = mock.create_autospec(Patterns.matches, side_effect=Patterns.matches)
    monkeypatch.setattr(Patterns, "matches", matches)
    store = SqliteStore(tmp_path / "index.db", ABOUT)
    for name in "abc":
        words = document(*(f"word {name * line}" for line in range(1, 30)))
        put(store, f"/docs/{name}", words, document("b", place="2"))
    only, files = make_filter(["path=/docs/[ab]"]), [b"/docs/a", b"/docs/b", b"/docs/c"]
    assert store.count(only) == 4 and sorted(call.args[1] for call in matches.call_args_list) == files
    matches.reset_mock()
    assert len(texts(store, "word", only)) == 58 and sorted(call.args[1] for call in matches.call_args_list) == files


def test_an_error_on_another_thread_is_raised(sqlite: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put(sqlite, "/a", document("word"))
    monkeypatch.setattr(Signs, "nearest", lambda *_: int("the signs are damaged"))
    failing = sqlite.begin_nearest(vector(7), 5, EVERYTHING)
    with pytest.raises(StoreError):
        failing()


def test_an_unfinished_copy_does_not_stay_open(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    store, closed = opened(replace(ABOUT, hash="")), list[IndexStore]()
    store.close()
    monkeypatch.setattr(type(store), "close", lambda self: closed.append(self))
    with pytest.raises(StoreError, match="not finished"):
        opened()
    assert len(closed) == 1


@pytest.mark.parametrize("ending", ["", *schema.BESIDE])
def test_no_file_of_an_index_replaces_a_fifo(ending: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"x.db{ending}")
    with pytest.raises(StoreError, match="FIFO"):
        SqliteStore(tmp_path / "x.db", ABOUT)
    assert [path.name for path in tmp_path.iterdir()] == [f"x.db{ending}"]


def test_two_names_of_an_index_have_one_lock_and_a_link_stays(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "x.db").symlink_to("far/real.db")
    store = SqliteStore(tmp_path / "x.db", ABOUT)
    store.close()
    assert (tmp_path / "x.db").is_symlink() and store.path == os.path.realpath(tmp_path / "far" / "real.db")
    assert SqliteStore(tmp_path / "x.db").path == SqliteStore(tmp_path / "far" / "real.db").path


@together("width", [1, 8, 63, 64, 65, 384, 1000])
@together("count", [1, 10, 90, 10_000])
def test_the_nearest_by_signs_are_those_of_a_plain_computation(width: int, count: int) -> None:
    rng = np.random.default_rng(width)
    vectors = rng.standard_normal((100, width)).astype(np.float32)
    query = rng.standard_normal(width).astype(np.float32)
    alive, only = rng.random(100) < 0.8, rng.random(100) < 0.5
    assert signs_of(vectors).shape == (100, row_bytes(width))
    signs = Signs(signs_of(vectors), alive)
    distances, products = ((vectors > 0) != (query > 0)).sum(1), (vectors > 0) @ query
    for mask in (None, only):
        places = np.flatnonzero(alive if mask is None else alive & mask)
        furthest = np.sort(distances[places])[: min(_WIDER * count, len(places))][-1]
        wide = [place for place in places if distances[place] <= furthest]
        expected = sorted(wide, key=lambda place: -products[place])[:count]
        found = signs.nearest(query, count, mask)
        assert len({*found}) == len(expected)
        assert np.allclose(sorted(products[found]), sorted(products[expected]), atol=1e-4)


def test_signs_of_more_than_a_block_of_vectors_and_of_none() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (70_000, 8), np.uint8)
    query = np.where(np.unpackbits(rows[-1]), 1.0, -1.0).astype(np.float32)
    signs = Signs(rows, np.ones(70_000, bool))
    distances = np.bitwise_count(rows ^ rows[-1]).sum(1)  # the product with signs is as good as these
    found = signs.nearest(query, 50)
    assert sorted(distances[found]) == sorted(distances)[:50] and 69_999 in found
    assert (signs.rows(np.array([5, 69_999])) == rows[[5, 69_999]]).all()
    for count in (5, 0):  # none of them alive
        assert not len(Signs(rows[:count], np.zeros(count, bool)).nearest(query, 3))


def test_conditions_are_read_and_paths_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["lang=de", "a != b=c", "date>=2026-01-01", "n<=1", "n<1", "n>1", "path=a\nb", "x="]
    fields = [(one.field, one.compare, one.value) for one in make_filter(texts).where]
    assert fields == [
        ("lang", "=", "de"), ("a", "!=", "b=c"), ("date", ">=", "2026-01-01"), ("n", "<=", "1"), ("n", "<", "1"),
        ("n", ">", "1"), ("path", "=", "a\nb"), ("x", "=", ""),
    ]  # fmt: skip
    assert not Filter() and not make_filter(()) and make_filter(["a=b"]) and make_filter((), ["a"])
    monkeypatch.setenv("HOME", "/h/[me]")
    where = make_filter(["path=~/notes/*"]).where
    found = ["/h/[me]/notes/a.md", "/h/m/notes/a.md", "/x/~/notes/a.md", "/h/[me]/b.md"]
    assert [matches(where, {"path": path}, {}) for path in found] == [True, False, False, False]


@together(
    "where",
    ["lang=de", {"n": ">3"}, {"n": "!=3"}, ["lang"], ["=de"], ["n=>3"], ["n=<3"], [""], ["!"], [3], [None]],
)
def test_what_is_no_condition_is_refused(where: list[str]) -> None:
    with pytest.raises(ArgumentError):
        make_filter(where)


@together(
    ("condition", "values", "expected"),
    [
        ("x>=2", (2, 2.0, "2", 10, "10", True, 1, "a", "", None), "11111....."),
        ("x<b", ("a", "b", "c", 1, None), "1..1."),
        ("x>nan", ("x", "a", 1), "1.."),
        ("x<2026-02-01", ("2026-01-31T12:00", "2026-02-01", "2025"), "1.1"),
        ("x>=2026", ("2026-02-10", "2025-12-31", "unknown", 2027), "1..1"),
        ("x>=9", ("12",), "1"),
        ("x>=2026-01", ("12",), "."),
    ],
)
def test_comparisons(condition: str, values: tuple[object, ...], expected: str) -> None:
    (one,) = make_filter([condition]).where
    assert "".join(".1"[one.holds(value)] for value in values) == expected


@settings(max_examples=30, deadline=None)
@given(st.text(), st.sampled_from(["<", "<=", ">", ">="]), st.text() | st.floats() | st.integers() | st.none())
def test_any_comparison_has_an_answer(value: str, compare: str, found: object) -> None:
    assert Condition("x", compare, value).holds(found) in (True, False)


@together(
    ("condition", "holds"),
    [
        *[(f"tags={value}", True) for value in ("x", "y z", "w", "y*", "x, y z, w")],
        *[(f"tags={value}", False) for value in ("y", "z", "x, w", "title")],
        *[("tags!=w", False), ("tags!=v", True), ("title=a", False)],
    ],
)
def test_a_value_may_be_one_of_a_list(condition: str, holds: bool) -> None:
    assert matches(make_filter([condition]).where, {"tags": "x, y z, w", "title": "a, b"}, {}) is holds


@together(
    ("pattern", "yes", "no"),
    [
        ("*.md", [".md", "a.md", "a/b.md", "a\n.md"], ["a.mdx", "a.MD", ""]),
        ("docs/?", ["docs/a", "docs/\n"], ["docs/", "docs/ab"]), ("[!a-c]", ["d", "é", "\n"], ["a", "b", ""]),
        ("[!]a]", ["b"], ["]", "a"]), ("[a-]", ["a", "-"], ["b"]), ("[c-a]", [], ["a", "b", "c"]),
        ("[!c-a]", ["a", "b"], [""]), ("[[]x", ["[x"], ["x"]), ("a[b", ["a[b"], ["ab"]),
        ("[&&a||b~~.-]", ["&", "|", "~", "-", "."], ["c", ","]), ("", [""], ["a"]), ("*", ["", "a"], []),
        ("é?", ["éa"], ["e\u0301a"]), (".+(x)\\", [".+(x)\\"], ["a"]),
    ],
)  # fmt: skip
def test_patterns_match_a_whole_text(pattern: str, yes: list[str], no: list[str]) -> None:
    glob = Glob(pattern)
    assert [text for text in [*yes, *no] if glob.matches(text)] == yes


def test_patterns_are_those_of_sqlite() -> None:
    chosen, base = random.Random(0), sqlite3.connect(":memory:")
    for _ in range(3000):
        pattern = "".join(
            chosen.choices(["a", "b", "ab", "*", "?", "[ab]", "[^a]", "[a-b]", "[]a]"], k=chosen.randint(0, 6))
        )
        text = "".join(chosen.choices("ab]c", k=chosen.randint(0, 7)))
        (expected,) = base.execute("SELECT ? GLOB ?", (text, pattern)).fetchone()
        assert Glob(pattern).matches(text) == bool(expected), (pattern, text)


@together(
    "pattern",
    [
        "[" * 10_000, "[a" * 5000, "*a" * 50 + "b", "*[" + "a" * 9000 + "]b", "*?a" * 40 + "b", "[a-" * 3000,
        "*" * 10_000,
    ],
)  # fmt: skip
def test_hostile_patterns_take_no_time(pattern: str) -> None:
    started = time.process_time()
    glob = Glob(pattern)
    assert [glob.matches("a" * 200 + str(number)) for number in range(200)] == [not pattern.strip("*")] * 200
    assert time.process_time() - started < 1


SCRIPT = Path(__file__).parents[2] / "benchmarks" / "hostile_indexes.py"


@pytest.fixture(scope="module", params=["dense", pytest.param("sparse", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> mlxbert.Model:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return mlxbert.load((save if request.param == "dense" else save_splade)(folder), task="embed")


@pytest.fixture(scope="module")
def whole(model: mlxbert.Model, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    docs = write_files(folder / "docs", 16)
    (docs / "long.txt").write_text("the cat sat on the mat . " * 1000)
    (docs / "spoiled.jsonl").write_text('{"text": "a dog"}\n{"text": \n' * 200)
    index = build(folder / "index.db", docs, model)
    index.add([{"id": "long", "text": "milk", "about": "paris " * 4000}])  # in pages that have nothing else
    index.close()
    return (folder / "index.db").read_bytes()


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """A file of which a bit, some bytes, one of the header, one or two blocks of a disk, or the end are lost."""
    data, at = bytearray(whole), rng.randrange(len(whole))
    match rng.choice(["bit", "bytes", "header", "zeros", "garbage", "end"]):
        case "bit":
            data[at] ^= 1 << rng.randrange(8)
        case "bytes":
            for place in rng.sample(range(len(data)), rng.randint(1, 20)):
                data[place] = rng.randrange(256)
        case "header":
            data[at % 100] = rng.randrange(256)
        case "end":
            del data[at:]
        case kind:
            size = rng.choice([4096, 8192])
            start = at // size * size
            data[start : start + size] = bytes(size) if kind == "zeros" else rng.randbytes(size)
    return bytes(data)


def everything(path: Path, model: mlxbert.Model) -> Any:
    with open_index(path, model=model) as index:
        found = (index.search(query, mode=mode, top_k=60, all_chunks=True) for query in QUERIES for mode in MODES)
        hits = [(index.read(hit.chunk), hit.score, hit.to_dict(why=True)) for each in found for hit in each]
        some = [hit.to_dict() for hit in index.search("a dog", where=["year>=2000"])]
        return hits, some, index.about, index.store.files(), index.store.fields(), index.problems()


def test_a_damaged_index_does_not_find_other_things(whole: bytes, model: mlxbert.Model, tmp_path: Path) -> None:
    (path := tmp_path / "index.db").write_bytes(whole)
    expected, found = everything(path, model), Counter[str]()
    for seed in range(int(os.environ.get("MLXBERT_TEST_SEEDS", "20"))):
        for file in tmp_path.iterdir():
            file.unlink()
        path.write_bytes(damaged(whole, random.Random(seed)))
        try:
            found["same" if everything(path, model) == expected else f"other: {seed}"] += 1
        except StoreError:
            found["refused"] += 1
    assert found.keys() <= {"same", "refused"} and found["refused"]


@pytest.mark.parametrize("at", [0, 20, 60, 68])  # magic, bytes of a page for its checksum, version, application
def test_no_byte_of_the_header_ends_the_checks(whole: bytes, model: mlxbert.Model, tmp_path: Path, at: int) -> None:
    for value in {*range(8), *(whole[at] ^ 1 << bit for bit in range(8)), 255}:
        data = bytearray(whole)
        data[at] = value
        (tmp_path / f"{value}.db").write_bytes(data)
        if data != whole:
            with pytest.raises(StoreError):
                open_index(tmp_path / f"{value}.db", model=model)


@pytest.mark.slow
def test_a_page_of_zeros_has_a_right_checksum_and_is_found(whole: bytes, model: mlxbert.Model, tmp_path: Path) -> None:
    (path := tmp_path / "index.db").write_bytes(whole)
    found = 0
    expected = everything(path, model)
    for start in range(0, len(whole), 8192):
        path.write_bytes(whole[:start] + bytes(8192) + whole[start + 8192 :])
        try:
            assert everything(path, model) == expected, start // 8192
        except StoreError:
            found += 1
    assert found > len(whole) // 8192 / 2


def test_a_file_that_is_refused_is_closed(whole: bytes, tmp_path: Path) -> None:
    descriptors, header = set[int](), bytearray(whole)
    header[60:64] = b"\0\0\0\1"  # the version of the schema
    for content in (b"no index" * 2000, bytes(header)):
        (tmp_path / "index.db").write_bytes(content)
        for _ in range(5):
            with pytest.raises(StoreError):
                SqliteStore(tmp_path / "index.db")
            descriptors.add(len(os.listdir("/dev/fd")))
    assert len(descriptors) == 1


@pytest.mark.slow
@pytest.mark.parametrize("vectors", ["dense", "sparse", "tokens"])
def test_mutations_are_refused_or_answered(vectors: str) -> None:
    count = 2_000 if ALL else 45
    command = [sys.executable, str(SCRIPT), "--count", str(count), "--vectors", vectors]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert f"{count:,} indexes in" in done.stdout
