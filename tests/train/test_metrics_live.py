"""Metrics next to those of scikit-learn and scipy."""

import warnings
from typing import Any

import numpy as np
import pytest

from mlxbert.train.scores import metrics
from mlxbert.train.scores.linear_models import IDENTITY, SIGMOID, SOFTMAX, fit_linear

pytestmark = [pytest.mark.slow, pytest.mark.sampled]
_MISSING = "needs scikit-learn and scipy: pip install -r requirements-parity.txt"


@pytest.fixture(scope="module")
def learn() -> Any:
    """The metrics of scikit-learn; not imported where these tests are only collected."""
    return pytest.importorskip("sklearn.metrics", reason=_MISSING)


def _one_label(seed: int) -> tuple[Any, Any, int]:
    """Label numbers and probabilities; some labels are never expected, never predicted, or neither."""
    rng = np.random.default_rng(seed)
    labels, examples = int(rng.integers(2, 8)), int(rng.integers(1, 60))
    probabilities = rng.random((examples, labels)) ** 3
    probabilities[:, rng.random(labels) < 0.3] = 1e-6
    probabilities = probabilities / probabilities.sum(1, keepdims=True)
    expected = rng.integers(0, rng.integers(1, labels + 1), examples)
    return expected, probabilities.astype([np.float32, np.float64][seed % 2]), labels


@pytest.mark.parametrize("seed", range(60))
def test_metrics_of_one_label_per_example_are_those_of_scikit_learn(seed: int, learn: Any) -> None:
    expected, probabilities, labels = _one_label(seed)
    found, predicted = metrics.classify_metrics(expected, probabilities), probabilities.argmax(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one class only
        wanted = {
            "accuracy": learn.accuracy_score(expected, predicted),
            "macro_f1": learn.f1_score(expected, predicted, average="macro", zero_division=0),
            "weighted_f1": learn.f1_score(expected, predicted, average="weighted", zero_division=0),
            "macro_precision": learn.precision_score(expected, predicted, average="macro", zero_division=0),
            "macro_recall": learn.recall_score(expected, predicted, average="macro", zero_division=0),
            "matthews": learn.matthews_corrcoef(expected, predicted),
            "log_loss": learn.log_loss(expected, probabilities, labels=range(labels)),
        }
    assert found == pytest.approx(wanted, rel=1e-6 if probabilities.dtype == np.float32 else 1e-12, abs=1e-12)
    confusion = metrics.confusion_matrix(expected, predicted, labels)
    assert (confusion == learn.confusion_matrix(expected, predicted, labels=range(labels))).all()
    counts = metrics.Counts(np.diag(confusion), confusion.sum(0), confusion.sum(1))
    each = learn.precision_recall_fscore_support(expected, predicted, labels=range(labels), zero_division=0)
    assert np.allclose([counts.precision, counts.recall, counts.f1, counts.expected], each)


@pytest.mark.parametrize("seed", range(60))
def test_metrics_of_several_labels_per_example_are_those_of_scikit_learn(seed: int, learn: Any) -> None:
    rng = np.random.default_rng(seed)
    examples, labels = int(rng.integers(1, 50)), int(rng.integers(1, 8))
    expected = rng.random((examples, labels)) < rng.choice([0, 0.2, 0.9], labels)
    probabilities, thresholds = rng.random((examples, labels)), rng.choice([0.2, 0.6, 1.5], labels)
    predicted = probabilities >= thresholds
    found = metrics.multilabel_metrics(expected, probabilities, thresholds.tolist())
    target = expected.astype(int)
    scores = {
        f"{average}_{name}": score(target, predicted.astype(int), average=average, zero_division=0)
        for average in ("micro", "macro", "weighted")
        for name, score in (
            ("f1", learn.f1_score),
            ("precision", learn.precision_score),
            ("recall", learn.recall_score),
        )
    }
    occurring = np.flatnonzero((expected | predicted).any(0))
    scores["macro_f1"] = (
        learn.f1_score(target, predicted.astype(int), average="macro", zero_division=0, labels=occurring)
        if len(occurring)
        else 0.0
    )
    if labels == 1:  # scikit-learn takes one column for a binary problem, and averages over both classes
        scores["macro_f1"] = scores["weighted_f1"] = learn.f1_score(target[:, 0], predicted[:, 0], zero_division=0)
        scores |= {name: found[name] for name in ("micro_f1", "micro_precision", "micro_recall")}
    scores["subset_accuracy"] = learn.accuracy_score(target, predicted.astype(int))
    scores["log_loss"] = learn.log_loss(target.ravel(), probabilities.ravel(), labels=[0, 1])
    assert found == pytest.approx({name: scores[name] for name in found}, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("seed", range(60))
def test_metrics_of_numbers_are_those_of_scipy(seed: int, learn: Any) -> None:
    stats = pytest.importorskip("scipy.stats", reason=_MISSING)
    rng = np.random.default_rng(seed)
    examples = int(rng.integers(2, 80))
    expected = rng.normal(size=examples) * 10 ** rng.uniform(-3, 3)
    predicted = expected * rng.choice([0, 1]) + rng.normal(size=examples)
    if seed % 3 == 0:
        expected, predicted = np.round(expected), np.round(predicted)  # ties
    if seed % 10 == 1:
        predicted = np.full(examples, 0.3)
    if seed % 10 == 2:
        expected = np.full(examples, 0.25)  # the mean of 0.3 is rounded, and scikit-learn's R² is -1e32 then
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is constant
        wanted = {
            "spearman": stats.spearmanr(expected, predicted).statistic,
            "pearson": stats.pearsonr(expected, predicted).statistic,
            "mse": learn.mean_squared_error(expected, predicted),
            "mae": learn.mean_absolute_error(expected, predicted),
            "r2": learn.r2_score(expected, predicted),
        }
    for name in ("spearman", "pearson"):
        wanted[name] = 0.0 if np.isnan(wanted[name]) else wanted[name]
    assert metrics.regress_metrics(expected, predicted) == pytest.approx(wanted, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("labels", [3, 6])
def test_the_logistic_regression_is_that_of_scikit_learn(labels: int) -> None:
    linear = pytest.importorskip("sklearn.linear_model", reason=_MISSING)
    rng = np.random.default_rng(labels)
    vectors = rng.normal(size=(500, 40)) * rng.uniform(0, 5, 40) + 3
    logits = (vectors - 3) @ rng.normal(size=(40, labels)) * 0.2
    numbers = (logits + rng.gumbel(size=logits.shape)).argmax(1)
    scaled = vectors - vectors.mean(0)
    scaled /= np.sqrt((scaled**2).sum(1).mean())

    wanted = linear.LogisticRegression(C=1, max_iter=5000, tol=1e-9).fit(scaled, numbers).predict_proba(scaled)
    found = fit_linear(vectors, np.eye(labels)[numbers], SOFTMAX)(vectors)
    assert np.abs(found - wanted).max() < 5e-3

    several = logits > 0
    each = [linear.LogisticRegression(C=1, max_iter=5000, tol=1e-9).fit(scaled, column) for column in several.T]
    wanted = np.stack([one.predict_proba(scaled)[:, 1] for one in each], 1)
    assert np.abs(fit_linear(vectors, several.astype(float), SIGMOID)(vectors) - wanted).max() < 5e-3

    wanted = linear.Ridge(alpha=1).fit(scaled, logits[:, 0]).predict(scaled)
    assert fit_linear(vectors, logits[:, 0], IDENTITY)(vectors) == pytest.approx(wanted, abs=1e-6)
