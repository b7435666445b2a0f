"""Metrics next to numbers worked out by hand, and to those of scikit-learn, scipy and sentence-transformers."""

import math
import random
import warnings
from typing import Any

import numpy as np
import pytest

from mlxbert.errors import ArgumentError, InputError
from mlxbert.train.scores import metrics
from mlxbert.train.scores.linear_models import IDENTITY, SIGMOID, SOFTMAX, fit_linear
from mlxbert.train.scores.metrics import RETRIEVAL, Counts, retrieval_scores
from tests.helpers.cases import together

_MISSING = "needs scikit-learn, scipy and sentence-transformers: pip install -r requirements-parity.txt"
# Rows are expected, columns predicted: a 3 of 4 right, b 1 of 3, c never predicted, d does not occur.
CONFUSION = np.array([[3, 1, 0, 0], [2, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]])


def test_metrics_of_a_confusion_matrix() -> None:
    values = {name: metric(CONFUSION) for name, metric in metrics.OF_CONFUSION.items()}
    assert values == pytest.approx(
        {
            "accuracy": 4 / 8,
            "macro_f1": (0.6 + 0.4) / 3,  # c counts, d does not
            "weighted_f1": (4 * 0.6 + 3 * 0.4) / 8,
            "macro_precision": (1 / 2 + 1 / 2) / 3,
            "macro_recall": (3 / 4 + 1 / 3) / 3,
            # right·N - Σ expected·predicted, over the root of (N² - Σ expected²)(N² - Σ predicted²)
            "matthews": (4 * 8 - (4 * 6 + 3 * 2)) / math.sqrt((64 - 26) * (64 - 40)),
        }
    )
    one_class_only = [[5, 0], [3, 0]], [[5, 3], [0, 0]], [[7, 0], [0, 0]]
    assert [metrics.matthews(np.array(confusion)) for confusion in one_class_only] == [0, 0, 0]


def test_metrics_of_one_label_per_example() -> None:
    values = metrics.classify_metrics(np.array([0, 1, 1]), np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]))
    assert values["accuracy"] == pytest.approx(2 / 3)  # the first of equal probabilities is predicted
    eps = np.finfo(np.float64).eps
    assert values["log_loss"] == pytest.approx(-(math.log(0.5) + math.log(0.75) + math.log(eps)) / 3)


def test_a_threshold_is_not_rounded_to_the_probabilities_dtype() -> None:
    probability = np.float32(0.3)  # 0.300000012
    above = metrics.above(np.array([[probability, probability]]), [float(probability), float(probability) + 1e-10])
    assert above.tolist() == [[True, False]]


def test_correlations_of_what_is_constant_are_zero_and_know_no_scale() -> None:
    for constant in (0.1, 1e-30, 3e8):
        same, other = np.full(7, constant, np.float32), np.arange(7.0)
        for one, two in ((same, other), (other, same), (same, same)):
            assert metrics.pearson(one, two) == metrics.spearman(one, two) == 0
        assert (metrics.r2(same, same), metrics.r2(same, other)) == (1, 0)
    assert metrics.pearson(np.array([1.0]), np.array([2.0])) == 0
    numbers = np.array([1.0, 2.0, 4.0])
    for scale in (1e-200, 1.0, 1e200):
        assert metrics.pearson(numbers * scale, numbers) == pytest.approx(1)
        assert metrics.spearman(numbers * scale, -numbers) == pytest.approx(-1)


@together(
    ("scores", "expected", "threshold"),
    [
        ([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1], 0.25),  # halfway between the neighbours
        ([0.1, 0.2, 0.7, 0.9], [0, 0, 1, 1], 0.5),  # 0.5 is as good as 0.45
        ([0.1, 0.2, 0.3], [0, 0, 0], 0.5),  # no reason for another
        ([0.6, 0.8], [1, 1], 0.5),
        ([0.1, 0.2], [1, 1], 0.05),  # all of them: halfway to 0
        ([0.0, 0.0], [1, 0], 0.0),
        ([0.3, 0.3, 0.1], [1, 0, 0], 0.2),  # equal probabilities stay together
        ([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 1], 0.5),  # F1 2/3 at 0.85, and 2/3 with all
    ],
)
def test_thresholds(scores: list[float], expected: list[int], threshold: float) -> None:
    tuned = metrics.tune_thresholds(np.array(scores)[:, None], np.array(expected, np.bool_)[:, None])
    assert tuned == pytest.approx([threshold])


def test_a_threshold_has_the_best_f1_there_is() -> None:
    rng = np.random.default_rng(2)
    scores = np.round(rng.random((40, 30)), 1).astype(np.float32)  # many ties
    expected = rng.random((40, 30)) < 0.3

    def f1(thresholds: list[float]) -> np.ndarray:
        return Counts.of_matrices(expected, metrics.above(scores, thresholds)).f1

    tuned = f1(metrics.tune_thresholds(scores, expected))
    assert (tuned >= np.max([f1([each / 20 + 0.025] * 30) for each in range(20)], axis=0)).all()


