"""Training of token vectors: the loss, the folder that it writes, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.machine.device import mx
from mlxbert.train.loop.events import Step
from mlxbert.train.nn.vector_losses import late_interaction
from tests.helpers import token_folders

RANDOM = np.random.default_rng(5)
WORDS = ("cat", "dog", "mat", "paris", "tokyo", "city", "store", "milk", "man", "largest")
PAIRS = [{"text": f"the {word} ?", "positive": f"he went to {word} , {word} ."} for word in WORDS]


def test_the_loss_is_the_cross_entropy_of_maxsim() -> None:
    queries, documents = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((3, 4, 8), (5, 6, 8)))
    of_queries, of_documents = RANDOM.random((3, 4)) < 0.8, RANDOM.random((5, 6)) < 0.7
    excluded = np.zeros((3, 5), dtype=bool)
    excluded[0, 3] = True
    scores = np.array([
        [(queries[q] @ documents[d][of_documents[d]].T).max(axis=1)[of_queries[q]].sum() / 2 for d in range(5)]
        for q in range(3)
    ])  # fmt: skip
    scores[0, 3] = -np.inf
    expected = sum(np.log(np.exp(scores[q]).sum()) - scores[q, q] for q in range(3))
    arrays = (mx.array(array) for array in (queries, of_queries, documents, of_documents, excluded))
    assert late_interaction(*arrays, temperature=2.0).item() == pytest.approx(expected, rel=1e-5)


def _trained(folder: Path, output: Path, **options: Any) -> mlxbert.Model:
    settings: dict[str, Any] = {"vectors": "tokens", "epochs": 1, "batch_size": 4, "device": "cpu", **options}
    trained: mlxbert.Model = mlxbert.finetune("embed", train=PAIRS, output=output, model=folder, **settings).run()
    return trained


@pytest.mark.slow
def test_a_model_of_texts_learns_and_is_written_as_a_folder_of_pylate(tmp_path: Path) -> None:
    events = mlxbert.finetune(
        "embed", train=PAIRS, valid=PAIRS, output=tmp_path / "out", vectors="tokens", dimensions=(16,), max_length=20,
        epochs=8, batch_size=10, lr=3e-4, device="cpu",
    )  # fmt: skip
    losses = [event.loss for event in events if isinstance(event, Step)]
    assert losses[-1] < losses[0] / 2
    settings = json.loads((tmp_path / "out" / "config_sentence_transformers.json").read_text())
    modules = json.loads((tmp_path / "out" / "modules.json").read_text())
    assert settings["query_length"] == settings["document_length"] == 20
    assert [module["type"] for module in modules[1:]] == ["pylate.models.Dense.Dense"]
    opened = mlxbert.load(tmp_path / "out")
    assert opened.vectors == ("tokens",) and opened.token_embedder.size == 16
    positives = [pair["positive"] for pair in PAIRS]
    assert [mlxbert.rerank(opened, pair["text"], positives)[0].text for pair in PAIRS] == positives


@pytest.mark.slow
def test_a_model_of_tokens_keeps_its_settings_and_layers(tmp_path: Path) -> None:
    base = token_folders.PYLATE["chained"](tmp_path / "base")
    _trained(base, tmp_path / "out", lr=1e-9)
    before, after = mlxbert.load(base), mlxbert.load(tmp_path / "out")
    assert after.token_embedder.config == before.token_embedder.config
    first, second = (np.asarray(mlxbert.embed_tokens(model, "the cat sat")) for model in (before, after))
    assert np.abs(first - second).max() < 1e-4


def test_what_cannot_be_trained_is_refused_before_training(tmp_path: Path) -> None:
    base = token_folders.encoder(tmp_path / "base")
    for options in ({"symmetric": True}, {"loss": "triplet"}, {"dimensions": (8, 4)}, {"pooling": "mean"}):
        with pytest.raises(ArgumentError, match=next(iter(options))):
            _trained(base, tmp_path / "out", **options)
    of_tokens = token_folders.PYLATE["usual"](tmp_path / "tokens")
    for model, vectors in ((base, "tokens"), (of_tokens, "auto")):
        with pytest.raises(ArgumentError, match="lora"):
            _trained(model, tmp_path / "out", vectors=vectors, lora=2)
    with pytest.raises(MlxbertError, match="settings"):
        _trained(token_folders.MULTI_VECTOR["min"](tmp_path / "min"), tmp_path / "out")
    assert not (tmp_path / "out").exists()
