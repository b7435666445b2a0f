"""Predicted tags of words to an `Evaluation`: entities as seqeval counts them, or plain tags.

An entity is right if its type, its first and its last word are. Averages leave out types that are neither expected nor
predicted, as seqeval does; what divides by 0 is 0.

Shapes: N sentences, K types of entities or plain tags.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Unpack

import numpy as np

from mlxbert.errors import InputError
from mlxbert.labels.schemes import OUTSIDE, Entity, decode, parts
from mlxbert.training.options.training_tasks import TASKS
from mlxbert.training.scores.evaluation_summary import Evaluation, Mistake
from mlxbert.training.scores.intervals import bootstrap
from mlxbert.training.scores.labelled_scores import MISTAKES, EvaluationFacts, check_metric, label_scores
from mlxbert.training.scores.metrics import Counts, Floats, Ints, confusion_matrix, macro_f1, ratio, weighted_f1

_ENTITIES = ("f1", "precision", "recall")  # metrics that plain tags do not have
_SHOWN, _AROUND = 300, 120  # characters of a sentence from which on a part is shown, and those before the mistake


class Sentence(Protocol):
    """A sentence of W words with their tags."""

    @property
    def text(self) -> str: ...  # noqa: D102
    @property
    def offsets(self) -> tuple[tuple[int, int], ...]: ...  # noqa: D102
    @property
    def tags(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def place(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class Prediction:
    """What a model says of a sentence.

    Attributes:
        tags: Of each word, (W,).
        sure: The probability of each of these tags, (W,).
    """

    tags: Sequence[str]
    sure: Sequence[float]


@dataclass(frozen=True)
class Tally:
    """How often each type or tag was right, predicted and expected in each sentence, (N, K) each; and words.

    Attributes:
        names: The K types or tags.
        right: See above.
        predicted: See above.
        expected: See above.
        right_words: Words of each sentence whose tag is right, (N,).
        words: Words of each sentence, (N,).
    """

    names: tuple[str, ...]
    right: Floats
    predicted: Floats
    expected: Floats
    right_words: Floats
    words: Floats

    def counts(self) -> Counts:
        """All sentences together, (K,) each."""
        return Counts(self.right.sum(0), self.predicted.sum(0), self.expected.sum(0))


# Those that counts of types determine.
_OF_COUNTS: Mapping[str, Callable[[Counts], float]] = {
    "f1": lambda counts: float(counts.sum().f1[0]),
    "precision": lambda counts: float(counts.sum().precision[0]),
    "recall": lambda counts: float(counts.sum().recall[0]),
    "macro_f1": macro_f1,
    "weighted_f1": weighted_f1,
    "macro_precision": lambda counts: _mean(counts.occurring().precision),
    "macro_recall": lambda counts: _mean(counts.occurring().recall),
}


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def metrics_of(scheme: str) -> tuple[str, ...]:
    """The metrics of tags of a scheme, the main one first: F1 of entities, accuracy of plain tags."""
    known = TASKS["tag"].metrics
    return (
        known if scheme != "plain" else ("accuracy", *(name for name in known if name not in (*_ENTITIES, "accuracy")))
    )


def units(tags: Sequence[str], scheme: str) -> list[Entity]:
    """What is counted: the entities of a sentence; or each word with its tag."""
    return [(tag, word, word + 1) for word, tag in enumerate(tags)] if scheme == "plain" else decode(tags, scheme)


def tally(
    expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, names: Iterable[str] = ()
) -> Tally:
    """Counts what is right.

    Args:
        expected: The tags of N sentences.
        predicted: Tags of the same words.
        scheme: How both are written.
        names: Types or tags that are counted even if they do not occur.
    """
    pairs = [(units(one, scheme), units(other, scheme)) for one, other in zip(expected, predicted, strict=True)]
    found = {kind for pair in pairs for one in pair for kind, _, _ in one}
    known = tuple(sorted({*names, *found}))
    numbers = {name: number for number, name in enumerate(known)}
    right, guessed, there = np.zeros((3, len(pairs), len(known)))
    for row, (one, other) in enumerate(pairs):
        for table, kinds in ((right, {*one} & {*other}), (guessed, other), (there, one)):
            for kind, count in Counter(kind for kind, _, _ in kinds).items():
                table[row, numbers[kind]] = count
    both = [*zip(expected, predicted, strict=True)]
    right_words = np.array([sum(map(str.__eq__, one, other)) for one, other in both], np.float64)
    return Tally(known, right, guessed, there, right_words, np.array([*map(len, expected)], np.float64))


def tag_metrics(found: Tally, scheme: str) -> dict[str, float]:
    """All metrics of tags by name."""
    counts = found.counts()
    accuracy = float(ratio(found.right_words.sum(), found.words.sum()))
    return {name: accuracy if name == "accuracy" else _OF_COUNTS[name](counts) for name in metrics_of(scheme)}


def tag_interval(metric: str, found: Tally) -> tuple[float, float]:
    """95 % of a metric, from a bootstrap over the sentences: words of one sentence are not independent."""
    sentences = len(found.words)
    if metric == "accuracy":
        return bootstrap(lambda some: float(ratio(found.right_words[some].sum(), found.words[some].sum())), sentences)
    cells = np.concatenate([found.right, found.predicted, found.expected], axis=1)

    def resampled(some: Ints) -> float:
        times = np.bincount(some, minlength=sentences).astype(np.float64)
        return _OF_COUNTS[metric](Counts(*np.split(times @ cells, 3)))

    return bootstrap(resampled, sentences)


def tagging(
    records: Sequence[Sentence],
    predictions: Sequence[Prediction],
    *,
    scheme: str,
    names: Sequence[str] = (),
    metric: str,
    **about: Unpack[EvaluationFacts],
) -> Evaluation:
    """The evaluation of tags.

    Args:
        records: N sentences.
        predictions: What a model says of each.
        scheme: How the tags of both are written.
        names: The types or plain tags that the model has.
        metric: The main metric, one of `metrics_of(scheme)`.
        **about: What else the evaluation says.
    """
    check_metric("tag", metric)
    if not records:
        raise InputError("there is no example to evaluate")
    found = tally([record.tags for record in records], [one.tags for one in predictions], scheme, names)
    scores = tag_metrics(found, scheme)
    classes = found.names if scheme == "plain" else (*found.names, OUTSIDE)
    return Evaluation(
        task="tag",
        examples=len(records),
        metric=metric,
        score=scores[metric],
        interval=tag_interval(metric, found),
        metrics=scores,
        labels=label_scores(found.names, found.counts()),
        confusion=_confusion(records, predictions, scheme, classes),
        classes=classes,
        mistakes=_mistakes(records, predictions, scheme),
        **about,
    )


def _confusion(
    records: Sequence[Sentence], predictions: Sequence[Prediction], scheme: str, classes: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """How many words of each type (row) were taken for each type (column)."""
    numbers = {name: number for number, name in enumerate(classes)}

    def numbered(tags: Iterable[Sequence[str]]) -> Ints:
        found = (tag if scheme == "plain" else parts(tag, scheme)[1] or OUTSIDE for one in tags for tag in one)
        return np.array([numbers[name] for name in found], np.int64)

    matrix = confusion_matrix(
        numbered(record.tags for record in records), numbered(one.tags for one in predictions), len(classes)
    )
    return tuple(map(tuple, matrix.tolist()))


def _mistakes(records: Sequence[Sentence], predictions: Sequence[Prediction], scheme: str) -> tuple[Mistake, ...]:
    """The sentences with the wrong tags that the model was surest of."""
    found: list[tuple[float, int, int]] = []
    for number, (record, one) in enumerate(zip(records, predictions, strict=True)):
        wrong = [(-one.sure[word], number, word) for word, tag in enumerate(record.tags) if tag != one.tags[word]]
        if wrong and units(record.tags, scheme) != units(one.tags, scheme):
            found.append(min(wrong))
    return tuple(
        _mistake(records[number], predictions[number], scheme, -sure, word)
        for sure, number, word in sorted(found)[:MISTAKES]
    )


def _mistake(record: Sentence, one: Prediction, scheme: str, sure: float, word: int) -> Mistake:
    expected, predicted = units(record.tags, scheme), units(one.tags, scheme)
    known, given = {*expected}, {*predicted}
    text, start = record.text, 0
    if len(text) > _SHOWN:
        start = max(record.offsets[word][0] - _AROUND, 0)
        text = ("…" if start else "") + text[start : start + _SHOWN] + ("…" if start + _SHOWN < len(text) else "")
    return Mistake(
        text=text,
        pair=None,
        expected=_shown(record, [unit for unit in expected if unit not in given]),
        predicted=_shown(record, [unit for unit in predicted if unit not in known]),
        score=float(sure),
        place=record.place,
    )


def _shown(record: Sentence, found: Sequence[Entity]) -> str:
    """Entities or words with their types: `Paris LOC, New York LOC`."""
    offsets = record.offsets
    return ", ".join(f"{record.text[offsets[start][0] : offsets[end - 1][1]]} {kind}" for kind, start, end in found)