def test_thresholds_of_other_examples_do_not_depend_on_the_example_itself() -> None:
    rng = np.random.default_rng(6)
    scores, expected = rng.random((30, 1)), rng.random((30, 1)) < 0.3
    before = metrics.cross_thresholds(scores, expected)
    for example in range(30):
        changed, other = expected.copy(), scores.copy()
        changed[example], other[example] = ~expected[example], 0.01
        assert metrics.cross_thresholds(other, changed)[example] == before[example]
    for few in (0, 1, 3):
        none = np.zeros((few, 2))
        assert metrics.cross_thresholds(none, none > 0).tolist() == [[0.5, 0.5]] * few


Ranked = dict[str, list[str]]
Judged = dict[str, dict[str, float]]


def made_up(seed: int, grades: tuple[int, ...]) -> tuple[Ranked, Judged]:
    """Rankings of 130 documents, parts of some, and sparse judgements."""
    rng = random.Random(seed)
    documents = [f"d{number}" for number in range(130)]
    ranked, judged = {}, {}
    for number in range(12):
        query = f"q{number}"
        ranked[query] = rng.sample(documents, rng.choice([3, 60, 130]))
        judged[query] = {
            document: float(rng.choice(grades)) for document in rng.sample(documents, rng.choice([1, 9, 120]))
        }
        judged[query]["d0"] = 1.0
    return ranked, judged


def second(ranked: list[str], judged: dict[str, float]) -> dict[str, float]:
    """The metrics, one document at a time."""
    relevant = [document for document in judged if judged[document] > 0]
    gain = sum(max(judged.get(one, 0), 0) / math.log2(place + 1) for place, one in enumerate(ranked[:10], 1))
    best = sorted((judged[one] for one in relevant), reverse=True)[:10]
    ideal = sum(grade / math.log2(place + 1) for place, grade in enumerate(best, 1))
    precisions = [
        sum(other in relevant for other in ranked[:place]) / place
        for place, one in enumerate(ranked, 1)
        if one in relevant
    ]
    first = [place for place, one in enumerate(ranked[:10], 1) if one in relevant]
    return {
        "ndcg@10": gain / ideal,
        "map": sum(precisions) / len(relevant),
        "mrr@10": 1 / first[0] if first else 0.0,
        "recall@10": len({*ranked[:10]} & {*relevant}) / len(relevant),
        "recall@100": len({*ranked[:100]} & {*relevant}) / len(relevant),
    }


@pytest.mark.parametrize("grades", [(0, 1), (-1, 0, 1, 2, 3, 4)])
def test_scores_of_rankings_are_those_of_the_definitions(grades: tuple[int, ...]) -> None:
    ranked, judged = made_up(1, grades)
    found = retrieval_scores(ranked, judged)
    for number, query in enumerate(found.queries):
        for name, value in second(ranked[query], judged[query]).items():
            assert found.values[name][number] == pytest.approx(value, abs=1e-12), name
    assert tuple(found.means()) == RETRIEVAL
    low, high = found.interval("map")
    assert low < found.means()["map"] < high


