"""An index of sparse vectors: exact scores, lists that follow every change, models of other kinds, and damage."""

import random
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError, StoreError
from mlxbert.search import sparse_vectors
from mlxbert.search.commands.indexed_texts import stored_passages
from mlxbert.search.filters import Filter, make_filter
from mlxbert.search.index import open_index
from mlxbert.search.sparse_vectors import ENTRIES
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import SCHEMA, SPARSE_SCHEMA, IndexSettings, StoredChunk, StoredDocument, StoredFile
from tests.helpers.indexes import QUERIES, build, check_changed, check_damaged_setting, write_files
from tests.helpers.sparse_folder import change_json, save_routed, save_splade
from tests.helpers.tiny import save

ABOUT = IndexSettings("model", "0" * 64, 40, "dot", "max", ("", ""), 200, True, unrelated=(0.5, 1.0), kind="sparse")
EVERYTHING = Filter()
# Updates an index, says so after a number of events, and waits for its end.
CHILD = """
import sys
from mlxbert.search import index_writer as writer
from mlxbert.search.index import open_index
writer._GROUP, writer._SPOOL_BYTES = 5, 200
path, folder, model, last = *sys.argv[1:4], int(sys.argv[4])
for number, event in enumerate(open_index(path, model=model, paths=[folder]).update()):
    if number == last:
        print("waiting", flush=True)
        sys.stdin.read()
"""


def vector(seed: object, width: int = 40, count: int = 6) -> Any:
    """Draws a vector whose weights are exact in float16."""
    draws = random.Random(str(seed))
    entries = np.zeros(count, ENTRIES)
    entries["token"] = sorted(draws.sample(range(width), count))
    entries["weight"] = [draws.randint(1, 64) / 16 for _ in range(count)]
    return entries


def dense(entries: Any, width: int = 40) -> Any:
    """The vector with its zeros."""
    full = np.zeros(width)
    full[entries["token"]] = entries["weight"]
    return full


def put(store: SqliteStore, path: str, *names: str, **fields: Any) -> None:
    """Puts a file with a chunk for each name, whose vector is drawn from the name."""
    chunks = [StoredChunk(name, (), (name.encode(),)) for name in names]
    new = {name.encode() for name in names} - store.known([name.encode() for name in names])
    with store.writing():
        vectors = {hash: vector(hash.decode(), store.about.dimensions) for hash in new}
        store.put(StoredFile(path), [StoredDocument("", "", fields, chunks)], vectors)


def found(store: SqliteStore, query: Any, count: int = 99, only: Filter = EVERYTHING) -> dict[str, float]:
    """The texts that are nearest to a query, with their scores."""
    scores = dict(store.nearest(query, count, only))
    return {row.chunk.text: scores[row.number] for row in store.chunks([*scores])}


def expected(names: "set[str]", query: Any) -> dict[str, float]:
    """The scores of texts that share a token with a query."""
    scores = {name: float(np.float32(dense(query) @ dense(vector(name)))) for name in names}
    return {name: score for name, score in scores.items() if score}


