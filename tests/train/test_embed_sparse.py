"""Training of sparse vectors: the loss is its formula, and a trained folder is a SPLADE model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.embed_sparse import ACTIVE, EmbedSparse
from tests.helpers.sparse_folder import TEXTS, save_routed, save_splade
from tests.helpers.tiny import CONFIG, save

PAIRS = [
    {"text": "the cat sat", "positive": "the cat sat on mat"}, {"text": "a man went", "positive": "man went to store"},
    {"text": "paris is city", "positive": "largest city is paris"}, {"text": "he bought", "positive": "bought milk"},
]  # fmt: skip
QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 4, "device": "cpu", "valid": PAIRS, "query_flops": 0.01}


def _loss(vectors: np.ndarray[Any, Any], progress: float, **options: Any) -> float:
    objective = make_objective("embed", vectors="sparse", loss="in-batch", **options)
    assert isinstance(objective, EmbedSparse)
    objective.progress = progress
    texts = [("a", "b"), ("c", "d"), ("e", "f")]

    class _Example:
        kind = "pairs"

        def __init__(self, pair: tuple[str, str]) -> None:
            self.texts, self.encodings, self.target = pair, [(), ()], None

    examples: Any = [_Example(pair) for pair in texts]
    loss, weight = objective.compare(mx.array(vectors), objective.targets(examples))
    return float(loss) / weight


def _formula(vectors: np.ndarray[Any, Any], query: float, document: float, ramp: float) -> float:
    queries, documents = vectors[::2], vectors[1::2]
    logits = queries @ documents.T
    ranking = -np.mean(np.diag(logits - np.log(np.exp(logits).sum(1, keepdims=True))))
    flops = [np.square(each.mean(0)).sum() for each in (queries, documents)]
    return float(ranking + ramp * (query * flops[0] + document * flops[1]))


@pytest.mark.parametrize(("progress", "ramp"), [(0.0, 0.0), (0.125, 0.25), (0.25, 1.0), (0.9, 1.0)])
def test_the_loss_is_its_formula(progress: float, ramp: float) -> None:
    vectors = np.random.default_rng(0).random((6, 9)).astype(np.float32)
    options = {"query_flops": 0.5, "document_flops": 2.0, "flops_warmup": 0.25}
    assert _loss(vectors, progress, **options) == pytest.approx(_formula(vectors, 0.5, 2.0, ramp), rel=1e-5)


@pytest.mark.slow
def test_the_loss_is_that_of_sentence_transformers() -> None:
    torch, st = pytest.importorskip("torch"), pytest.importorskip("sentence_transformers.sparse_encoder.losses")
    vectors = np.random.default_rng(1).random((6, 9)).astype(np.float32)
    ranking = st.SparseMultipleNegativesRankingLoss(model=None)
    flops = st.FlopsLoss(model=None)
    queries, documents = (torch.tensor(vectors[start::2]) for start in (0, 1))
    expected = ranking.compute_loss_from_embeddings([queries, documents], None)
    expected += 0.5 * flops.compute_loss_from_embeddings(queries)
    expected += 2.0 * flops.compute_loss_from_embeddings(documents)
    found = _loss(vectors, 1.0, query_flops=0.5, document_flops=2.0)
    assert found == pytest.approx(float(expected), rel=1e-5)


def test_training_writes_a_splade_model_and_regularizers_make_vectors_sparser(tmp_path: Path) -> None:
    found = []
    for weight in (0.0, 10.0):
        options = QUICK | {"query_flops": weight, "document_flops": weight, "epochs": 5, "eval_every": 5, "lr": 0.03}
        out = tmp_path / f"out-{weight}"
        given: dict[str, Any] = {"model": save(tmp_path / "m"), "train": PAIRS, "output": out, "vectors": "sparse"}
        events = [*mlxbert.finetune("embed", **given, **options)]
        evaluated = [event for event in events if isinstance(event, mlxbert.Evaluated)]
        assert evaluated and all(0 <= event.metrics[ACTIVE] <= CONFIG["vocab_size"] for event in evaluated)
        model = mlxbert.load(out, task="embed", device="cpu")
        found.append(sum(float(result.values.sum()) for result in mlxbert.embed_sparse(model, TEXTS[:3])))
    assert found[1] < found[0] / 2 and model.vectors == ("sparse",)
    settings = json.loads((out / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    assert settings["model_type"] == "SparseEncoder"
    assert "masked_lm" in mlxbert.load(out, device="cpu").network.heads


def test_a_sparse_model_stays_sparse_and_is_evaluated(tmp_path: Path) -> None:
    folder = save_splade(tmp_path / "m", pooling_strategy="sum")
    for _ in mlxbert.finetune("embed", model=folder, train=PAIRS, output=tmp_path / "out", **QUICK):
        pass
    model = mlxbert.load(tmp_path / "out", task="embed", device="cpu")
    assert not model.sparse_embedder.config.largest
    assert ACTIVE in mlxbert.evaluate("embed", model, data=PAIRS).metrics


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    with pytest.raises(mlxbert.ArgumentError, match="without a masked-LM head for all texts"):
        mlxbert.finetune("embed", model=save_routed(tmp_path / "r"), train=PAIRS, output=tmp_path / "out", **QUICK)
    with pytest.raises(mlxbert.ArgumentError, match="`dimensions` works only for dense"):
        mlxbert.finetune(
            "embed",
            model=save(tmp_path / "m"),
            train=PAIRS,
            output=tmp_path / "out",
            vectors="sparse",
            dimensions=[8],
            **QUICK,
        )


@pytest.mark.slow
def test_sentence_transformers_opens_a_trained_folder(tmp_path: Path) -> None:
    st = pytest.importorskip("sentence_transformers")
    out = tmp_path / "out"
    for _ in mlxbert.finetune("embed", model=save(tmp_path / "m"), train=PAIRS, output=out, vectors="sparse", **QUICK):
        pass
    theirs, model = st.SparseEncoder(str(out), device="cpu"), mlxbert.load(out, task="embed", device="cpu")
    expected = theirs.encode([*TEXTS], convert_to_sparse_tensor=False).float().numpy()
    for row, result in zip(expected, mlxbert.embed_sparse(model, TEXTS), strict=True):
        assert result.ids.tolist() == row.nonzero()[0].tolist() and len(result.ids)
        np.testing.assert_allclose(result.values, row[result.ids], atol=1e-5)