def test_queries_without_relevant_documents_are_left_out_and_those_without_a_ranking_score_0() -> None:
    judged = {"q": {"a": 1.0}, "none": {"a": 0.0}, "empty": {"a": 1.0}, "missing": {"a": 1.0}}
    found = retrieval_scores({"q": ["a"], "none": ["a"], "unjudged": ["a"], "empty": []}, judged)
    assert found.queries == ("q", "empty", "missing")
    assert {name: values.tolist() for name, values in found.values.items()} == {name: [1, 0, 0] for name in RETRIEVAL}
    with pytest.raises(InputError):
        retrieval_scores({"q": ["a"]}, {"q": {"a": 0.0}})
    with pytest.raises(ArgumentError):
        retrieval_scores({"q": ["a", "a"]}, judged)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_sentence_transformers(seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        library = pytest.importorskip("sentence_transformers.evaluation", reason=_MISSING)
    ranked, judged = made_up(seed, (0, 1))
    relevant = {query: {one for one, grade in found.items() if grade} for query, found in judged.items()}
    documents = {one for found in (*ranked.values(), *judged.values()) for one in found}
    theirs = library.InformationRetrievalEvaluator(
        {query: query for query in ranked}, {one: one for one in documents}, relevant,
        ndcg_at_k=[10], map_at_k=[1000], mrr_at_k=[10], precision_recall_at_k=[10, 100],
    )  # fmt: skip
    hits: list[object] = [
        [{"corpus_id": one, "score": -place} for place, one in enumerate(ranked[query])] for query in theirs.queries_ids
    ]
    expected = theirs.compute_metrics(hits)
    found = retrieval_scores(ranked, judged).means()
    # Their MAP is divided by all relevant documents, as ours is, where no more than 1,000 are relevant.
    places = {"ndcg": 10, "mrr": 10, "map": 1000}
    wanted = [expected[f"{name}@k"][place] for name, place in places.items()]
    wanted += [expected["recall@k"][depth] for depth in (10, 100)]
    names = "ndcg@10", "mrr@10", "map", "recall@10", "recall@100"
    assert [found[name] for name in names] == pytest.approx(wanted, abs=1e-12)


@pytest.fixture(scope="module")
def learn() -> Any:
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of one class only, and of what is constant
@together("seed", range(20))
def test_metrics_of_one_label_per_example_are_those_of_scikit_learn(seed: int, learn: Any) -> None:
    expected, probabilities, labels = _one_label(seed)
    found, predicted = metrics.classify_metrics(expected, probabilities), probabilities.argmax(1)
    averages = {
        "macro_f1": learn.f1_score, "weighted_f1": learn.f1_score,
        "macro_precision": learn.precision_score, "macro_recall": learn.recall_score,
    }  # fmt: skip
    wanted = {
        name: score(expected, predicted, average=name.partition("_")[0], zero_division=0)
        for name, score in averages.items()
    } | {
        "accuracy": learn.accuracy_score(expected, predicted),
        "matthews": learn.matthews_corrcoef(expected, predicted),
        "log_loss": learn.log_loss(expected, probabilities, labels=range(labels)),
    }
    assert found == pytest.approx(wanted, rel=1e-6 if probabilities.dtype == np.float32 else 1e-12, abs=1e-12)
    confusion = metrics.confusion_matrix(expected, predicted, labels)
    assert (confusion == learn.confusion_matrix(expected, predicted, labels=range(labels))).all()
    counts = metrics.Counts(np.diag(confusion), confusion.sum(0), confusion.sum(1))
    each = learn.precision_recall_fscore_support(expected, predicted, labels=range(labels), zero_division=0)
    assert np.allclose([counts.precision, counts.recall, counts.f1, counts.expected], each)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of one class only, and of what is constant
@together("seed", range(20))
def test_metrics_of_several_labels_per_example_are_those_of_scikit_learn(seed: int, learn: Any) -> None:
    rng = np.random.default_rng(seed)
    examples, labels = int(rng.integers(1, 50)), int(rng.integers(1, 8))
    expected = rng.random((examples, labels)) < rng.choice([0, 0.2, 0.9], labels)
    probabilities, thresholds = rng.random((examples, labels)), rng.choice([0.2, 0.6, 1.5], labels)
    predicted = probabilities >= thresholds
    found = metrics.multilabel_metrics(expected, probabilities, thresholds.tolist())
    target = expected.astype(int)
    of_labels: dict[str, Any] = {"y_true": target, "y_pred": predicted.astype(int), "zero_division": 0}
    scores = {
        f"{average}_{name}": getattr(learn, f"{name}_score")(average=average, **of_labels)
        for average in ("micro", "macro", "weighted")
        for name in ("f1", "precision", "recall")
    }
    some = np.flatnonzero((expected | predicted).any(0))
    scores["macro_f1"] = learn.f1_score(average="macro", labels=some, **of_labels) if len(some) else 0.0
    if labels == 1:  # scikit-learn takes one column for a binary problem, and averages over both classes
        scores["macro_f1"] = scores["weighted_f1"] = learn.f1_score(target[:, 0], predicted[:, 0], zero_division=0)
        scores |= {name: found[name] for name in ("micro_f1", "micro_precision", "micro_recall")}
    scores["subset_accuracy"] = learn.accuracy_score(target, predicted.astype(int))
    scores["log_loss"] = learn.log_loss(target.ravel(), probabilities.ravel(), labels=[0, 1])
    assert found == pytest.approx({name: scores[name] for name in found}, rel=1e-12, abs=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of one class only, and of what is constant
@together("seed", range(20))
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
    wanted = {
        "spearman": np.nan_to_num(stats.spearmanr(expected, predicted).statistic),  # NaN of what is constant
        "pearson": np.nan_to_num(stats.pearsonr(expected, predicted).statistic),
        "mse": learn.mean_squared_error(expected, predicted),
        "mae": learn.mean_absolute_error(expected, predicted),
        "r2": learn.r2_score(expected, predicted),
    }
    assert metrics.regress_metrics(expected, predicted) == pytest.approx(wanted, rel=1e-10, abs=1e-12)


@pytest.mark.slow
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
