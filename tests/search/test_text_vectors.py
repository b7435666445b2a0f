"""Indexes of sparse vectors and of token vectors: scores, changes of files, models of other kinds, and damage."""

import functools
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError, StoreError
from mlxbert.search import chunks, sparse_vectors
from mlxbert.search.commands.indexed_texts import stored_passages
from mlxbert.search.filters import Filter, make_filter
from mlxbert.search.index import Index, open_index
from mlxbert.search.late_interaction import restored_rows
from mlxbert.search.sparse_vectors import ENTRIES
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import (
    SCHEMA,
    SPARSE_SCHEMA,
    TOKENS_SCHEMA,
    IndexSettings,
    StoredChunk,
    StoredDocument,
    StoredFile,
)
from mlxbert.tasks.maxsim import maxsim
from mlxbert.tasks.vector_dtype import rows_as_dtype
from tests.helpers import token_folders
from tests.helpers.cases import together
from tests.helpers.indexes import QUERIES, build, check_changed, check_damaged_setting, passage, write_files
from tests.helpers.sparse_folder import change_json, save_routed, save_splade
from tests.helpers.st_folder import write_json
from tests.helpers.tiny import save
from tests.helpers.token_folders import bge_m3

ABOUT = IndexSettings("model", "0" * 64, 40, "dot", "max", ("", ""), 200, True, unrelated=(0.5, 1.0), kind="sparse")
EVERYTHING = Filter()


def vector(seed: object, width: int = 40, count: int = 6) -> Any:
    """Draws a vector whose weights are exact in float16."""
    draws = random.Random(str(seed))
    entries = np.zeros(count, ENTRIES)
    entries["token"] = sorted(draws.sample(range(width), count))
    entries["weight"] = [draws.randint(1, 64) / 16 for _ in range(count)]
    return entries


def dense(entries: Any, width: int = 40) -> Any:
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
    scores = dict(store.nearest(query, count, only))
    return {row.chunk.text: scores[row.number] for row in store.chunks([*scores])}


def expected(names: "set[str]", query: Any) -> dict[str, float]:
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


@together("entry", [(3, np.nan), (3, np.inf), (3, 1e6), (40, 1.0)])
def test_weights_that_cannot_be_stored_are_refused(store: SqliteStore, entry: tuple[int, float]) -> None:
    put(store, "/docs/a", "text 1")
    with pytest.raises(StoreError, match=r"weight|tokens"), store.writing():
        store.put_vectors({b"x": np.array([(1, 1.0), entry], ENTRIES)})
    store.check()


def sql(command: str) -> Callable[[SqliteStore], object]:
    return lambda store: store._connection.execute(command)


def rewritten(field: str, place: int) -> Callable[[SqliteStore], None]:
    """Changes a value of the first list of an index, with the right checksum."""

    def damage(store: SqliteStore) -> None:
        key, data = store._connection.row("SELECT id, entries FROM lists ORDER BY id LIMIT 1")
        entries = np.frombuffer(data, sparse_vectors._LISTED).copy()
        entries[field][place] += 5
        values = entries.tobytes(), zlib.crc32(entries.tobytes()), key
        store._connection.execute("UPDATE lists SET entries = ?, crc = ? WHERE id = ?", values)

    return damage


