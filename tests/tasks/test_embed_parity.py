"""embed and rerank next to sentence-transformers on texts of every kind, and on STS-B; `MLXBERT_TEST_ALL=1` runs more.

Needs torch and sentence-transformers, and in the environment `MLXBERT_TEST_EMBEDDER` (the folder of all-MiniLM-L6-v2)
and `MLXBERT_TEST_DATA` (a folder with stsb-en, squad and xquad in their original formats).
"""

import csv
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mlxbert
from tests.helpers.cells import ALL

EMBEDDER, DATA = os.environ.get("MLXBERT_TEST_EMBEDDER"), os.environ.get("MLXBERT_TEST_DATA")
if not EMBEDDER or not DATA:
    pytest.skip("MLXBERT_TEST_EMBEDDER and MLXBERT_TEST_DATA are not set", allow_module_level=True)
pytestmark = pytest.mark.slow
Array = NDArray[np.float32]
ODD = [
    "", " ", "\n", "a", ".", "?!", "\t\u00a0", "\x00\x07\x1b[31m", "\u200b\u200d", "é e\u0301", "ﬁ ①", "\ufffd",
    "🙂" * 300,
]  # fmt: skip
SHARE = 1 if ALL else 20
COUNT, TOLERANCE, COSINE, SINGLE = 2000 // SHARE, 0.02, 0.99999, 1e-5
# With every third pair: as sentence-transformers computes it.
STEP, SPEARMAN = (1, 82.03) if ALL else (3, 82.35)


def _paragraphs(name: str) -> list[str]:
    articles = json.loads((Path(DATA or "") / name).read_text(encoding="utf-8"))["data"]
    return [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]


def _pairs() -> list[tuple[str, str, float]]:
    with (Path(DATA or "") / "stsb-en" / "stsb-en-test.csv").open(encoding="utf-8", newline="") as file:
        return [(first, second, float(score)) for first, second, score in csv.reader(file)]


def texts() -> list[str]:
    """Sentences, paragraphs, some far over 256 tokens, Chinese, German, and what nobody would write."""
    generator = random.Random(5)
    sentences = [text for first, second, _ in _pairs() for text in (first, second)]
    english, chinese, german = (_paragraphs(f"xquad/xquad.{language}.json") for language in ("en", "zh", "de"))
    long = [" ".join(generator.sample(english, 4)) for _ in range(150 // SHARE)]
    marked = [
        f"{text} {generator.choice('🙂🏳️‍🌈👩🏽‍🚀')}\x1b{generator.choice(sentences)}"
        for text in generator.sample(sentences, 200 // SHARE)
    ]
    found = ODD + long + marked + generator.sample(chinese, 150 // SHARE) + generator.sample(german, 150 // SHARE)
    found += generator.sample(_paragraphs("squad/dev-v1.1.json"), 400 // SHARE)
    found += generator.sample(sentences, COUNT - len(found))
    generator.shuffle(found)
    return found


@pytest.fixture(scope="module")
def model() -> mlxbert.Model:
    return mlxbert.load(str(EMBEDDER), task="embed", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def vectors(model: mlxbert.Model) -> Array:
    found: Array = mlxbert.embed(model, texts())
    return found


def test_vectors_are_those_of_sentence_transformers(vectors: Array) -> None:
    pytest.importorskip("torch", reason="parity needs torch")
    library = pytest.importorskip("sentence_transformers", reason="parity needs sentence-transformers")
    reference = library.SentenceTransformer(str(EMBEDDER), device="cpu").encode(texts(), show_progress_bar=False)
    cosines = (vectors.astype(np.float64) * reference).sum(axis=1)
    cosines /= np.linalg.norm(vectors.astype(np.float64), axis=1) * np.linalg.norm(reference.astype(np.float64), axis=1)
    farthest = abs(vectors - reference).max()
    print(f"\n{COUNT} texts: lowest cosine {cosines.min():.9f}, largest difference {farthest:.2g}")  # noqa: T201
    assert len(cosines) == COUNT
    assert cosines.min() >= COSINE


def test_a_text_alone_has_the_vector_that_it_has_among_others(model: mlxbert.Model, vectors: Array) -> None:
    chosen = random.Random(3).sample(range(COUNT), 200 // SHARE)
    alone = np.stack([mlxbert.embed(model, texts()[number]) for number in chosen])
    difference = abs(alone - vectors[chosen]).max()
    print(f"\n{len(chosen)} texts alone: largest difference {difference:.2g}")  # noqa: T201
    assert difference <= SINGLE


def _ranks(values: Array) -> NDArray[np.float64]:
    """Ranks, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    return ((ends - counts + ends - 1) / 2)[inverse]


def test_similar_sentences_rank_as_people_rank_them(model: mlxbert.Model) -> None:
    first, second, scores = zip(*_pairs()[::STEP], strict=True)
    cosines = (mlxbert.embed(model, first) * mlxbert.embed(model, second)).sum(axis=1)
    spearman = 100 * np.corrcoef(_ranks(cosines), _ranks(np.array(scores)))[0, 1]
    print(f"\nSTS-B test, {len(scores)} pairs: Spearman {spearman:.3f}")  # noqa: T201
    assert abs(spearman - SPEARMAN) <= TOLERANCE


PAIRS, BOUND = 500 if ALL else 60, 1e-5


@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
@pytest.mark.sampled
def test_scores_and_order_are_those_of_the_cross_encoder(activation: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="parity needs torch")
    library = pytest.importorskip("sentence_transformers", reason="parity needs sentence-transformers")
    torch.manual_seed(3)
    given: dict[str, Any] = {"num_labels": 1, "max_length": 200, "device": "cpu"}
    theirs = library.CrossEncoder(EMBEDDER, activation_fn=getattr(torch.nn, activation)(), **given)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    articles = json.loads((Path(DATA or "") / "squad/dev-v1.1.json").read_text(encoding="utf-8"))["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    chosen = random.Random(5).sample(paragraphs, PAIRS)
    query = chosen[0]["qas"][0]["question"]
    texts = [paragraph["context"] * (1 + number % 3) for number, paragraph in enumerate(chosen)]  # some too long
    expected = theirs.rank(query, texts)
    model = mlxbert.load(tmp_path / "theirs", task="classify", dtype="float32", device="cpu")
    found = mlxbert.rerank(model, query, texts)
    scores = {row["corpus_id"]: row["score"] for row in expected}
    assert max(abs(one.score - scores[one.index]) for one in found) <= BOUND
    for one, row in zip(found, expected, strict=True):
        assert one.index == row["corpus_id"] or abs(one.score - row["score"]) <= BOUND
