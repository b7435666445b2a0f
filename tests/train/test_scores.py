"""Evaluations made of predictions, of every task, and what is said about them in a sentence."""

import json
import math
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxbert
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.labels.labels import Labels
from mlxbert.model import Model
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.data.questions import Question
from mlxbert.train.data.tagged_sentences import TaggedSentence
from mlxbert.train.objectives import make_objective, text_objective
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.scores import answer_scores, metrics
from mlxbert.train.scores.evaluation_summary import Evaluation, weakest
from mlxbert.train.scores.labelled_scores import classification, multilabel, regression
from mlxbert.train.scores.linear_models import IDENTITY, SIGMOID, SOFTMAX, fit_linear
from mlxbert.train.scores.metrics import RETRIEVAL, Counts, retrieval_scores
from mlxbert.train.scores.tag_scores import Prediction, metrics_of, tag_interval, tag_metrics, tagging, tally
from tests.helpers import tiny
from tests.helpers.cases import together
from tests.train.data.test_tag_schemes import ENTITY_SCHEMES, random_tags
from tests.train.test_tag import tagged

NAMES = ("ABBR", "DESC", "NUM")


def records(*labels: Any) -> list[LabelledText]:
    return [LabelledText(f"text {number}", None, label, f"test.csv, line {number + 2}")
            for number, label in enumerate(labels)]  # fmt: skip


def classified(**options: Any) -> Evaluation:
    probabilities = np.array([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.0, 0.9, 0.1], [0.2, 0.1, 0.7]], np.float32)
    given = records("ABBR", "ABBR", "NUM", "NUM")
    return classification(given, NAMES, probabilities, model="m", data=("test.csv",), **options)


def test_an_evaluation_of_one_label_per_example() -> None:
    found = classified(truncated=3)
    assert (found.task, found.model, found.data, found.truncated) == ("classify", "m", ("test.csv",), 3)
    assert (found.examples, found.metric, found.score) == (4, "accuracy", 0.5)
    assert found.confusion == ((1, 1, 0), (0, 0, 0), (0, 1, 1))
    rows = [(each.label, each.precision, each.recall, each.support) for each in found.labels]
    assert rows == [("ABBR", 1, 0.5, 2), ("DESC", 0, 0, 0), ("NUM", 1, 0.5, 2)]
    surest, second = found.mistakes
    assert (surest.text, surest.expected, surest.predicted) == ("text 2", "NUM", "DESC")
    assert (surest.place, second.text) == ("test.csv, line 4", "text 1")
    assert (surest.score, second.score) == pytest.approx((0.9, 0.6))
    assert found.interval == pytest.approx((0.1500, 0.8500), abs=1e-4)  # Wilson's of 2 of 4


def test_an_evaluation_of_several_labels_per_example() -> None:
    given = records(("ABBR", "NUM"), (), ("DESC",))
    probabilities = np.array([[0.9, 0.2, 0.1], [0.1, 0.3, 0.2], [0.2, 0.6, 0.3]], np.float32)
    found = multilabel(given, NAMES, probabilities, thresholds=[0.5, 0.25, 0.5], model="m", data=())
    assert (found.task, found.metric, found.confusion) == ("multilabel", "macro_f1", None)
    assert found.score == pytest.approx((1 + 2 / 3 + 0) / 3)
    assert found.metrics["subset_accuracy"] == pytest.approx(1 / 3)
    assert [each.support for each in found.labels] == [1, 1, 1]
    missed, added = found.mistakes
    assert (missed.expected, missed.predicted) == ("ABBR, NUM", "ABBR")
    assert (added.expected, added.predicted) == ("", "DESC")
    assert (missed.score, added.score) == pytest.approx((0.9, 0.3))
    assert (missed.label, added.label) == ("NUM", "DESC")
    usual = multilabel(given, NAMES, probabilities, model="m", data=())
    assert usual.labels[1].precision == 1  # with a threshold of 0.5