@pytest.mark.parametrize(
    ("damage", "is_met"),
    [
        (sql("UPDATE lists SET crc = crc + 1"), True),
        (sql("UPDATE lists SET entries = x'010203'"), True),
        (sql("UPDATE vectors SET vector = x'0100007c'"), False),  # infinity
        (sql("UPDATE vectors SET vector = x'ff00003c'"), False),  # a token that the vocabulary does not have
        (sql("DELETE FROM lists WHERE id = (SELECT max(id) FROM lists)"), False),
        (sql("UPDATE signs SET alive = zeroblob(256), crc = 0"), False),
        (rewritten("weight", 0), False),
        (rewritten("vector", -1), False),
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


@pytest.mark.parametrize("written", [save_splade, save_routed])  # queries may have weights of their own
def test_files_are_found_by_sparse_vectors(tmp_path: Path, written: Any, tiny: mlxbert.Model) -> None:
    docs = write_files(tmp_path / "docs", 6)
    sparse = mlxbert.load(written(tmp_path / "sparse"), task="embed", dtype="float32")
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
        index.add([ROW])
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


def test_settings_that_do_not_fit_a_sparse_model_are_a_damage(tmp_path: Path) -> None:
    with open_index(tmp_path / "index.db", model=save_splade(tmp_path / "model")) as index:
        index.add([ROW])
    for name, value in (("kind", '"dense"'), ("kind", '"x"'), ("dimensions", "51")):
        check_damaged_setting(Path(shutil.copyfile(tmp_path / "index.db", tmp_path / "damaged.db")), name, value)


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


near = pytest.approx
ROW = {"id": "1", "text": "the dog sat on the mat ."}
TOKEN_MODELS: dict[str, Callable[[Path], Path]] = {
    "dense and tokens": bge_m3,
    "ColBERT": token_folders.PYLATE["usual"],
    "a prompt": token_folders.MULTI_VECTOR["fixed"],
    "float16": lambda folder: bge_m3(folder, size=12),
}


@pytest.fixture(params=TOKEN_MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> mlxbert.Model:
    """A tiny model that makes token vectors."""
    return mlxbert.load(TOKEN_MODELS[request.param](tmp_path / "model"), task="embed", dtype="float32")


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Index]:
    with open_index(tmp_path / "both.db", model=bge_m3(tmp_path / "both")) as index:
        yield index


def _expected(index: Index, query: str, text: str) -> float:
    """The MaxSim of a query and a text of one window, from vectors as they are kept."""
    model = index.model
    tokens: Any = mlxbert.embed_tokens(model, text)
    if index.about.token_dtype == "binary":
        tokens = np.where(tokens > 0, 1, -1) / np.sqrt(tokens.shape[1])
    asked: Any = mlxbert.embed_tokens(model, query, kind="query")
    return float(maxsim(asked, [tokens.astype(np.float16)], similarity="meanmaxsim")[0])


def test_passages_are_reranked_by_the_kept_vectors(tmp_path: Path, model: mlxbert.Model) -> None:
    texts = {str(number): text for number, text in enumerate(("the dog sat .", "milk , milk", "a cat in paris", ". ,"))}
    with open_index(tmp_path / "index.db", model=model) as index:
        index.add({"id": name, "text": text} for name, text in texts.items())
        index.check()
        for query in ("the cat sat", "milk"):
            hits = index.search(query, mode="vectors")
            assert {hit.place: hit.score for hit in hits} == near(
                {name: _expected(index, query, text) for name, text in texts.items()}, abs=2e-3
            )
            assert [hit.score for hit in hits] == sorted([hit.score for hit in hits], reverse=True)
            assert all(hit.token_score == hit.score for hit in hits)
            mixed, plain = index.search(query), index.search(query, mode="vectors", rerank=False)
            assert {hit.place: hit.token_score for hit in mixed} == {hit.place: hit.score for hit in hits}
            assert [hit.score for hit in mixed] == sorted([hit.score for hit in mixed], reverse=True)
            assert all(hit.score == hit.vector_score and hit.token_score is None for hit in plain)


@pytest.mark.parametrize("model", ["dense and tokens", "ColBERT"], indirect=True)
def test_maxsim_counts_in_the_place_of_the_similarity(tmp_path: Path, model: mlxbert.Model) -> None:
    with open_index(tmp_path / "index.db", model=model) as index:
        index.add({"id": word, "text": f"the {word} sat ."} for word in ("dog", "cat", "milk"))
        before = {hit.place: hit for hit in index.search("a cat sat", rerank=False)}
        about = index.about
        for hit in index.search("a cat sat"):
            assert about.unrelated and about.unrelated_tokens
            (old, wide), (new, narrow) = about.unrelated, about.unrelated_tokens
            assert hit.vector_score is not None and hit.token_score is not None and hit.is_close is not None
            gained = 0.65 * ((hit.token_score - new) / narrow - (hit.vector_score - old) / wide)
            assert hit.score - before[hit.place].score == near(gained, abs=1e-3)
            assert (before[hit.place].vector_score, hit.word_score) == (hit.vector_score, before[hit.place].word_score)


@pytest.mark.parametrize("mode", ["hybrid", "vectors"])
def test_every_hit_has_a_maxsim_however_many_texts_are_alike(both: Index, mode: Any) -> None:
    texts = ["the cat sat on the mat"] * 40 + [passage(number, 12) for number in range(30)]
    both.add({"id": str(number), "text": text} for number, text in enumerate(texts))
    hits = both.search("the cat sat", mode=mode, top_k=10, candidates=10)
    scores = [hit.score for hit in hits]
    assert len(hits) == 10 and scores == sorted(scores, reverse=True)
    assert all(hit.token_score is not None for hit in hits)
    assert both.search("the cat sat", mode=mode, min_score=scores[4])[-1].score == scores[4]


def test_as_many_passages_as_asked_for_are_compared_once_each(both: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    both.add({"id": str(number), "text": passage(number, 12)} for number in range(330))
    both.add({"id": f"same {number}", "text": "milk"} for number in range(300))
    monkeypatch.setattr(both.store, "tokens", tokens := mock.Mock(side_effect=both.store.tokens))
    for mode, count in (("vectors", None), ("vectors", 320), ("hybrid", 320)):
        both.search("a cat sat", mode=mode, candidates=count)  # type: ignore[arg-type]
        seen = [chunk for call in tokens.call_args_list for chunk in call.args[0]]
        assert len(seen) == len({*seen}) == (count or 200)
        tokens.reset_mock()
    assert len(both.search("milk", top_k=30)) == 30
    seen = [chunk for call in tokens.call_args_list for chunk in call.args[0]]
    assert len(seen) == len({*seen}) > 300  # most of the first ones are duplicates


def test_the_best_passage_of_a_document_is_chosen_by_maxsim(both: Index) -> None:
    both.add({"id": str(number), "text": passage(number, 150)} for number in range(3))
    for query in QUERIES:
        best: dict[str, float] = {}
        for hit in both.search(query, mode="vectors", all_chunks=True, top_k=100):
            best[hit.place] = max(best.get(hit.place, -1), hit.score)
        assert {hit.place: hit.score for hit in both.search(query, mode="vectors")} == best


def test_a_search_that_would_rerank_nothing_says_so(tmp_path: Path, tiny: mlxbert.Model, both: Index) -> None:
    both.add([ROW])
    with open_index(tmp_path / "dense.db", model=tiny) as dense:
        dense.add([ROW])
        searches: list[tuple[Index, dict[str, Any]]] = [
            (dense, {"rerank": True}), (dense, {"candidates": 20}), (both, {"rerank": False, "candidates": 20}),
            (both, {"mode": "words", "rerank": True}),
        ]  # fmt: skip
        for index, options in searches:
            with pytest.raises(ArgumentError, match="rerank"):
                index.search("dog", **options)
    with open_index(both.path) as again:
        assert again.search("dog", mode="words")[0].token_score is None and "model" not in vars(again)  # not loaded


def test_an_index_with_both_has_the_vectors_of_each_task(tmp_path: Path) -> None:
    model = mlxbert.load(bge_m3(tmp_path / "model"), task="embed", dtype="float32")
    with open_index(tmp_path / "index.db", model=model) as index, open_index(
        tmp_path / "dense.db", model=model, token_vectors=False
    ) as dense:  # fmt: skip
        for each in (index, dense):
            each.add([ROW, {"id": "2", "text": "milk"}])
        assert (index.about.token_size, dense.about.token_size) == (8, 0)
        none: Any = {"token_size": 0, "token_dtype": "", "unrelated_tokens": (), "created": "", "updated": ""}
        assert replace(index.about, unrelated=dense.about.unrelated, **none) == replace(dense.about, **none)
        versions = [each.store._connection.row("PRAGMA user_version") for each in (index, dense)]  # type: ignore[attr-defined]
        assert versions == [(TOKENS_SCHEMA,), (SCHEMA,)]
        pairs = zip(stored_passages(index.store), stored_passages(dense.store), strict=True)
        assert all(np.abs(one[1] - other[1]).max() < 1e-3 for one, other in pairs)
        scores = [{hit.place: hit.score for hit in each.search("a dog", rerank=False)} for each in (index, dense)]
        assert scores[0] == near(scores[1], abs=1e-3)


@pytest.mark.parametrize("model", ["dense and tokens", "ColBERT"], indirect=True)
def test_changed_files_keep_vectors_and_tokens_together(tmp_path: Path, model: mlxbert.Model) -> None:
    docs = write_files(tmp_path / "docs", 4)
    with build(tmp_path / "index.db", docs, model) as index:
        check_changed(index, docs)
        with pytest.raises(ArgumentError, match="Lance"):
            index.copy("lance:" + str(tmp_path / "lance"))


def test_the_best_window_of_a_passage_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_WINDOW", 8)
    model = mlxbert.load(bge_m3(tmp_path / "model"), task="embed", dtype="float32")
    with open_index(tmp_path / "index.db", model=model) as index:
        index.add([{"id": "1", "text": "the dog sat . the cat went to tokyo . milk in paris ."}])
        (hit,) = index.search("milk")
        assert (index.stats().chunks, index.stats().vectors) == (1, 2)
        (tokens,) = index.store.tokens([hit.chunk]).values()
        words = hit.text.split()
        windows = " ".join(words[:8]), " ".join(words[8:])
        assert [*map(len, tokens)] == [len(mlxbert.embed_tokens(model, text)) for text in windows]
        assert hit.token_score == near(max(_expected(index, "milk", text) for text in windows), abs=2e-3)


def test_what_cannot_keep_token_vectors(tmp_path: Path) -> None:
    colbert, both = token_folders.PYLATE["usual"](tmp_path / "colbert"), bge_m3(tmp_path / "both")
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("", {"token_vectors": False}, "only token vectors"), ("lance:", {}, "Lance"),
        ("", {"prompts": ("query: ", None)}, "prompts"),
    ]  # fmt: skip
    for prefix, options, said in refused:
        with pytest.raises(ArgumentError, match=said):
            open_index(f"{prefix}{tmp_path}/index", model=colbert, **options)
    assert not (tmp_path / "index").exists()
    write_json(both / "config_sentence_transformers.json", {"prompts": {"query": "query : ", "document": ""}})
    with open_index(tmp_path / "prompted.db", model=both) as index:  # the inputs of the two kinds differ
        assert index.about.token_size == 0


DAMAGE = {
    "missing": "DELETE FROM tokens WHERE vector = 0",
    "of no vector": "INSERT INTO tokens VALUES (99, x'00', 0)",
    "moved": "UPDATE tokens SET vector = 77 WHERE vector = 0",
    "without a window": "DELETE FROM windows",
    "cut": "UPDATE tokens SET tokens = x'000102' WHERE vector = 0",
    "a page of zeros": "UPDATE tokens SET tokens = substr(tokens, 1, 9) || zeroblob(length(tokens) - 9)",
    "another checksum": "UPDATE tokens SET crc = crc + 1",
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Returns the index of a row whose token vectors have a size."""

    @functools.cache
    def made(size: int) -> Path:
        folder = tmp_path_factory.mktemp("stored")
        with open_index(folder / "index.db", model=bge_m3(folder / "model", size=size)) as index:
            index.add([ROW])
        return folder / "index.db"

    return made


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.parametrize("size", [8, 12], ids=["binary", "float16"])
def test_damage_is_noticed(name: str, size: int, stored: Callable[[int], Path], tmp_path: Path) -> None:
    store = SqliteStore(Path(shutil.copyfile(stored(size), tmp_path / "index.db")))
    store._connection.execute(DAMAGE[name])
    with pytest.raises(StoreError, match="damaged"):
        SqliteStore(store.path).check()
    if name != "of no vector":
        with open_index(store.path) as index, pytest.raises(StoreError, match="damaged"):
            index.search("the dog")


@together(("name", "value"), [("token_size", "0"), ("token_size", "16"), ("token_dtype", '"int4"')])
def test_settings_that_do_not_fit_the_model_are_a_damage(
    name: str, value: str, stored: Callable[[int], Path], tmp_path: Path
) -> None:
    check_damaged_setting(Path(shutil.copyfile(stored(8), tmp_path / "index.db")), name, value)


def test_values_too_large_for_float16_make_no_index(tmp_path: Path) -> None:
    model = mlxbert.load(bge_m3(tmp_path / "model", size=12), task="embed", dtype="float32")
    layers = model.token_embedder.layers
    layers.pop()  # which normalizes
    layers[0].linear.weight = layers[0].linear.weight * 1e8
    with pytest.raises(StoreError, match="too large for float16"):
        open_index(tmp_path / "index.db", model=model)
    assert not (tmp_path / "index.db").exists()


@together(
    ("prompts", "said"),
    [
        *((wrong, "prompts") for wrong in ("query: ", ("q",), (1, None), ("a", "b", "c"), None)),
        ((None, "the " * 300), "the prompt has 300 tokens"),  # which leaves no room for a text
    ],
)  # fmt: skip
def test_prompts_that_are_not_two_texts_are_refused(tmp_path: Path, tiny: Any, prompts: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        open_index(tmp_path / "index.db", model=tiny, prompts=prompts)


def test_prompts_leave_no_token_vectors_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    both = bge_m3(tmp_path / "both")
    for number, (prompts, kept) in enumerate({("", ""): 8, (None, None): 8, ("query: ", None): 0}.items()):
        caplog.clear()
        with open_index(tmp_path / f"{number}.db", model=both, prompts=prompts) as index:
            assert index.about.token_size == kept and bool(caplog.records) != bool(kept)


@pytest.mark.parametrize(("dtype", "least"), [("float32", 1.0), ("float16", 0.999), ("int8", 0.999), ("binary", 0.7)])
def test_unit_vectors_survive_fewer_bits(dtype: str, least: float) -> None:
    vectors = np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    restored = restored_rows(rows_as_dtype(vectors, dtype), dtype, 64)
    assert np.abs(np.linalg.norm(restored, axis=1) - 1).max() < 2e-3
    assert (restored * vectors).sum(axis=1).min() > least - 1e-6
