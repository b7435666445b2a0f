"""Scores of tags: entities as seqeval counts them, plain tags, intervals, confusion, mistakes."""

import random
from itertools import accumulate
from typing import Any

import pytest

from mlxbert.train.data.tagged_sentences import TaggedSentence
from mlxbert.train.scores.evaluation_summary import weakest
from mlxbert.train.scores.tag_scores import Prediction, metrics_of, tag_interval, tag_metrics, tagging, tally
from tests.train.data.test_tag_schemes import ENTITY_SCHEMES, random_tags

ABOUT: Any = {"model": "m", "data": ("d",)}


def words(*tags: str, place: str = "test.conll, line 1") -> TaggedSentence:
    """A sentence of the words w0, w1, and so on."""
    found = [f"w{number}" for number in range(len(tags))]
    ends = [*accumulate(len(word) + 1 for word in found)]
    offsets = tuple((end - 1 - len(word), end - 1) for end, word in zip(ends, found, strict=True))
    return TaggedSentence(" ".join(found), tuple(found), offsets, tags, place)


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


def test_plain_tags_are_counted_word_by_word() -> None:
    scores = tag_metrics(tally([["N", "V", "N"]], [["N", "N", "N"]], "plain"), "plain")
    assert next(iter(scores)) == "accuracy" and not {"f1", "precision", "recall"} & scores.keys()
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["macro_f1"] == pytest.approx((0.8 + 0) / 2)


def test_nothing_is_undefined() -> None:
    scores = tag_metrics(tally([["O"], []], [["O"], []], "iob2", ["PER"]), "iob2")
    assert scores == {name: float(name == "accuracy") for name in metrics_of("iob2")}


@pytest.mark.parametrize("scheme", ENTITY_SCHEMES)
def test_scores_are_those_of_seqeval(scheme: str) -> None:
    pytest.importorskip("seqeval")
    from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

    rng = random.Random(scheme)
    expected = [random_tags(rng, scheme) for _ in range(100)]
    given = [[tag if rng.random() < 0.7 else rng.choice(one) for tag in one] for one in expected]
    ours = tag_metrics(tally(expected, given, scheme), scheme)
    letters = str.maketrans("LU", "ES") if scheme == "bilou" else {}
    theirs = [[[f"{tag[0].translate(letters)}{tag[1:]}" for tag in one] for one in tags] for tags in (expected, given)]
    assert 0.2 < ours["f1"] < 0.9
    assert ours["accuracy"] == pytest.approx(accuracy_score(*theirs))
    for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        for average in ("micro", "macro"):
            own = ours[name if average == "micro" else f"macro_{name}"]
            assert own == pytest.approx(score(*theirs, average=average, zero_division=0)), (name, average)
    assert ours["weighted_f1"] == pytest.approx(f1_score(*theirs, average="weighted", zero_division=0))


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
    assert (first.place, first.expected, first.predicted, first.score) == (
        "test.conll, line 5",
        "w1 LOC",
        "w1 PER",
        0.9,
    )
    assert (second.expected, second.predicted, second.score) == ("", "w2 LOC", 0.6)
    assert "PER" in (weakest(found) or "") and "entit" in (weakest(found) or "")


def test_other_tags_of_the_same_entities_are_no_mistake() -> None:
    found = tagging([words("B-PER", "O")], [predicted("I-PER O")], scheme="iob2", metric="f1", **ABOUT)
    assert found.score == 1.0 and found.mistakes == ()


def test_the_mistake_is_shown_in_a_part_of_a_long_sentence() -> None:
    tags = ["O"] * 5000
    wrong = [*tags]
    wrong[3000] = "B-PER"
    (mistake,) = tagging(
        [words(*tags)], [Prediction(wrong, [1.0] * 5000)], scheme="iob2", metric="f1", **ABOUT
    ).mistakes
    assert "w3000" in mistake.text and len(mistake.text) < 400 and mistake.predicted == "w3000 PER"