def test_an_evaluation_of_numbers() -> None:
    found = regression(records(1.0, 2.0, 3.0, 4.0), np.array([1.0, 2.5, 2.25, 4.0], np.float32), model="m", data=())
    assert (found.task, found.metric, found.labels, found.confusion) == ("regress", "spearman", (), None)
    assert found.score == pytest.approx(0.8)
    mistakes = [(each.expected, each.predicted, each.score) for each in found.mistakes]
    assert mistakes == [("3", "2.25", 0.75), ("2", "2.5", 0.5)]
    many = regression(records(*range(30)), np.arange(30) * 2.0, model="m", data=()).mistakes
    assert [each.score for each in many] == [float(each) for each in range(29, 19, -1)]  # at most ten, the worst first


def test_an_evaluation_is_json_of_finite_predictions_and_known_labels() -> None:
    constant = regression(records(1, 2, 3), np.ones(3), model="m", data=())
    for evaluation in (classified(), constant):
        json.dumps(evaluation.to_dict(), allow_nan=False)
    assert (constant.score, constant.interval) == (0, (0, 0))
    with pytest.raises(MlxbertError, match="not finite"):
        classification(records("ABBR", "NUM"), NAMES, np.full((2, 3), np.nan), model="m", data=())
    with pytest.raises(InputError, match=r"line 3.*'abbr'"):
        classification(records("ABBR", "abbr"), NAMES, np.ones((2, 3)), model="m", data=())


@pytest.mark.parametrize("task", ("classify", "multilabel", "regress"))
def test_every_metric_can_be_the_main_one_and_lies_in_its_interval(task: str) -> None:
    rng = np.random.default_rng(4)
    target = rng.integers(0, 3, 200)
    probabilities = rng.dirichlet([1, 1, 1], 200) * 0.6 + np.eye(3)[target] * 0.4
    probabilities[::9] = np.roll(probabilities[::9], 1, axis=1)  # mistakes
    for metric in TASKS[task].metrics:
        about: Any = {"metric": metric, "model": "m", "data": ()}
        if task == "classify":
            found = classification(records(*(NAMES[each] for each in target)), NAMES, probabilities, **about)
        elif task == "multilabel":
            found = multilabel(records(*((NAMES[each],) for each in target)), NAMES, probabilities, **about)
        else:
            found = regression(records(*target), target + rng.normal(size=200) / 2, **about)
        assert found.score == found.metrics[metric] and found.metrics.keys() == {*TASKS[task].metrics}
        low, high = found.interval
        assert low < found.score < high < low + 0.4
        assert (found.interval == metrics.wilson(found.score, 200)) == (metric in found.spec.shares)  # as the view says


KINDS = ("ABBR", "DESC", "NUM", "HUM")


def evaluated(confusion: list[list[int]]) -> Evaluation:
    cells = [(row, column, count) for row, counts in enumerate(confusion) for column, count in enumerate(counts)]
    pairs = [(row, column) for row, column, count in cells for _ in range(count)]
    given = records(*(KINDS[row] for row, _ in pairs))
    return classification(given, KINDS, np.eye(4)[[column for _, column in pairs]], model="m", data=())


