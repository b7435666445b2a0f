"""Exact match and F1 of answers by SQuAD's rules; the threshold next to all thresholds."""

import numpy as np
import pytest

from mlxbert.train.data.questions import Question
from mlxbert.train.scores.answer_scores import (
    ALWAYS,
    JudgedAnswers,
    Predicted,
    answer_metrics,
    answering,
    exact_match,
    f1,
    judge,
    normalized,
    tune_threshold,
)


@pytest.mark.parametrize(
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
    assert exact_match(text, answers) == exact
    assert f1(text, answers) == pytest.approx(overlap)


def test_normalization_is_that_of_the_official_script() -> None:
    assert normalized(" The  U.S.'s \n“end” of an era") == "uss “end” of era"


def judged_of(rng: np.random.Generator, count: int) -> JudgedAnswers:
    answerable = rng.random(count) < 0.6
    values = np.where(answerable, rng.choice([0, 0.5, 1], count), 0)
    shares = rng.choice([0.1, 0.3, 0.3, 0.5, 0.7, 0.95], count) if count % 2 else rng.random(count)
    return JudgedAnswers((values == 1).astype(float), values, (~answerable).astype(float), answerable, shares)


@pytest.mark.parametrize("seed", range(4))
def test_the_threshold_is_the_best_of_all(seed: int) -> None:
    judged = judged_of(np.random.default_rng(seed), 30 + seed)
    found = tune_threshold(judged)
    borders = np.unique(judged.shares)
    best = max(judged.scores(threshold)["f1"].mean() for threshold in [0, *(borders - 1e-9), *(borders + 1e-9), 1])
    assert judged.scores(found)["f1"].mean() == pytest.approx(best)
    assert 0 <= found <= 1


def test_the_threshold_stays_where_another_is_no_better() -> None:
    def tuned(answerable: list[bool], shares: list[float]) -> float:
        right = np.array(answerable, float)
        return tune_threshold(JudgedAnswers(right, right, 1 - right, right > 0, np.array(shares)))

    assert tuned([True, False], [0.2, 0.8]) == 0.5
    assert tuned([True, False], [0.6, 0.8]) == pytest.approx(0.7)
    assert tuned([True, False], [0.1, 0.3]) == pytest.approx(0.2)
    assert tuned([True, True], [0.9, 0.95]) == ALWAYS == 1
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
    predicted = [Predicted(text, place, score, share) for text, score, share in spans]
    found = answering(records, predicted, threshold=0.5, model="m", data=("d",))
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
    always = answering(records, predicted, threshold=1.0, model="m", data=("d",), metric="exact_match")
    assert [always.score, always.metrics["f1"]] == pytest.approx([0.2, (1 + 2 / 3) / 5])


def test_where_all_questions_are_alike_there_are_no_labels() -> None:
    records = [question(("cat",), 0)]
    found = answering(records, [Predicted("cat", 301, 0.5, 0.2)], threshold=1, model="m", data=())
    assert found.labels == () and found.confusion is None and set(found.metrics) == {"f1", "exact_match"}
    assert answer_metrics(judge(records, [Predicted("dog", 0, 0.5, 0.2)]), 1) == {"f1": 0, "exact_match": 0}
