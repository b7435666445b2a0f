"""Training of cross-encoders next to sentence-transformers: losses, gradients, scores of a finished folder, metrics."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.machine.device import mx
from mlxbert.nn import dropout
from mlxbert.train.data.relevance import JudgedPair
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.rerank import Rerank
from tests.helpers.classifiers import save_classifier
from tests.helpers.gradients import assert_same_gradients, our_step, their_gradients
from tests.train.test_rerank import SMALL, pairs
from tests.train.test_search import SCORE

torch = pytest.importorskip("torch", reason="parity needs torch: pip install -r requirements-parity.txt")
library = pytest.importorskip("sentence_transformers", reason="parity needs sentence-transformers")
pytestmark = pytest.mark.slow

BOUND = 1e-5
LOSSES = {"bce": "BinaryCrossEntropyLoss", "mse": "MSELoss"}


def gradients_of_theirs(theirs: Any, kind: str, records: list[JudgedPair], folder: Path) -> tuple[float, Any]:
    """The loss and the gradients by our names; the model is in training mode, without dropout."""
    for module in theirs.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    theirs.train()
    loss_of = getattr(library.cross_encoder.losses, LOSSES[kind])(theirs)
    texts = [[record.text for record in records], [record.pair for record in records]]
    loss = loss_of(texts, torch.tensor([record.label for record in records]))
    loss.backward()
    return loss.item(), their_gradients(theirs.transformers_model, folder)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_first_step_is_that_of_sentence_transformers(kind: str, tmp_path: Path) -> None:
    folder = save_classifier(tmp_path / "m", SCORE)
    model = mlxbert.load(folder, task="classify", dtype="float32")
    objective = make_objective("rerank", loss=kind)
    assert isinstance(objective, Rerank)
    objective.bind(model)
    data = pairs(12, graded=kind == "mse")
    records = [JudgedPair(one["query"], one["text"], one["label"] / (5 if kind == "mse" else 1), "") for one in data]
    batch = objective.collate([objective.prepare(record) for record in records], random.Random())
    dropout.set_rate(model.network, 0.0)

    def loss(network: Any) -> mx.array:
        summed, weight = objective.loss(network, batch)
        return summed / weight

    found, gradients = our_step(model.network, loss)
    theirs = library.CrossEncoder(str(folder), device="cpu")
    expected, arrays = gradients_of_theirs(theirs, kind, records, tmp_path / "gradients")
    assert found == pytest.approx(expected, rel=BOUND)
    assert_same_gradients(gradients, arrays, BOUND)


@pytest.mark.parametrize("kind", LOSSES)
def test_a_trained_folder_has_the_same_scores_in_the_cross_encoder(kind: str, tmp_path: Path) -> None:
    start = save_classifier(tmp_path / "m", SCORE)
    data = pairs(80)
    events = mlxbert.finetune(
        "rerank", train=data, model=start, output=tmp_path / "out", epochs=1, lr=1e-3, loss=kind, check=True
    )
    *_, last = events
    assert getattr(last, "check", None) is not None
    asked = [(one["query"], f"{one['text']} {' '.join(SMALL[:number])}") for number, one in enumerate(pairs(30, 7))]
    theirs = library.CrossEncoder(str(tmp_path / "out"), device="cpu").predict(asked)
    model = mlxbert.load(tmp_path / "out", task="classify", dtype="float32")
    ours = [mlxbert.rerank(model, query, [text])[0].score for query, text in asked]
    assert np.abs(np.array(ours) - theirs).max() <= BOUND