@pytest.mark.parametrize(
    ("confusion", "facts"),
    [
        ([[4, 3, 2, 0], [0, 50, 0, 0], [0, 1, 50, 0], [0, 0, 0, 0]], ("ABBR", "recall 0.44", "9 examples", "DESC")),
        ([[4, 0, 0, 0], [1, 50, 0, 0], [5, 0, 50, 0], [0, 0, 0, 9]], ("ABBR", "precision 0.40", "4 examples", "NUM")),
        ([[0, 1, 0, 0], [0, 50, 0, 0], [0, 0, 50, 0], [0, 0, 0, 9]], ("ABBR", "recall 0.00", "1 example", "DESC")),
        ([[9, 0, 0, 0], [0, 9, 0, 0], [0, 0, 9, 0], [0, 0, 0, 0]], None),  # no mistakes
        ([[5, 4, 0, 0], [4, 5, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], None),  # all alike
        ([[5, 4, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], None),  # one label only
    ],
)
def test_the_weakest_label(confusion: list[list[int]], facts: tuple[str, ...] | None) -> None:
    sentence = weakest(evaluated(confusion))
    assert sentence is None if facts is None else sentence and all(fact in sentence for fact in facts)


def test_the_weakest_of_several_labels_and_of_numbers() -> None:
    given = records(("ABBR", "NUM"), ("NUM",), ("NUM",))
    probabilities = np.array([[0.1, 0, 0.9, 0], [0, 0, 0.9, 0], [0, 0, 0.9, 0]])
    assert "ABBR: recall 0.00" in (weakest(multilabel(given, KINDS, probabilities, model="m", data=())) or "")
    about: Any = {"model": "m", "data": ()}
    sentence = weakest(regression(records(1.0, 2.0, 5.0), np.array([1.0, 2.5, 2.0]), **about)) or ""
    assert "by 3 " in sentence and "(test.csv, line 4)" in sentence and "by 1.17" in sentence
    assert weakest(regression(records(1.0, 2.0), np.array([1.0, 2.0]), **about)) is None


def test_intervals_of_a_mean_and_of_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.train.scores.metrics.RESAMPLES", 1000)
    values = np.random.default_rng(0).normal(5, 2, 400)
    low, high = metrics.bootstrap(lambda some: float(values[some].mean()), 400)
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.2 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.2 * error)
    first, again, other = (
        metrics.bootstrap(lambda some: float(values[some].mean()), 50, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other
    published = {
        (0, 10): (0.0, 0.2775),
        (10, 10): (0.7225, 1.0),
        (5, 10): (0.2366, 0.7634),
        (81, 263): (0.2553, 0.3662),
    }
    for (right, examples), interval in published.items():  # Newcombe 1998
        assert metrics.wilson(right / examples, examples) == pytest.approx(interval, abs=1e-4)


def _score(
    of: Callable[[metrics.Counts], float], expected: metrics.Bools, predicted: metrics.Bools, some: metrics.Ints
) -> float:
    return of(metrics.Counts.of_matrices(expected[some], predicted[some]))


def test_intervals_of_resamples_are_those_of_the_metric_on_them() -> None:
    """The shortcuts that make resampling fast change nothing."""
    rng = np.random.default_rng(3)
    probabilities, expected = rng.random((60, 3)), rng.random((60, 3)) < 0.4
    predicted = probabilities >= 0.5
    for metric in ("macro_f1", "micro_recall"):
        slow = metrics.bootstrap(partial(_score, metrics.OF_COUNTS[metric], expected, predicted), 60)
        assert metrics.multilabel_interval(metric, expected, predicted, probabilities) == pytest.approx(slow)
    numbers, values = np.round(rng.normal(size=60)), rng.normal(size=60)
    slow = metrics.bootstrap(lambda some: metrics.spearman(numbers[some], values[some]), 60)
    assert metrics.regress_interval("spearman", numbers, values) == pytest.approx(slow)


ABOUT: Any = {"model": "m", "data": ("d",)}


def words(*tags: str, place: str = "test.conll, line 1") -> TaggedSentence:
    return replace(tagged([f"w{number}" for number in range(len(tags))], [*tags]), place=place)


def predicted(tags: str, sure: float = 0.9) -> Prediction:
    return Prediction(tags.split(), [sure] * len(tags.split()))


def test_an_entity_is_right_with_its_type_and_both_ends() -> None:
    expected = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O"]]
    given = [["B-PER", "O", "O", "B-LOC"], ["B-LOC", "O"]]
    found = tally(expected, given, "iob2")
    assert found.names == ("LOC", "ORG", "PER")
    scores = tag_metrics(found, "iob2")
    assert scores["precision"] == scores["recall"] == scores["f1"] == pytest.approx(1 / 3)
    assert scores["accuracy"] == pytest.approx(4 / 6)
    assert scores["macro_f1"] == pytest.approx((2 / 3 + 0 + 0) / 3) and scores["macro_recall"] == pytest.approx(1 / 3)
    assert scores["weighted_f1"] == pytest.approx(2 / 3 / 3)


def test_plain_tags_are_counted_word_by_word_and_nothing_is_undefined() -> None:
    scores = tag_metrics(tally([["N", "V", "N"]], [["N", "N", "N"]], "plain"), "plain")
    assert next(iter(scores)) == "accuracy" and not {"f1", "precision", "recall"} & scores.keys()
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["macro_f1"] == pytest.approx((0.8 + 0) / 2)
    scores = tag_metrics(tally([["O"], []], [["O"], []], "iob2", ["PER"]), "iob2")
    assert scores == {name: float(name == "accuracy") for name in metrics_of("iob2")}


@pytest.mark.parametrize("scheme", ENTITY_SCHEMES)
def test_scores_are_those_of_seqeval(scheme: str) -> None:
    library = pytest.importorskip("seqeval.metrics")
    rng = random.Random(scheme)
    expected = [random_tags(rng, scheme) for _ in range(100)]
    given = [[tag if rng.random() < 0.7 else rng.choice(one) for tag in one] for one in expected]
    ours = tag_metrics(tally(expected, given, scheme), scheme)
    letters = str.maketrans("LU", "ES") if scheme == "bilou" else {}
    theirs = [[[f"{tag[0].translate(letters)}{tag[1:]}" for tag in one] for one in tags] for tags in (expected, given)]
    assert 0.2 < ours["f1"] < 0.9
    assert ours["accuracy"] == pytest.approx(library.accuracy_score(*theirs))
    for name in ("f1", "precision", "recall", "macro_f1", "macro_precision", "macro_recall", "weighted_f1"):
        average, _, score = name.rpartition("_")
        wanted = getattr(library, f"{score}_score")(*theirs, average=average or "micro", zero_division=0)
        assert ours[name] == pytest.approx(wanted), name


@pytest.mark.parametrize("scheme", ["iob2", "plain"])
def test_every_metric_lies_in_its_interval(scheme: str) -> None:
    rng = random.Random(1)
    expected = [random_tags(rng, "iob2") for _ in range(80)]
    given = [[tag if rng.random() < 0.7 else rng.choice(one) for tag in one] for one in expected]
    found = tally(expected, given, scheme)
    for name, value in tag_metrics(found, scheme).items():
        low, high = tag_interval(name, found)
        assert low < value < high and high - low < 0.4, name


def test_an_evaluation_has_types_confusion_and_mistakes() -> None:
    records = [words("B-PER", "I-PER", "O"), words("O", "B-LOC", "O", place="test.conll, line 5"), words("O")]
    given = [predicted("B-PER I-PER B-LOC", 0.6), predicted("O B-PER O"), predicted("O")]
    found = tagging(records, given, scheme="iob2", names=("PER", "LOC", "ORG"), metric="f1", **ABOUT)
    assert (found.task, found.examples, found.score) == ("tag", 3, found.metrics["f1"])
    assert found.classes == ("LOC", "ORG", "PER", "O")
    assert found.confusion == ((0, 0, 1, 0), (0, 0, 0, 0), (0, 0, 2, 0), (1, 0, 0, 3))
    assert [(one.label, one.support) for one in found.labels] == [("LOC", 1), ("ORG", 0), ("PER", 1)]
    first, second = found.mistakes
    assert (first.place, first.expected, first.predicted) == ("test.conll, line 5", "w1 LOC", "w1 PER")
    assert (second.expected, second.predicted, second.score, first.score) == ("", "w2 LOC", 0.6, 0.9)
    assert "PER" in (weakest(found) or "") and "entit" in (weakest(found) or "")
    same = tagging([words("B-PER", "O")], [predicted("I-PER O")], scheme="iob2", metric="f1", **ABOUT)
    assert same.score == 1.0 and same.mistakes == ()  # other tags of the same entities


def test_the_mistake_is_shown_in_a_part_of_a_long_sentence() -> None:
    tags = ["O"] * 5000
    wrong = [*tags]
    wrong[3000] = "B-PER"
    (mistake,) = tagging(
        [words(*tags)], [Prediction(wrong, [1.0] * 5000)], scheme="iob2", metric="f1", **ABOUT
    ).mistakes
    assert "w3000" in mistake.text and len(mistake.text) < 400 and mistake.predicted == "w3000 PER"


@together(
    ("text", "answers", "exact", "overlap"),
    [
        ("Denver Broncos", ["Denver Broncos", "the Broncos"], 1, 1),
        ("the Denver Broncos.", ["Denver Broncos"], 1, 1),
        ("Denver", ["Denver Broncos"], 0, 2 / 3),
        ("Santa Clara, California", ["Levi's Stadium in Santa Clara"], 0, 1 / 2),
        ("", [], 1, 1),
        ("Denver", [], 0, 0),
        ("", ["Denver"], 0, 0),
        ("the", [], 1, 1),
        ("10th", ["tenth"], 0, 0),
        ("cat dog cat", ["cat dog"], 0, 4 / 5),  # a word counts as often as both have it
        ("cat cat", ["dog", "the", "cat dog cat"], 0, 4 / 5),  # of the best answer; one without words does not count
        ("An U.S. cat's", ["us cats"], 1, 1),
        ("a theatre", ["theatre"], 1, 1),
        ("北京。", ["北京"], 1, 1),
        ("在北京", ["北京"], 0, 4 / 5),
        ("東京タワー」", ["「東京タワー"], 1, 1),
        ("กรุงเทพ", ["กรุงเทพฯ"], 0, 14 / 15),
        ("iPhone 手机", ["IPHONE手机"], 1, 1),
        ("〡〢", ["〡"], 0, 2 / 3),  # numerals among Chinese characters
        ("서울은", ["서울"], 0, 0),  # Korean has spaces between words
        ("《서울》", ["서울"], 0, 0),  # though some of its punctuation is that of Chinese
    ],
)
def test_known_scores(text: str, answers: list[str], exact: float, overlap: float) -> None:
    assert answer_scores.exact_match(text, answers) == exact
    assert answer_scores.f1(text, answers) == pytest.approx(overlap)
    assert answer_scores.normalized(" The  U.S.'s \n“end” of an era") == "uss “end” of era"  # as the official script


@together("seed", range(4))
def test_the_threshold_is_the_best_of_all(seed: int) -> None:
    rng, count = np.random.default_rng(seed), 30 + seed
    answerable = rng.random(count) < 0.6
    values = np.where(answerable, rng.choice([0, 0.5, 1], count), 0)
    shares = rng.choice([0.1, 0.3, 0.3, 0.5, 0.7, 0.95], count) if count % 2 else rng.random(count)
    right, silent = (values == 1).astype(float), (~answerable).astype(float)
    judged = answer_scores.JudgedAnswers(right, values, silent, answerable, shares)
    found = answer_scores.tune_threshold(judged)
    borders = np.unique(judged.shares)
    best = max(judged.scores(threshold)["f1"].mean() for threshold in [0, *(borders - 1e-9), *(borders + 1e-9), 1])
    assert judged.scores(found)["f1"].mean() == pytest.approx(best)
    assert 0 <= found <= 1


def test_the_threshold_stays_where_another_is_no_better() -> None:
    def tuned(answerable: list[bool], shares: list[float]) -> float:
        right = np.array(answerable, float)
        return answer_scores.tune_threshold(
            answer_scores.JudgedAnswers(right, right, 1 - right, right > 0, np.array(shares))
        )

    assert tuned([True, False], [0.2, 0.8]) == 0.5
    assert tuned([True, False], [0.6, 0.8]) == pytest.approx(0.7)
    assert tuned([True, False], [0.1, 0.3]) == pytest.approx(0.2)
    assert tuned([True, True], [0.9, 0.95]) == answer_scores.ALWAYS == 1
    assert tuned([False, False], [0.3, 0.4]) == pytest.approx(0.15)


def question(answers: tuple[str, ...], number: int) -> Question:
    context = "x" * 300 + " a cat sat in Paris " + "y" * 300
    start = context.index(answers[0]) if answers else None
    end = None if start is None else start + len(answers[0])
    return Question(f"q{number}", context, answers, start, end, f"line {number}")


def test_an_evaluation_of_questions_with_and_without_answers() -> None:
    records = [question(answers, number) for number, answers in enumerate([("cat",), ("Paris",), ("cat sat",), (), ()])]
    place = records[0].pair.index("cat")
    spans = [("cat", 0.9, 0.1), ("cat", 0.8, 0.2), ("cat", 0.3, 0.9), ("sat", 0.2, 0.7), ("sat", 0.6, 0.3)]
    predicted = [answer_scores.Predicted(text, place, score, share) for text, score, share in spans]
    found = answer_scores.answering(records, predicted, threshold=0.5, model="m", data=("d",))
    assert found.metrics == pytest.approx(
        {
            "f1": 0.4, "exact_match": 0.4, "has_answer_f1": 1 / 3, "has_answer_exact_match": 1 / 3,
            "no_answer_accuracy": 0.5,
        }
    )  # fmt: skip
    assert (found.score, found.examples, found.confusion) == (0.4, 5, ((2, 1), (1, 1)))
    assert [(one.label, one.support) for one in found.labels] == [("answer", 3), ("no answer", 2)]
    assert found.interval[0] <= 0.4 <= found.interval[1]
    assert [(one.text, one.expected, one.predicted, one.score) for one in found.mistakes] == [
        ("q2", "cat sat", "", 0.9), ("q1", "Paris", "cat", 0.8), ("q4", "", "sat", 0.6)
    ]  # fmt: skip
    assert all("a cat sat in Paris" in str(one.pair) and len(str(one.pair)) < 400 for one in found.mistakes)
    always = answer_scores.answering(records, predicted, threshold=1.0, model="m", data=("d",), metric="exact_match")
    assert [always.score, always.metrics["f1"]] == pytest.approx([0.2, (1 + 2 / 3) / 5])


def test_where_all_questions_are_alike_there_are_no_labels() -> None:
    records = [question(("cat",), 0)]
    found = answer_scores.answering(
        records, [answer_scores.Predicted("cat", 301, 0.5, 0.2)], threshold=1, model="m", data=()
    )
    assert found.labels == () and found.confusion is None and set(found.metrics) == {"f1", "exact_match"}
    assert answer_scores.answer_metrics(
        answer_scores.judge(records, [answer_scores.Predicted("dog", 0, 0.5, 0.2)]), 1
    ) == {"f1": 0, "exact_match": 0}


TOPICS = ("animal", "city")
VERBS, LITTLE = ("is", "of", "sat", "on"), ("a", "the", "in", "to")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return mlxbert.load(tiny.save(tmp_path_factory.mktemp("baselines") / "model"))


def baselines(model: Model, train: Any, valid: Any, task: str, names: tuple[str, ...], metric: str) -> dict[str, float]:
    objective: Any = make_objective(task, metric=metric)
    objective.labels = Labels(names or ("value",), objective.problem_type)
    found: dict[str, float] = objective.baselines(model, train, valid)
    return found


def texts(label_of: Any, pair: bool = False) -> list[LabelledText]:
    """Sentences with an animal or a city, and the label that `label_of` gives for each."""
    rows = []
    for number in range(80):
        word = ("cat", "dog", "paris", "tokyo")[number % 4]
        text = f"the {word} {VERBS[number // 4 % 4]} {LITTLE[number // 16 % 4]} store"
        second = ("the store", text)[number % 3 == 0] if pair else None
        rows.append(LabelledText(text, second, label_of(number, text, second), f"line {number}"))
    return rows


def parted(given: list[LabelledText]) -> tuple[list[LabelledText], list[LabelledText]]:
    return [each for number, each in enumerate(given) if number % 5], given[::5]


def test_the_simple_baselines_are_of_the_training_data(model: Model) -> None:
    train, valid = records(*["animal"] * 3, *["city"] * 2), records("animal", *["city"] * 3)

    def of_classes(train: list[LabelledText], metric: str = "accuracy") -> dict[str, float]:
        return baselines(model, train, valid, "classify", TOPICS, metric)

    entropy = -(np.log(0.6) + 3 * np.log(0.4)) / 4
    for metric, expected in (("accuracy", 1 / 4), ("macro_f1", 0.4 / 2), ("log_loss", entropy)):
        assert of_classes(train, metric)["largest class"] == pytest.approx(expected)
    even = records(*["animal", "city"] * 2)  # of classes as frequent the best
    assert of_classes(even)["best of the largest classes"] == 3 / 4
    assert [of_classes(some)["largest class"] for some in (even[1:], even[:3])] == [3 / 4, 1 / 4]
    several = records(("a", "b"), ("a", "b"), ("a",), ("c",), ("a", "b", "c"))  # 1.8 each: a and b
    for train, expected in ((several, 2 * 2 / (4 + 3)), (records((), (), ("b",)), 2 * 1 / (2 + 3))):
        found = baselines(model, train, records(("a",), ("b", "c")), "multilabel", ("a", "b", "c"), "micro_f1")
        assert found["most frequent labels"] == pytest.approx(expected)
    for metric, expected in (("mse", 9 / 2), ("spearman", 0)):
        found = baselines(model, records(1.0, 3.0), records(2.0, 5.0), "regress", (), metric)
        assert found["mean"] == pytest.approx(expected)
    with pytest.raises(ArgumentError, match="accuracy"):
        baselines(model, [], [], "regress", (), "accuracy")


@pytest.mark.parametrize(
    ("task", "metric", "label_of", "least"),
    [
        ("classify", "accuracy", lambda number, *_: TOPICS[number % 4 // 2], 0.75),
        ("multilabel", "macro_f1", lambda number, *_: (TOPICS[number % 4 // 2],) if number % 4 else TOPICS, 0.8),
        ("regress", "spearman", lambda number, *_: float(number % 4 // 2), 0.8),
    ],
)
def test_frozen_vectors_know_what_it_knows(model: Model, task: str, metric: str, label_of: Any, least: float) -> None:
    given = texts(label_of)
    found = baselines(model, *parted(given), task, TOPICS, metric)
    assert found["frozen vectors"] >= least
    (simple,) = found.keys() - {"frozen vectors"}
    assert found["frozen vectors"] > found[simple] + 0.1


def test_pairs_are_compared_and_a_model_without_vectors_has_the_simple_baseline(model: Model, tmp_path: Path) -> None:
    given: list[Any] = texts(lambda number, text, second: TOPICS[text == second], pair=True)
    assert baselines(model, *parted(given), "classify", TOPICS, "accuracy")["frozen vectors"] == 1
    turned: list[Any] = [LabelledText(each.pair or "", each.text, each.label, each.place) for each in given]
    assert np.array_equal(text_objective._vectors(model, given), text_objective._vectors(model, turned))
    without = mlxbert.load(tiny.save(tmp_path / "model"), task="fill-mask")
    assert baselines(without, records(1.0, 3.0), records(2.0), "regress", (), "mae") == {"mean": 0}


def test_a_linear_model_does_not_depend_on_the_scale_of_vectors_and_gives_shares_where_all_are_the_same() -> None:
    rng = np.random.default_rng(0)
    vectors, targets = rng.normal(size=(50, 8)), np.eye(3)[rng.integers(0, 3, 50)]
    once = fit_linear(vectors, targets, SOFTMAX)(vectors)
    assert once.sum(1) == pytest.approx(np.ones(50))
    assert fit_linear(vectors * 1e4 + 7, targets, SOFTMAX)(vectors * 1e4 + 7) == pytest.approx(once)
    two = fit_linear(vectors, np.eye(3)[[0, 1] * 25], SOFTMAX)(vectors)
    assert two[:, 2].max() < 0.05  # a class without examples is not predicted
    for same in (np.zeros((4, 3)), np.ones((4, 3), np.float32), np.full((4, 3), 1e-38)):
        shares = np.eye(2)[[0, 0, 0, 1]]
        assert fit_linear(same, shares, SOFTMAX)(same)[0] == pytest.approx([0.75, 0.25], abs=0.01)
        assert fit_linear(same, shares[:, 0], IDENTITY)(same)[0] == pytest.approx(0.75)


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


def test_metrics_of_one_label_per_example_and_of_an_exact_threshold() -> None:
    values = metrics.classify_metrics(np.array([0, 1, 1]), np.array([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]))
    assert values["accuracy"] == pytest.approx(2 / 3)  # the first of equal probabilities is predicted
    eps = np.finfo(np.float64).eps
    assert values["log_loss"] == pytest.approx(-(math.log(0.5) + math.log(0.75) + math.log(eps)) / 3)
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
