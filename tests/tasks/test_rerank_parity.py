"""rerank next to sentence-transformers' CrossEncoder, whose folders it reads: the same scores and the same order."""

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from tests.helpers.cells import ALL

EMBEDDER, DATA = os.environ.get("MLXBERT_TEST_EMBEDDER"), os.environ.get("MLXBERT_TEST_DATA")
if not EMBEDDER or not DATA:
    pytest.skip("MLXBERT_TEST_EMBEDDER and MLXBERT_TEST_DATA are not set", allow_module_level=True)
library = pytest.importorskip("sentence_transformers", reason="parity needs sentence-transformers")
pytestmark = pytest.mark.slow

PAIRS, BOUND = 500 if ALL else 60, 1e-5


@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
@pytest.mark.sampled
def test_scores_and_order_are_those_of_the_cross_encoder(activation: str, tmp_path: Path) -> None:
    import torch

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
