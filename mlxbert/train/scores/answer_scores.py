"""Exact match and F1 of answers, as in the official evaluations of SQuAD 1.1 and 2.0, and the no-answer threshold.

Shapes: N questions.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mlxbert.text.words import UNSPACED
from mlxbert.train.data.questions import Question
from mlxbert.train.scores.evaluation_summary import Evaluation, Mistake
from mlxbert.train.scores.labelled_scores import MISTAKES, label_scores
from mlxbert.train.scores.metrics import DEFAULT_THRESHOLD, Bools, Counts, Floats, bootstrap, confusion_matrix

ALWAYS = 1.0  # a threshold at which an answer is always given
LABELS = ("answer", "no answer")
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_MARGIN = 120  # code points of context that a mistake shows on each side of an answer


class Predicted(NamedTuple):
    """The best span of a context."""

    text: str  # the text of the span
    start: int  # the index of the span's first character in the context
    score: float  # the probability of the span, 0 to 1
    share: float  # the probability of "no answer", divided by the sum of this probability and `score`, 0 to 1


def normalized(text: str) -> str:
    """Returns a text in lowercase, without punctuation, articles and extra whitespace.

    In scripts without spaces between words each character is a word, and all of Unicode's punctuation is removed, as in
    the official evaluations of DRCD, CMRC 2018 and MLQA. Other texts only lose ASCII's punctuation, as in SQuAD's.
    """
    bare = "".join(char for char in text if not unicodedata.category(char).startswith("P"))
    if UNSPACED.search(bare):
        text = UNSPACED.sub(r" \g<0> ", bare)
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(text: str, answers: Sequence[str]) -> float:
    """Returns 1 if a text is one of the right answers, else 0. An empty text means "no answer"."""
    return float(normalized(text) in {normalized(answer) for answer in right_answers(answers)})


def f1(text: str, answers: Sequence[str]) -> float:
    """Returns the F1 between the words of a text and the words of the most similar right answer, 0 to 1.

    An empty text means "no answer".
    """
    return max(_overlap(normalized(text).split(), normalized(answer).split()) for answer in right_answers(answers))


def right_answers(answers: Sequence[str]) -> Sequence[str]:
    """Returns the answers that are not empty after normalization. If there are none, an empty text is right."""
    return [answer for answer in answers if normalized(answer)] or [""]


def _overlap(words: Sequence[str], right: Sequence[str]) -> float:
    if not words or not right:
        return float(words == right)
    common = (Counter(words) & Counter(right)).total()
    return 2 * common / (len(words) + len(right))


@dataclass(frozen=True)
class JudgedAnswers:
    """The scores of N questions; each array is (N,)."""

    exact_match: Floats  # the exact match of each best span
    f1: Floats  # the F1 of each best span
    silence: Floats  # the value of both metrics for each question if the model gives no answer
    answerable: Bools  # whether each question has an answer
    shares: Floats  # the share of "no answer" for each question (see `Predicted`)

    @property
    def both(self) -> bool:
        """Whether some questions have an answer and others have none."""
        return bool(self.answerable.any() and not self.answerable.all())

    def scores(self, threshold: float) -> dict[str, Floats]:
        """Returns `f1` and `exact_match` of each question.

        No answer is given to a question if its share of "no answer" is above the threshold.
        """
        silent = self.shares > threshold
        return {
            "f1": np.where(silent, self.silence, self.f1),
            "exact_match": np.where(silent, self.silence, self.exact_match),
        }


def judge(records: Sequence[Question], predicted: Sequence[Predicted]) -> JudgedAnswers:
    """Compares the best spans of N questions with the right answers."""
    pairs = [*zip(records, predicted, strict=True)]
    return JudgedAnswers(
        np.array([exact_match(span.text, record.answers) for record, span in pairs]),
        np.array([f1(span.text, record.answers) for record, span in pairs]),
        np.array([exact_match("", record.answers) for record in records]),
        np.array([bool(record.answers) for record in records]),
        np.array([span.share for span in predicted], np.float64),
    )


def answer_metrics(judged: JudgedAnswers, threshold: float) -> dict[str, float]:
    """Returns the metrics `f1` and `exact_match`.

    If only some questions have an answer, the result also has both metrics on these questions, and the accuracy on the
    other questions.
    """
    scores = judged.scores(threshold)
    metrics = {name: float(values.mean()) for name, values in scores.items()}
    if judged.both:
        metrics |= {f"has_answer_{name}": float(values[judged.answerable].mean()) for name, values in scores.items()}
        metrics["no_answer_accuracy"] = float(scores["f1"][~judged.answerable].mean())
    return metrics


def tune_threshold(judged: JudgedAnswers) -> float:
    """Returns the threshold with the best mean F1; `ALWAYS` if every question has an answer.

    Candidates lie halfway between neighbouring shares. Of equally good candidates, the one nearest to 0.5 is chosen.
    """
    if judged.answerable.all():
        return ALWAYS
    order = np.argsort(judged.shares, kind="stable")
    shares, gain = judged.shares[order], (judged.f1 - judged.silence)[order]
    sums = np.append(0.0, np.cumsum(gain))  # gain if only the first 0, 1, 2, … questions are answered
    ends = np.append(np.flatnonzero(np.diff(shares, append=np.inf)) + 1, 0)  # equal shares stay together
    candidates = (np.append(0.0, shares)[ends] + np.append(shares, 1.0)[ends]) / 2
    candidates, values = (
        np.append(candidates, DEFAULT_THRESHOLD),
        np.append(sums[ends], sums[np.searchsorted(shares, DEFAULT_THRESHOLD, "right")]),
    )
    best = np.flatnonzero(values >= values.max() - 1e-9)
    return float(candidates[best[np.argmin(np.abs(candidates[best] - DEFAULT_THRESHOLD))]])


def answering(
    records: Sequence[Question], predicted: Sequence[Predicted], *, threshold: float, metric: str = "f1", **about: Any
) -> Evaluation:
    """Evaluates the answers to questions."""
    judged = judge(records, predicted)
    metrics, values = answer_metrics(judged, threshold), judged.scores(threshold)
    silent = judged.shares > threshold
    confusion = confusion_matrix((~judged.answerable).astype(np.int64), silent.astype(np.int64), 2)
    main = values[metric]
    return Evaluation(
        task="answer",
        examples=len(records),
        metric=metric,
        score=metrics[metric],
        interval=bootstrap(lambda rows: float(main[rows].mean()), len(records)),
        metrics=metrics,
        labels=label_scores(LABELS, Counts.of_confusion(confusion)) if judged.both else (),
        confusion=tuple(map(tuple, confusion.tolist())) if judged.both else None,
        mistakes=_mistakes(records, predicted, silent, values["f1"]),
        **about,
    )


def _mistakes(
    records: Sequence[Question], predicted: Sequence[Predicted], silent: Bools, values: Floats
) -> tuple[Mistake, ...]:
    """Returns the mistakes with the largest product of confidence and missing F1 (1 - F1)."""
    confidences = np.array([span.share if none else span.score for span, none in zip(predicted, silent, strict=True)])
    badness = confidences * (1 - values)
    ranked = [int(number) for number in np.argsort(-badness, kind="stable") if values[number] < 1][:MISTAKES]
    return tuple(
        Mistake(
            text=records[number].text,
            pair=excerpt(records[number], predicted[number], bool(silent[number])),
            expected=next(iter(records[number].answers), ""),
            predicted="" if silent[number] else predicted[number].text,
            score=float(confidences[number]),
            place=records[number].place,
        )
        for number in ranked
    )


def excerpt(record: Question, span: Predicted, silent: bool) -> str:
    """Returns the part of the context around the right answer, extended to the predicted answer if that is near."""
    context = record.pair
    middle = span.start if record.start is None else record.start
    begin, end = middle - _MARGIN, middle + _MARGIN
    if not silent and abs(span.start - middle) <= 2 * _MARGIN:
        begin, end = min(begin, span.start - _MARGIN), max(end, span.start + len(span.text) + _MARGIN)
    before, after = "…" if begin > 0 else "", "…" if end < len(context) else ""
    return before + " ".join(context[max(begin, 0) : end].split()) + after
