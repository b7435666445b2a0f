"""An index that keeps vectors of tokens, and reranks by them: scores, changes of files, models, and damage."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, StoreError
from mlxbert.search import chunks
from mlxbert.search.index import Index, open_index
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import SCHEMA, TOKENS_SCHEMA
from mlxbert.search.stored_passages import stored_passages
from mlxbert.tasks.maxsim import maxsim
from tests.helpers import token_folders, torch_files
from tests.helpers.indexes import QUERIES, build, passage, write_files
from tests.helpers.st_folder import write_json

EXACT = pytest.approx
ROW = {"id": "1", "text": "the dog sat on the mat ."}


def _both(folder: Path, *, size: int = 8) -> Path:
    """Writes a model with a vector of each text and vectors of its tokens, in the files of BGE-M3."""
    token_folders.encoder(folder)
    layer = np.random.default_rng(2).normal(size=(size, token_folders.WIDTH)).astype(np.float32)
    arrays = {"weight": mlxbert.machine.device.mx.array(layer), "bias": mlxbert.machine.device.mx.zeros(size)}
    (folder / "colbert_linear.pt").write_bytes(torch_files.saved(arrays))
    write_json(
        folder / "modules.json",
        [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        ],
    )
    pooling = {"word_embedding_dimension": token_folders.WIDTH, "pooling_mode_cls_token": True}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    return folder


MODELS: dict[str, Callable[[Path], Path]] = {
    "dense and tokens": _both,
    "ColBERT": token_folders.PYLATE["usual"],
    "a prompt": token_folders.MULTI_VECTOR["fixed"],
    "float16": lambda folder: _both(folder, size=12),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> mlxbert.Model:
    """A tiny model that makes vectors of tokens."""
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
            assert all(hit.rerank_score == hit.score for hit in hits)
            mixed, plain = index.search(query), index.search(query, mode="vectors", rerank=False)
            assert {hit.place: hit.rerank_score for hit in mixed} == {hit.place: hit.score for hit in hits}
            assert [hit.score for hit in mixed] == sorted([hit.score for hit in mixed], reverse=True)
            assert all(hit.score == hit.vector_score and hit.rerank_score is None for hit in plain)


def test_maxsim_counts_in_the_place_of_the_similarity(tmp_path: Path, model: mlxbert.Model) -> None:
    with open_index(tmp_path / "index.db", model=model) as index:
        index.add(
            {"id": str(number), "text": f"the {word} sat ."} for number, word in enumerate(("dog", "cat", "milk"))
        )
        before = {hit.place: hit for hit in index.search("a cat sat", rerank=False)}
        about = index.about
        for hit in index.search("a cat sat"):
            assert about.unrelated and about.unrelated_tokens
            (old, wide), (new, narrow) = about.unrelated, about.unrelated_tokens
            assert hit.vector_score is not None and hit.rerank_score is not None and hit.relevance == hit.score
            gained = 0.65 * ((hit.rerank_score - new) / narrow - (hit.vector_score - old) / wide)
            logits = [np.log(each.score / (1 - each.score)) for each in (before[hit.place], hit)]
            assert logits[1] - logits[0] == EXACT(gained, abs=1e-3)
            assert (before[hit.place].vector_score, hit.word_score) == (hit.vector_score, before[hit.place].word_score)


def test_the_passages_that_are_not_reranked_come_last(tmp_path: Path, model: mlxbert.Model) -> None:
    with open_index(tmp_path / "index.db", model=model) as index:
        index.add({"id": str(number), "text": passage(number)} for number in range(12))
        for mode in ("hybrid", "vectors"):
            plain = [hit.place for hit in index.search("a cat sat", mode=mode, top_k=2, rerank=False)]
            few = index.search("a cat sat", mode=mode, top_k=2, candidates=2)
            assert {hit.place for hit in few} == {*plain} and all(hit.rerank_score is not None for hit in few)


def test_an_index_with_both_has_the_vectors_of_each_task(tmp_path: Path) -> None:
    model = mlxbert.load(_both(tmp_path / "model"), task="embed", dtype="float32")
    with open_index(tmp_path / "index.db", model=model) as index, open_index(
        tmp_path / "dense.db", model=model, token_vectors=False
    ) as dense:  # fmt: skip
        for each in (index, dense):
            each.add([ROW, {"id": "2", "text": "milk"}])
        assert (index.about.token_size, dense.about.token_size) == (8, 0)
        assert replace(
            index.about,
            token_size=0,
            token_dtype="",
            unrelated_tokens=(),
            unrelated=dense.about.unrelated,
            created="",
            updated="",
        ) == replace(dense.about, created="", updated="")
        versions = [each.store._connection.row("PRAGMA user_version") for each in (index, dense)]  # type: ignore[attr-defined]
        assert versions == [(TOKENS_SCHEMA,), (SCHEMA,)]
        pairs = zip(stored_passages(index.store), stored_passages(dense.store), strict=True)
        assert all(np.abs(one[1] - other[1]).max() < 1e-3 for one, other in pairs)
        scores = [{hit.place: hit.score for hit in each.search("a dog", rerank=False)} for each in (index, dense)]
        assert scores[0] == EXACT(scores[1], abs=1e-3)


def test_changed_files_keep_vectors_and_tokens_together(tmp_path: Path, model: mlxbert.Model) -> None:
    docs = write_files(tmp_path / "docs", 8)
    with build(tmp_path / "index.db", docs, model) as index:
        index.check()
        (docs / "001.md").write_text("the dog went to the store")
        (docs / "002.md").unlink()
        [*index.update()]
        index.check()
        index.copy(tmp_path / "copy.db")
        with open_index(tmp_path / "copy.db", model=model) as copy, build(tmp_path / "new.db", docs, model) as new:
            copy.check()
            for query in QUERIES:
                scores = [[hit.score for hit in each.search(query)] for each in (index, copy, new)]
                assert scores[0] == scores[1] == EXACT(scores[2], abs=1e-3)
        with pytest.raises(ArgumentError, match="Lance"):
            index.copy("lance:" + str(tmp_path / "lance"))


def test_a_passage_of_several_windows_has_the_tokens_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_WINDOW", 8)
    model = mlxbert.load(_both(tmp_path / "model"), task="embed", dtype="float32")
    with open_index(tmp_path / "index.db", model=model) as index:
        index.add([{"id": "1", "text": "the dog sat . the cat went to tokyo . milk in paris ."}])
        (hit,) = index.search("milk")
        assert (index.stats().chunks, index.stats().vectors) == (1, 2)
        (tokens,) = index.store.tokens([hit.chunk]).values()
        windows = [text for text in (hit.text[:38], hit.text[38:])]
        assert len(tokens) == sum(len(mlxbert.embed_tokens(model, text)) for text in windows)
        assert hit.rerank_score is not None
        assert hit.rerank_score >= max(_expected(index, "milk", text) for text in windows) - 2e-3


def test_words_alone_are_not_reranked(tmp_path: Path, model: mlxbert.Model) -> None:
    with open_index(tmp_path / "index.db", model=model) as index:
        index.add([ROW])
    with open_index(tmp_path / "index.db") as index:
        assert index.search("dog", mode="words")[0].rerank_score is None
        assert "model" not in vars(index)  # not loaded


def test_what_cannot_keep_vectors_of_tokens(tmp_path: Path) -> None:
    colbert, both = token_folders.PYLATE["usual"](tmp_path / "colbert"), _both(tmp_path / "both")
    with pytest.raises(ArgumentError, match="only vectors of tokens"):
        open_index(tmp_path / "index.db", model=colbert, token_vectors=False)
    with pytest.raises(ArgumentError, match="Lance"):
        open_index("lance:" + str(tmp_path / "lance"), model=colbert)
    with pytest.raises(ArgumentError, match="prompts"):
        open_index(tmp_path / "index.db", model=colbert, prompts=("query: ", None))
    assert not (tmp_path / "index.db").exists() and not (tmp_path / "lance").exists()
    with open_index(tmp_path / "stated.db", model=both, prompts=("query: ", "passage: ")) as index:
        assert index.about.token_size == 0
    write_json(both / "config_sentence_transformers.json", {"prompts": {"query": "query : ", "document": ""}})
    with open_index(tmp_path / "prompted.db", model=both) as index:  # the inputs of the two kinds differ
        assert index.about.token_size == 0


DAMAGE = {
    "missing": "DELETE FROM tokens WHERE vector = 0",
    "of no vector": "INSERT INTO tokens VALUES (99, x'00')",
    "moved": "UPDATE tokens SET vector = 77 WHERE vector = 0",
    "half a token": "UPDATE tokens SET tokens = x'000102' WHERE vector = 0",
    "not finite": "UPDATE tokens SET tokens = x'00fe' || substr(tokens, 3) WHERE vector = 0",
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_noticed(name: str, tmp_path: Path) -> None:
    with open_index(tmp_path / "index.db", model=_both(tmp_path / "model", size=12)) as index:
        index.add([ROW])
    store = SqliteStore(tmp_path / "index.db")
    store._connection.execute(DAMAGE[name])
    with pytest.raises(StoreError, match="damaged"):
        SqliteStore(store.path).check()
    if name != "of no vector":
        with open_index(store.path) as index, pytest.raises(StoreError, match="damaged"):
            index.search("the dog")


@pytest.mark.parametrize(("name", "value"), [("token_size", "0"), ("token_size", "16"), ("token_dtype", '"int4"')])
def test_settings_that_do_not_fit_the_model_are_a_damage(tmp_path: Path, name: str, value: str) -> None:
    with open_index(tmp_path / "index.db", model=_both(tmp_path / "model")) as index:
        index.add([ROW])
        command = "UPDATE about SET value = ? WHERE name = ?"
        index.store._connection.execute(command, (value, name))  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="damaged"), open_index(tmp_path / "index.db") as index:
        index.search("the dog")


def test_values_too_large_for_float16_are_refused(tmp_path: Path) -> None:
    with open_index(tmp_path / "index.db", model=_both(tmp_path / "model", size=12)) as index:
        tokens = np.full((2, 12), np.inf, np.float16)
        with pytest.raises(StoreError, match="float16"), index.store.writing():
            vector = np.zeros(index.about.dimensions, np.float32)
            index.store.put_vectors({b"x": (vector, tokens)})  # type: ignore[dict-item]
        index.check()
