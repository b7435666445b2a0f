"""MaxSim, the token vectors in fewer bits, and the tasks that use them."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import mlxbert
from mlxbert.cli.output.formats import FORMATS
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.machine.device import mx
from mlxbert.tasks import maxsim as blocks
from tests.helpers import token_folders
from tests.helpers.cases import together
from tests.helpers.program import call
from tests.helpers.rooms import needs

RANDOM = np.random.default_rng(8)
LENGTHS = (5, 0, 1, 7, 30, 2)
DOCUMENTS = [RANDOM.normal(size=(length, 16)).astype(np.float32) for length in LENGTHS]
QUERY = RANDOM.normal(size=(4, 16)).astype(np.float32)
EXPECTED = [sum(max(q @ d for d in document) for q in QUERY) if len(document) else 0.0 for document in DOCUMENTS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> mlxbert.Model:
    return mlxbert.load(token_folders.PYLATE["usual"](tmp_path_factory.mktemp("model") / "tiny"))


@pytest.mark.parametrize("size", [1, 8, 10_000])
@pytest.mark.parametrize("gpu", [False, True])
def test_maxsim_is_the_sum_of_the_best_products_in_blocks_of_any_size(
    size: int, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_BLOCK", {False: size, True: size})
    monkeypatch.setattr(blocks, "on_gpu", lambda: gpu)
    monkeypatch.setattr(blocks, "_SMALL", 0)
    found = mlxbert.maxsim(QUERY, iter(DOCUMENTS))
    assert mlxbert.maxsim(QUERY, []).shape == (0,)
    assert found.dtype == np.float32 and np.abs(found - EXPECTED).max() < 1e-4
    assert np.allclose(mlxbert.maxsim(QUERY, DOCUMENTS, similarity="meanmaxsim"), found / 4)
    half = mlxbert.maxsim(QUERY, [document.astype(np.float16) for document in DOCUMENTS])
    assert np.abs(half - EXPECTED).max() < 0.05


def test_only_many_products_are_worth_waiting_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Mock(wraps=mx.array)
    monkeypatch.setattr(blocks, "on_gpu", lambda: True)
    monkeypatch.setattr(mx, "array", made)
    query = RANDOM.normal(size=(32, 128)).astype(np.float32)
    documents = [RANDOM.normal(size=(300, 128)).astype(np.float32)] * 20
    scores = [float(mlxbert.maxsim(query, [document])[0]) for document in documents]
    assert not made.called
    assert np.allclose(mlxbert.maxsim(query, documents), scores, rtol=1e-5) and made.called


PACKED, PLAIN = np.zeros((2, 2), np.int8), np.eye(2, dtype=np.float32)


@together(
    "query,documents,said",
    [
        *((QUERY[0], DOCUMENTS, "shape"), (QUERY, [DOCUMENTS[0][:, :3]], "shape"), (QUERY[:0], DOCUMENTS, "shape")),
        *((PACKED, [PLAIN], ""), (PLAIN, [PACKED], ""), ([[1, 2], [3]], [PLAIN], ""), ("ab", [PLAIN], "")),
        *((PLAIN, 5, ""), (PLAIN, "ab", ""), (PLAIN, ["ab"], "")),
    ],
)
def test_maxsim_refuses_other_shapes_and_what_are_no_floats(query: Any, documents: Any, said: str) -> None:
    with pytest.raises(InputError) as caught:
        mlxbert.maxsim(query, documents)
    assert said in caught.value.message
    with pytest.raises(ArgumentError, match="similarity"):
        mlxbert.maxsim(QUERY, DOCUMENTS, similarity="cosine")


def test_similarity_pairs_and_rerank_compare_by_maxsim(model: mlxbert.Model) -> None:
    query, texts = "the cat sat", ["a dog", "the cat sat on a mat .", "the cat sat"]
    documents = mlxbert.embed_tokens(model, texts)
    scores = mlxbert.maxsim(np.asarray(mlxbert.embed_tokens(model, query, kind="query")), documents)
    order = np.argsort(-scores).tolist()
    for ranked in (mlxbert.similarity(model, query, texts), mlxbert.rerank(model, query, texts)):
        assert [result.index for result in ranked] == order
        assert np.allclose([result.score for result in ranked], scores[order], atol=1e-5)
    one = mlxbert.embed_tokens(model, texts[0])
    assert isinstance(one, np.ndarray) and isinstance(documents, list) and np.allclose(one, documents[0], atol=1e-6)
    binary = mlxbert.embed_tokens(model, texts[0], output_dtype="binary")
    assert np.shape(binary) == (len(one), token_folders.SIZE // 8)
    pairs = mlxbert.similarity_pairs(model, [(query, text) for text in texts])
    assert np.allclose([result.score for result in pairs], scores, atol=1e-5)


@needs("train")
def test_search_is_evaluated_by_the_ranking_of_similarity(model: mlxbert.Model) -> None:
    from mlxbert.train.data.retrieval import read_retrieval
    from mlxbert.train.scores.metrics import retrieval_scores
    from tests.train.test_rerank import groups

    data = groups(4)
    retrieval = read_retrieval(data)
    names, texts = [*retrieval.documents], [*retrieval.documents.values()]
    ranked = {
        query: [names[result.index] for result in mlxbert.similarity(model, text, texts)]
        for query, text in retrieval.queries.items()
    }
    expected = retrieval_scores(ranked, retrieval.judgements).means()
    assert mlxbert.evaluate_search(model, data=data).metrics == pytest.approx(expected, abs=1e-6)


def test_options_of_other_vectors_are_refused(model: mlxbert.Model) -> None:
    for options in ({"pooling": "mean"}, {"dimensions": 4}, {"overflow": "window"}):
        with pytest.raises(ArgumentError, match=next(iter(options))):
            mlxbert.similarity(model, "the cat", ["a dog"], **options)
    with pytest.raises(MlxbertError, match="token vectors"):
        mlxbert.embed(model, "the cat")
    with pytest.raises(MlxbertError, match="tokens"):
        mlxbert.embed_tokens(model, "the cat " * 100, overflow="error")


@pytest.mark.parametrize("dtype", ["float16", "int8", "binary"])
def test_every_output_holds_the_same_vectors(dtype: Any, model: mlxbert.Model, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    texts = ["the cat sat", "a dog", "he bought milk in a large city ."]
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    expected = mlxbert.embed_tokens(model, texts, output_dtype=dtype)
    for ending in FORMATS["tokens"]:
        output = tmp_path / f"vectors{ending}"
        call(
            "embed", "--vectors", "tokens", "--input", str(tmp_path / "texts.txt"), "--output", str(output),
            "--model", str(model.folder), "--output-dtype", dtype,
        )  # fmt: skip
        if ending == ".jsonl":
            found = [np.array(json.loads(line)["embeddings"]) for line in output.read_text("utf-8").splitlines()]
        else:
            found = [np.array(value) for value in pq.read_table(output)["embeddings"].to_pylist()]
        for theirs, ours in zip(found, expected, strict=True):
            assert theirs.shape == ours.shape and np.array_equal(theirs.astype(ours.dtype), ours)


def test_a_text_that_is_one_token_too_long_is_refused(model: mlxbert.Model) -> None:
    lengths = []
    for words in range(1, 60):
        try:
            lengths.append(len(mlxbert.embed_tokens(model, "cat " * words, kind="document", overflow="error")))
        except InputError as problem:
            assert "takes at most" in problem.message
            break
    assert len(lengths) > 2 and len({*lengths}) == len(lengths)  # each word that was taken has a vector
