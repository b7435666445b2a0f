"""fill-mask next to the transformers pipeline on masked sentences of real text, 200 with `MLXBERT_TEST_ALL=1`.

Needs torch and transformers, and in the environment `MLXBERT_TEST_CHECKPOINT` (a BERT folder with a masked-LM head),
`MLXBERT_TEST_DATA` (a folder with wnut17 and squad in their original formats).
"""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from tests.helpers.cells import ALL

CHECKPOINT, DATA = os.environ.get("MLXBERT_TEST_CHECKPOINT"), os.environ.get("MLXBERT_TEST_DATA")
if not CHECKPOINT or not DATA:
    pytest.skip("MLXBERT_TEST_CHECKPOINT and MLXBERT_TEST_DATA are not set", allow_module_level=True)
transformers = pytest.importorskip("transformers", reason="parity needs transformers")

pytestmark = pytest.mark.slow

SENTENCES, TOP_K, TIE, BOUND = 200 if ALL else 24, 5, 1e-6, 1e-4
TARGETS = ["the", "man", "city", "2009", "good", "in", "american"]


def _tweets(folder: Path) -> Iterator[list[str]]:
    """The sentences of WNUT-17, a token a line, empty lines between them."""
    path = next(path for path in sorted(folder.rglob("*")) if path.is_file() and "train" in path.name.lower())
    sentence: list[str] = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.strip():
            sentence.append(line.split("\t")[0].strip())
        elif sentence:
            yield sentence
            sentence = []


def _paragraphs(folder: Path) -> Iterator[list[str]]:
    """SQuAD's paragraphs, as words."""
    for article in json.loads((folder / "dev-v1.1.json").read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            yield paragraph["context"].split()


def masked_sentences() -> list[str]:
    """Half of each source; one, two or three words of each are masked."""
    generator = random.Random(17)
    found = []
    for source in (_tweets(Path(DATA or "") / "wnut17"), _paragraphs(Path(DATA or "") / "squad")):
        usable = [words for words in source if 5 <= len(words) <= 200]
        for words in generator.sample(usable, SENTENCES // 2):
            places = generator.sample(range(len(words)), generator.choice((1, 1, 2, 3)))
            found.append(" ".join("[MASK]" if place in places else word for place, word in enumerate(words)))
    return found


@pytest.fixture(scope="module")
def model() -> mlxbert.Model:
    return mlxbert.load(str(CHECKPOINT), task="fill-mask", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def pipeline() -> Any:
    import torch

    return transformers.pipeline("fill-mask", model=CHECKPOINT, dtype=torch.float32, device="cpu")


def _compare(ours: mlxbert.FillMask, theirs: Any) -> float:
    """The same tokens in the same order, but for ties; the largest difference of a score."""
    farthest = 0.0
    rows = theirs if isinstance(theirs[0], list) else [theirs]
    assert len(rows) == len(ours.masks)
    for mask, row in zip(ours.masks, rows, strict=True):
        scores = {fill["token"]: fill["score"] for fill in row}
        assert len(mask.fills) == len(row)
        for fill, other in zip(mask.fills, row, strict=True):
            same = fill.token_id == other["token"] or abs(scores.get(fill.token_id, -1) - other["score"]) < TIE
            assert same, f"{ours.text}: {fill} instead of {other}"
            farthest = max(farthest, abs(fill.score - other["score"]))
    return farthest


def test_words_and_scores_are_those_of_the_pipeline(model: mlxbert.Model, pipeline: Any) -> None:
    sentences = masked_sentences()
    assert len(sentences) == SENTENCES and sum(sentence.count("[MASK]") > 1 for sentence in sentences) > SENTENCES // 4
    results = mlxbert.fill_mask(model, sentences, top_k=TOP_K)
    farthest = max(_compare(ours, pipeline(ours.text, top_k=TOP_K)) for ours in results)
    print(f"{len(sentences)} sentences, largest score difference {farthest:.1e}")  # noqa: T201
    assert farthest <= BOUND


def test_targets_are_scored_as_by_the_pipeline(model: mlxbert.Model, pipeline: Any) -> None:
    sentences = masked_sentences()
    results = mlxbert.fill_mask(model, sentences, targets=TARGETS)
    farthest = max(_compare(ours, pipeline(ours.text, targets=TARGETS, top_k=len(TARGETS))) for ours in results)
    print(f"{len(sentences)} sentences, largest score difference {farthest:.1e}")  # noqa: T201
    assert farthest <= BOUND