@pytest.fixture(params=["one block", "small blocks", "written early"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqliteStore:
    """A new index, perhaps with blocks of four vectors, and with changes that are written at once."""
    monkeypatch.setattr(sparse_vectors, "_BLOCK", 2**12 if request.param == "one block" else 4)
    monkeypatch.setattr(sparse_vectors, "_PENDING", 1 if request.param == "written early" else 2**12)
    return SqliteStore(tmp_path / "index.db", ABOUT)


def test_scores_are_exact_after_every_change(store: SqliteStore, tmp_path: Path) -> None:
    draws, files = random.Random(7), dict[str, list[str]]()
    for step in range(36):
        path = f"/docs/{draws.randrange(12)}"
        if path in files and draws.random() < 0.4:
            del files[path]
            with store.writing():
                store.remove([path])
                store.put_vectors({b"early": vector("early"), b"late": vector(f"late {step}")})
                store.prune()
                store.put_vectors({b"early": vector("early")})  # under a number that was just given up
        else:
            files[path] = [f"text {draws.randrange(40)}" for _ in range(draws.randint(1, 4))]
            put(store, path, *files[path])
        if step % 3 == 0:
            with store.writing():
                store.prune()
            query, names = vector(("query", step)), {name for each in files.values() for name in each}
            assert found(store, query) == expected(names, query)
            store.check()
    fresh = SqliteStore(tmp_path / "fresh.db", ABOUT)
    for path, names_of in files.items():
        put(fresh, path, *names_of)
    query = vector("last")
    assert found(fresh, query) == found(store, query) == found(SqliteStore(store.path), query)


def test_the_first_chunks_and_those_that_a_filter_leaves(store: SqliteStore) -> None:
    for number in range(30):
        put(store, f"/docs/{number % 2}/{number}", f"text {number}", half=number % 2)
    query = vector("query")
    every = expected({f"text {number}" for number in range(30)}, query)
    best = sorted(every.values(), reverse=True)
    assert sorted(found(store, query, 5).values(), reverse=True) == best[:5]
    for only, half in ((make_filter(["half=1"]), 1), (make_filter((), ["/docs/0"]), 0)):
        assert found(store, query, only=only) == {
            name: score for name, score in every.items() if int(name.split()[1]) % 2 == half
        }
    numbers = [number for number, _ in store.nearest(query, 99, EVERYTHING)]
    assert store.similarities(query, numbers) == dict(store.nearest(query, 99, EVERYTHING))
    assert store.begin_nearest(query, 3, EVERYTHING)() == store.nearest(query, 3, EVERYTHING)
    assert found(store, vector("nothing")[:0]) == {}


def test_what_is_undone_leaves_no_entry(store: SqliteStore) -> None:
    put(store, "/docs/a", "text 1")
    with pytest.raises(ZeroDivisionError), store.writing():
        store.put_vectors({b"x": vector("x")})
        store.remove(["/docs/a"])
        store.prune()
        _ = 1 / 0
    store.check()
    assert found(store, vector("text 1")).keys() == {"text 1"}
    put(store, "/docs/b", "text 2")
    store.check()


def test_a_vocabulary_of_more_than_two_bytes_and_a_text_without_weights(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "index.db", replace(ABOUT, dimensions=100_000))
    far = np.array([(99_999, 2.0)], ENTRIES)
    with store.writing():
        chunks = [StoredChunk("far", (), (b"far",)), StoredChunk("none", (), (b"none",))]
        store.put(StoredFile("/a"), [StoredDocument("", "", {}, chunks)], {b"far": far, b"none": far[:0]})
    assert found(store, far) == {"far": 4.0}
    assert store.vectors([b"far"])[b"far"].tolist() == [(99_999, 2.0)] and not len(store.vectors([b"none"])[b"none"])
    store.check()


@pytest.mark.parametrize("entry", [(3, np.nan), (3, np.inf), (3, 1e6), (40, 1.0)])
def test_weights_that_cannot_be_stored_are_refused(store: SqliteStore, entry: tuple[int, float]) -> None:
    put(store, "/docs/a", "text 1")
    with pytest.raises(StoreError, match=r"weight|tokens"), store.writing():
        store.put_vectors({b"x": np.array([(1, 1.0), entry], ENTRIES)})
    store.check()


def sql(command: str) -> Callable[[SqliteStore], object]:
    """Changes an index by a command."""
    return lambda store: store._connection.execute(command)


def rewritten(change: Callable[[Any], None]) -> Callable[[SqliteStore], None]:
    """Changes the first list of an index, with the right checksum."""

    def damage(store: SqliteStore) -> None:
        key, data = store._connection.row("SELECT id, entries FROM lists ORDER BY id LIMIT 1")
        entries = np.frombuffer(data, sparse_vectors._LISTED).copy()
        change(entries)
        values = entries.tobytes(), zlib.crc32(entries.tobytes()), key
        store._connection.execute("UPDATE lists SET entries = ?, crc = ? WHERE id = ?", values)

    return damage


def heavier(entries: Any) -> None:
    """Changes a weight."""
    entries["weight"][0] += 1


def elsewhere(entries: Any) -> None:
    """Changes the number of a vector."""
    entries["vector"][-1] += 5


@pytest.mark.parametrize(
    ("damage", "is_met"),
    [
        (sql("UPDATE lists SET crc = crc + 1"), True),
        (sql("UPDATE lists SET entries = x'010203'"), True),
        (sql("UPDATE vectors SET vector = x'0100007c'"), False),  # infinity
        (sql("UPDATE vectors SET vector = x'ff00003c'"), False),  # a token that the vocabulary does not have
        (sql("DELETE FROM lists WHERE id = (SELECT max(id) FROM lists)"), False),
        (sql("UPDATE signs SET alive = zeroblob(256), crc = 0"), False),
        (rewritten(heavier), False),
        (rewritten(elsewhere), False),
    ],
)
def test_a_damaged_list_is_noticed(tmp_path: Path, damage: Callable[[SqliteStore], object], is_met: bool) -> None:
    store = SqliteStore(tmp_path / "index.db", ABOUT)
    put(store, "/docs/a", "text 1", "text 2")
    store.check()
    damage(store)
    store = SqliteStore(store.path)
    with pytest.raises(StoreError, match="damaged"):
        store.check()
    if is_met:
        with pytest.raises(StoreError, match="damaged"):
            store.nearest(vector("text 1"), 9, EVERYTHING)


@pytest.fixture(params=["splade", "routed"])
def sparse(request: pytest.FixtureRequest, tmp_path: Path) -> mlxbert.Model:
    """A tiny SPLADE model; or one whose queries have weights of their own."""
    written = (save_splade if request.param == "splade" else save_routed)(tmp_path / request.param)
    return mlxbert.load(written, task="embed", dtype="float32")


def test_files_are_found_by_sparse_vectors(tmp_path: Path, sparse: mlxbert.Model, tiny: mlxbert.Model) -> None:
    docs = write_files(tmp_path / "docs", 8)
    with build(tmp_path / "index.db", docs, sparse) as index:
        assert (index.about.kind, index.about.dimensions) == ("sparse", sparse.config.vocab_size)
        for query in QUERIES:
            hits = index.search(query, mode="vectors", top_k=60, all_chunks=True)
            assert len(hits) > 10 and [hit.score for hit in hits] == sorted([hit.score for hit in hits], reverse=True)
            shown = {hit.chunk: hit.score for hit in hits}
            mixed = index.search(query, top_k=60, all_chunks=True)
            assert mixed[0].is_close is not None and all(hit.vector_score == shown[hit.chunk] for hit in mixed)
        (row,) = index.search("the cat", mode="vectors", where=["year=1993"])
        (scored,) = sparse.similarity("the cat", [row.text.partition("\n\n")[0]])  # a year has no letters
        assert row.score == pytest.approx(scored.score, rel=2e-3)  # weights are float16
        check_changed(index, docs)
        with pytest.raises(StoreError, match="sparse"):
            next(iter(stored_passages(index.store)))
        with pytest.raises(InputError, match="sparse"):
            mlxbert.verify_vectors(tiny, tmp_path / "index.db")
        with pytest.raises(ArgumentError, match="Lance") as caught:
            index.copy("lance:" + str(tmp_path / "lance"))
        assert caught.value.hint and not (tmp_path / "lance").exists()


def test_a_query_without_weights_is_an_error_unless_words_are_searched(tmp_path: Path) -> None:
    model = save_routed(tmp_path / "model", json_weights=True)  # four tokens have a weight
    with open_index(tmp_path / "index.db", model=model) as index:
        index.add([{"id": "1", "text": "the dog sat on the mat ."}])
        assert index.search("mat", mode="vectors")[0].place == "1" == index.search("dog", mode="words")[0].place
        for mode in ("vectors", "hybrid"):
            with pytest.raises(InputError, match="weight") as caught:
                index.search("dog", mode=mode)
            assert caught.value.hint


def test_an_index_accepts_no_model_of_another_kind(tmp_path: Path, tiny_folder: Path) -> None:
    models = {"sparse": save_splade(tmp_path / "sparse"), "dense": save(tmp_path / "dense")}
    for kind, model in models.items():
        paths = [model] if kind == "dense" else []
        with open_index(tmp_path / f"{kind}.db", model=model, paths=paths) as index:
            index.add([{"id": "1", "text": "the dog"}])
            version = index.store._connection.row("PRAGMA user_version")[0]  # type: ignore[attr-defined]
            assert version == (SPARSE_SCHEMA if kind == "sparse" else SCHEMA)
    for kind, other in (("sparse", "dense"), ("dense", "sparse")):
        with pytest.raises(StoreError, match="was made with the model") as caught:
            open_index(tmp_path / f"{kind}.db", model=models[other])
        assert caught.value.hint and "remove" not in caught.value.hint  # the records may be nowhere else
    with pytest.raises(ArgumentError, match="Lance"):
        open_index("lance:" + str(tmp_path / "lance"), model=models["sparse"])


def test_settings_that_do_not_fit_the_model_are_a_damage(tmp_path: Path) -> None:
    with open_index(tmp_path / "index.db", model=save_splade(tmp_path / "model")) as index:
        index.add([{"id": "1", "text": "the dog"}])
    for number, (name, value) in enumerate((("kind", '"dense"'), ("kind", '"x"'), ("dimensions", "51"))):
        path = Path(shutil.copyfile(tmp_path / "index.db", tmp_path / f"{number}.db"))
        check_damaged_setting(path, name, value)


def test_distances_of_sparse_vectors_are_refused(tmp_path: Path) -> None:
    model = save_splade(tmp_path / "model", settings={"similarity_fn_name": "euclidean"})
    with pytest.raises(ArgumentError, match="euclidean") as caught:
        open_index(tmp_path / "index.db", model=model)
    assert caught.value.hint and not (tmp_path / "index.db").exists()
    change_json(model / "config_sentence_transformers.json", similarity_fn_name="cosine")
    with open_index(tmp_path / "index.db", model=model) as index:
        index.add([{"id": "1", "text": "the dog"}, {"id": "2", "text": "milk"}])
        hits = index.search("the dog", mode="vectors")
        wanted = mlxbert.load(model, task="embed").similarity("the dog", [hit.text for hit in hits])
        assert [hit.score for hit in hits] == pytest.approx([each.score for each in wanted], abs=1e-3)
        assert 0 < hits[1].score < hits[0].score <= 1


@pytest.mark.slow
@pytest.mark.parametrize("last", [3, 20, 41, 60])
def test_a_killed_update_leaves_lists_that_fit(tmp_path: Path, last: int) -> None:
    model, docs, path = save_splade(tmp_path / "model"), write_files(tmp_path / "docs", 12), tmp_path / "index.db"
    command = [sys.executable, "-c", CHILD, *map(str, (path, docs, model, last))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stdout.readline() == "waiting\n"
        child.kill()
    loaded = mlxbert.load(model, task="embed", dtype="float32")
    with build(path, docs, loaded) as index, build(tmp_path / "new.db", docs, loaded) as new:
        index.check()
        for query in QUERIES:
            scores = [[hit.score for hit in each.search(query, mode="vectors")] for each in (index, new)]
            assert scores[0] == pytest.approx(scores[1], rel=2e-3)
