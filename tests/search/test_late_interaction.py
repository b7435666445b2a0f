"""An index that keeps token vectors, and reranks by them: scores, changes of files, models, and damage."""

import functools
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, StoreError
from mlxbert.search import chunks
from mlxbert.search.commands.indexed_texts import stored_passages
from mlxbert.search.index import Index, open_index
from mlxbert.search.late_interaction import restored_rows
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import SCHEMA, TOKENS_SCHEMA
from mlxbert.tasks.maxsim import maxsim
from mlxbert.tasks.vector_dtype import rows_as_dtype
from tests.helpers import token_folders
from tests.helpers.cases import together
from tests.helpers.indexes import QUERIES, build, check_changed, check_damaged_setting, passage, write_files
from tests.helpers.st_folder import write_json
from tests.helpers.token_folders import bge_m3

EXACT = pytest.approx
ROW = {"id": "1", "text": "the dog sat on the mat ."}


MODELS: dict[str, Callable[[Path], Path]] = {
    "dense and tokens": bge_m3,
    "ColBERT": token_folders.PYLATE["usual"],
    "a prompt": token_folders.MULTI_VECTOR["fixed"],
    "float16": lambda folder: bge_m3(folder, size=12),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> mlxbert.Model:
    """A tiny model that makes token vectors."""
    return mlxbert.load(MODELS[request.param](tmp_path / "model"), task="embed", dtype="float32")


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
            assert {hit.place: hit.score for hit in hits} == EXACT(
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
            assert hit.score - before[hit.place].score == EXACT(gained, abs=1e-3)
            assert (before[hit.place].vector_score, hit.word_score) == (hit.vector_score, before[hit.place].word_score)


@pytest.mark.parametrize("mode", ["hybrid", "vectors"])
def test_every_hit_has_a_maxsim_however_many_texts_are_alike(tmp_path: Path, mode: Any) -> None:
    texts = ["the cat sat on the mat"] * 40 + [passage(number, 12) for number in range(30)]
    with open_index(tmp_path / "index.db", model=bge_m3(tmp_path / "model")) as index:
        index.add({"id": str(number), "text": text} for number, text in enumerate(texts))
        hits = index.search("the cat sat", mode=mode, top_k=10, candidates=10)
        scores = [hit.score for hit in hits]
        assert len(hits) == 10 and scores == sorted(scores, reverse=True)
        assert all(hit.token_score is not None for hit in hits)
        assert index.search("the cat sat", mode=mode, min_score=scores[4])[-1].score == scores[4]


def test_as_many_passages_as_were_asked_for_are_compared_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_index(tmp_path / "index.db", model=bge_m3(tmp_path / "model")) as index:
        index.add({"id": str(number), "text": passage(number, 12)} for number in range(330))
        index.add({"id": f"same {number}", "text": "milk"} for number in range(300))
        seen, usual = list[int](), index.store.tokens

        def noted(chunks: Sequence[int]) -> Any:
            seen.extend(chunks)
            return usual(chunks)

        monkeypatch.setattr(index.store, "tokens", noted)
        for mode, count in (("vectors", None), ("vectors", 320), ("hybrid", 320)):
            index.search("a cat sat", mode=mode, candidates=count)  # type: ignore[arg-type]
            assert len(seen) == len({*seen}) == (count or 200)
            seen.clear()
        assert len(index.search("milk", top_k=30)) == 30
        assert len(seen) == len({*seen}) > 300  # most of the first ones are duplicates


def test_the_best_passage_of_a_document_is_chosen_by_maxsim(tmp_path: Path) -> None:
    with open_index(tmp_path / "index.db", model=bge_m3(tmp_path / "model")) as index:
        index.add({"id": str(number), "text": passage(number, 150)} for number in range(3))
        for query in QUERIES:
            best: dict[str, float] = {}
            for hit in index.search(query, mode="vectors", all_chunks=True, top_k=100):
                best[hit.place] = max(best.get(hit.place, -1), hit.score)
            assert {hit.place: hit.score for hit in index.search(query, mode="vectors")} == best


def test_a_search_that_would_rerank_nothing_says_so(tmp_path: Path, tiny: mlxbert.Model) -> None:
    with open_index(tmp_path / "dense.db", model=tiny) as dense:
        dense.add([ROW])
        for options in ({"rerank": True}, {"candidates": 20}):
            with pytest.raises(ArgumentError, match="rerank"):
                dense.search("dog", **options)
    with open_index(tmp_path / "index.db", model=bge_m3(tmp_path / "model")) as index:
        index.add([ROW])
        for more in ({"rerank": False, "candidates": 20}, {"mode": "words", "rerank": True}):
            with pytest.raises(ArgumentError, match="rerank"):
                index.search("dog", **more)


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
        assert scores[0] == EXACT(scores[1], abs=1e-3)


@pytest.mark.parametrize("model", ["dense and tokens", "ColBERT"], indirect=True)
def test_changed_files_keep_vectors_and_tokens_together(tmp_path: Path, model: mlxbert.Model) -> None:
    docs = write_files(tmp_path / "docs", 8)
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
        assert hit.token_score == EXACT(max(_expected(index, "milk", text) for text in windows), abs=2e-3)


@pytest.mark.parametrize("model", ["ColBERT"], indirect=True)
def test_words_alone_are_not_reranked(tmp_path: Path, model: mlxbert.Model) -> None:
    with open_index(tmp_path / "index.db", model=model) as index:
        index.add([ROW])
    with open_index(tmp_path / "index.db") as index:
        assert index.search("dog", mode="words")[0].token_score is None
        assert "model" not in vars(index)  # not loaded


def test_what_cannot_keep_token_vectors(tmp_path: Path) -> None:
    colbert, both = token_folders.PYLATE["usual"](tmp_path / "colbert"), bge_m3(tmp_path / "both")
    with pytest.raises(ArgumentError, match="only token vectors"):
        open_index(tmp_path / "index.db", model=colbert, token_vectors=False)
    with pytest.raises(ArgumentError, match="Lance"):
        open_index("lance:" + str(tmp_path / "lance"), model=colbert)
    with pytest.raises(ArgumentError, match="prompts"):
        open_index(tmp_path / "index.db", model=colbert, prompts=("query: ", None))
    assert not (tmp_path / "index.db").exists() and not (tmp_path / "lance").exists()
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


@together("prompts", ["query: ", ("q",), (1, None), ("a", "b", "c"), None])
def test_prompts_that_are_not_two_texts_are_refused(tmp_path: Path, prompts: Any, tiny: mlxbert.Model) -> None:
    with pytest.raises(ArgumentError, match="prompts"):
        open_index(tmp_path / "index.db", model=tiny, prompts=prompts)


def test_a_prompt_that_leaves_no_room_for_a_text_is_refused(tmp_path: Path, tiny: mlxbert.Model) -> None:
    with pytest.raises(ArgumentError, match="the prompt has 300 tokens"):
        open_index(tmp_path / "index.db", model=tiny, prompts=(None, "the " * 300))


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
