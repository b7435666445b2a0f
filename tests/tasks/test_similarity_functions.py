"""How vectors are compared where the files of a model name a function: cosine, dot, euclidean, manhattan."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, ConfigError
from mlxbert.nn.vector_settings import SIMILARITIES
from mlxbert.tasks.query_ranking import nearest, scores_of_all, scores_of_pairs
from tests.helpers.program import call
from tests.helpers.rooms import needs
from tests.helpers.st_folder import pooling, save_st

QUERIES, TEXTS = ["the cat sat", "he bought milk"], ["a dog", "paris , tokyo !", "the cat sat on the mat", "milk"]
EXPECTED: dict[str, Callable[[Any, Any], float]] = {
    "cosine": lambda a, b: float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
    "dot": lambda a, b: float(a @ b),
    "euclidean": lambda a, b: -float(np.sqrt(np.square(a - b).sum())),
    "manhattan": lambda a, b: -float(np.abs(a - b).sum()),
}


@pytest.fixture(scope="module", params=SIMILARITIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"similarity_fn_name": request.param, "prompts": {"query": "in ", "document": "a "}}
    return save_st(tmp_path_factory.mktemp("model") / request.param, pooling("mean"), settings=settings)


OTHER = pytest.mark.parametrize("folder", ["manhattan"], indirect=True)  # where each would take cosines


def _expected(model: mlxbert.Model, name: str) -> Any:
    queries, texts = mlxbert.embed(model, QUERIES, kind="query"), mlxbert.embed(model, TEXTS, kind="document")
    return np.array([[EXPECTED[name](query.astype(float), text) for text in texts] for query in queries])


def test_every_function_of_the_library_compares_as_the_files_say(folder: Path) -> None:
    model = mlxbert.load(folder, task="embed", dtype="float32")
    expected = _expected(model, folder.name)
    assert np.allclose(mlxbert.similarity_matrix(model, QUERIES, TEXTS), expected, atol=1e-4)
    pairs = [(query, text) for query in QUERIES for text in TEXTS]
    assert np.allclose([one.score for one in mlxbert.similarity_pairs(model, pairs)], expected.ravel(), atol=1e-4)
    for query, row in zip(QUERIES, expected, strict=True):
        found = mlxbert.similarity(model, query, TEXTS)
        assert [one.index for one in found] == np.argsort(-row).tolist()
        assert np.allclose([one.score for one in found], np.sort(row)[::-1], atol=1e-4)


@needs("train")
@OTHER
def test_vectors_of_length_one_are_mined(folder: Path) -> None:
    model = mlxbert.load(folder, task="embed", dtype="float32")
    pairs = [{"anchor": query, "positive": text} for query, text in zip([*QUERIES, "man", "store"], TEXTS, strict=True)]
    kinds: list[tuple[str, Any]] = [("anchor", "query"), ("positive", "document")]
    queries, texts = (
        mlxbert.embed(model, [pair[key] for pair in pairs], kind=kind, normalize=True) for key, kind in kinds
    )
    mined = mlxbert.mine(model, pairs, negatives=3, margin=0.01)
    for number, (query, found) in enumerate(zip(queries, mined, strict=True)):
        scores = {text: EXPECTED[folder.name](query, vector) for text, vector in zip(TEXTS, texts, strict=True)}
        allowed = {text: score for text, score in scores.items() if score <= scores[TEXTS[number]] - 0.01}
        assert [*found.negatives] == sorted(allowed, key=lambda text: -allowed[text])
    largest = 2 * 24**0.5 if folder.name == "manhattan" else 2
    with pytest.raises(ArgumentError, match="margin"):
        mlxbert.mine(model, pairs, margin=largest + 0.1)


@needs("train")
@OTHER
def test_evaluations_compare_as_the_files_say(folder: Path) -> None:
    model = mlxbert.load(folder, task="embed", dtype="float32")
    scored: list[dict[str, Any]] = [
        {"sentence1": query, "sentence2": text, "score": number % 5}
        for number, (query, text) in enumerate((query, text) for query in QUERIES for text in TEXTS)
    ]
    found = mlxbert.evaluate("embed", model, data=scored)
    first, second = (mlxbert.embed(model, [one[key] for one in scored]) for key in ("sentence1", "sentence2"))
    scores = [EXPECTED[folder.name](a, b) for a, b in zip(first, second, strict=True)]
    expected = np.corrcoef(np.array(scores), np.array([number % 5 for number in range(len(scored))]))[0, 1]
    assert found.metrics["pearson"] == pytest.approx(expected, abs=1e-3)
    search = [
        {"query": query, "positives": [text], "negatives": TEXTS[2:]}
        for query, text in zip(QUERIES, TEXTS[:2], strict=True)
    ]
    place = [1 + (row > row[number]).sum() for number, row in enumerate(_expected(model, folder.name))]
    assert mlxbert.evaluate_search(model, data=search).metrics["mrr@10"] == pytest.approx(np.mean(1 / np.array(place)))


@needs("train", "export")
@OTHER
def test_what_is_written_names_the_function(folder: Path, tmp_path: Path) -> None:
    data = [{"anchor": f"the {word}", "positive": f"a {word}"} for word in ("cat", "dog", "milk", "store")]
    for _ in mlxbert.finetune("embed", train=data, model=folder, output=tmp_path / "trained", epochs=1):
        pass
    mlxbert.save(mlxbert.load(folder, task="embed"), tmp_path / "saved")
    mlxbert.convert(folder, tmp_path / "converted")
    for written in ("trained", "saved", "converted"):
        settings = json.loads((tmp_path / written / "config_sentence_transformers.json").read_text(encoding="utf-8"))
        assert settings["similarity_fn_name"] == folder.name
        assert mlxbert.load(tmp_path / written, task="embed").embedder.config.similarity == folder.name


@pytest.mark.parametrize("settings", [{}, {"similarity_fn_name": None}])
def test_cosine_is_meant_where_nothing_is_said(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = save_st(tmp_path, pooling("mean"), settings=settings)
    assert mlxbert.load(folder, task="embed").embedder.config.similarity == "cosine"


@pytest.mark.parametrize("name", ["maxsim", "Cosine", "dot_product", 1, ["cosine"], {"a": 1}])
def test_other_functions_are_refused(tmp_path: Path, name: object) -> None:
    folder = save_st(tmp_path, pooling("mean"), settings={"similarity_fn_name": name})
    with pytest.raises(ConfigError, match=r"similarity_fn_name is .*expected one of cosine, dot"):
        mlxbert.load(folder, task="embed")


def test_the_command_line_says_what_the_scores_are(folder: Path) -> None:
    outcome = call("similarity", "--model", str(folder), "--prompt", "", QUERIES[0], *TEXTS)
    pair = call("similarity", "--pairs", "--model", str(folder), "--prompt", "", QUERIES[0], TEXTS[0], "--json")
    names = {"cosine": "", "dot": "dot product", "euclidean": "Euclidean distance", "manhattan": "Manhattan distance"}
    assert names[folder.name] in outcome.err and ("scores are" in outcome.err) == (folder.name != "cosine")
    model = mlxbert.load(folder, task="embed")
    expected = EXPECTED[folder.name](*mlxbert.embed(model, [QUERIES[0], TEXTS[0]], prompt=""))
    assert json.loads(pair.out)["score"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_all_scores_are_those_of_the_pairs(similarity: str) -> None:
    rng = np.random.default_rng(3)
    queries, documents = (rng.normal(size=(count, 16)).astype(np.float32) * 3 for count in (70, 90))
    documents[5] = queries[7]
    if similarity == "cosine":
        queries, documents = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries, documents))
    every = scores_of_all(similarity, queries, documents)
    assert np.allclose(every, scores_of_pairs(similarity, queries[:, None], documents), rtol=1e-5, atol=1e-4)
    numbers, scores = nearest(similarity, queries, documents, 4)
    assert (numbers == np.argsort(-every, axis=1, kind="stable")[:, :4]).all() and (np.diff(scores, axis=1) <= 0).all()
    assert nearest(similarity, queries[:0], documents, 4)[0].shape == (0, 4)
