"""Reranking after a search by vectors: the same rankings and scores as when each step is done by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, CheckpointError, InputError, MissingHeadError
from mlxbert.labels.labels import Labels
from mlxbert.train.data.retrieval import read_retrieval
from mlxbert.train.scores.metrics import RETRIEVAL, retrieval_scores
from tests.helpers.classifiers import SENTIMENT, save_classifier
from tests.train.data.test_retrieval import beir
from tests.train.test_rerank import groups

SCORE = Labels(("LABEL_0",))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, unit_folder: Path) -> tuple[mlxbert.Model, mlxbert.Model]:
    folder = save_classifier(tmp_path_factory.mktemp("models") / "m", SCORE)
    return mlxbert.load(folder, task="classify", dtype="float32"), mlxbert.load(unit_folder, dtype="float32")


def test_scores_are_those_of_the_steps_by_hand(models: tuple[mlxbert.Model, mlxbert.Model]) -> None:
    model, embedder = models
    told: list[tuple[int, int]] = []
    data = groups(4)
    found = mlxbert.evaluate_reranking(
        model, embedder, data=data, top_k=5, on_progress=lambda done, total: told.append((done, total))
    )
    retrieval = read_retrieval(data)
    names = [*retrieval.documents]
    before, after = {}, {}
    for query, text in retrieval.queries.items():
        nearest = mlxbert.similarity(embedder, text, [*retrieval.documents.values()], top_k=5)
        before[query] = [names[one.index] for one in nearest]
        after[query] = [before[query][one.index] for one in mlxbert.rerank(model, text, [one.text for one in nearest])]
    first, second = (retrieval_scores(ranked, retrieval.judgements).means() for ranked in (before, after))
    assert found.metrics == pytest.approx(second | {f"before_{name}": value for name, value in first.items()}, abs=1e-6)
    assert (found.task, found.metric, found.examples) == ("rerank", RETRIEVAL[0], len(retrieval.queries))
    assert found.interval[0] <= found.score <= found.interval[1] and told[-1] == (4, 4)
    assert found.metrics["recall@100"] == found.metrics["before_recall@100"]


def test_folders_and_metrics(models: tuple[mlxbert.Model, mlxbert.Model], tmp_path: Path) -> None:
    folder = beir(tmp_path / "set")
    found = mlxbert.evaluate_reranking(*models, data=folder, metric="map")
    assert found.metric == "map" and found.examples == 2 and found.metrics["recall@10"] == 1.0
    assert np.isfinite([*found.metrics.values()]).all() and len(found.data) == 3


@pytest.mark.parametrize("options", [{"top_k": 0}, {"metric": "f1"}])
def test_bad_arguments_are_refused(models: tuple[mlxbert.Model, mlxbert.Model], options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        mlxbert.evaluate_reranking(*models, data=groups(3), **options)


def test_other_models_and_data_are_refused(models: tuple[mlxbert.Model, mlxbert.Model], tmp_path: Path) -> None:
    model, embedder = models
    several = mlxbert.load(save_classifier(tmp_path / "m", SENTIMENT), task="classify")
    with pytest.raises(CheckpointError):
        mlxbert.evaluate_reranking(several, embedder, data=groups(3))
    with pytest.raises(MissingHeadError):
        mlxbert.evaluate_reranking(embedder, embedder, data=groups(3))
    with pytest.raises(ArgumentError):
        mlxbert.evaluate_reranking(model, "builtin", data=groups(3))  # type: ignore[arg-type]
    with pytest.raises(InputError):
        mlxbert.evaluate_reranking(model, embedder, data=[{"query": "a", "negatives": "x"}])
