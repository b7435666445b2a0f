"""Evaluates predicted tags: entities as seqeval counts them, or plain tags.

An entity is right if its type, its first word and its last word are right. Averages leave out types that are neither
expected nor predicted, as in seqeval; divisions by 0 give 0.

Shapes: N sentences, K entity types or plain tags.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxbert.labels.schemes import OUTSIDE, Entity, decode, parts
from mlxbert.train.data.tagged_sentences import TaggedSentence
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.scores.evaluation_summary import Evaluation, Mistake
from mlxbert.train.scores.labelled_scores import MISTAKES, label_scores
from mlxbert.train.scores.metrics import (
    OF_COUNTS,
    Counts,
    Floats,
    Ints,
    bootstrap,
    confusion_matrix,
    ratio,
    resampled_counts,
)

_ENTITIES = ("f1", "precision", "recall")  # metrics that plain tags do not have
_MAX_TEXT, _CONTEXT = 300, 120  # maximum characters of a mistake's sentence, and before its wrong word


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for a sentence."""

    tags: Sequence[str]  # the tag of each word, (W,)
    confidences: Sequence[float]  # the probability of each of these tags, (W,)


@dataclass(frozen=True)
class Tally:
    """For each sentence, the counts of its entities by type (or of its words by plain tag), and of all its words."""

    names: tuple[str, ...]  # the K types or plain tags
    right: Floats  # the numbers of right predictions, (N, K)
    predicted: Floats  # the numbers of predictions, (N, K)
    expected: Floats  # the numbers of expected entities or words, (N, K)
    right_words: Floats  # the number of words with the right tag in each sentence, (N,)
    words: Floats  # the number of words in each sentence, (N,)

    def counts(self) -> Counts:
        """Returns the counts summed over all sentences, (K,) each."""
        return Counts(self.right.sum(0), self.predicted.sum(0), self.expected.sum(0))


# Metrics that are functions of the counts of types.
_OF_COUNTS: Mapping[str, Callable[[Counts], float]] = {
    **OF_COUNTS,
    **{name: OF_COUNTS[f"micro_{name}"] for name in _ENTITIES},
    "macro_precision": lambda counts: _mean(counts.occurring().precision),
    "macro_recall": lambda counts: _mean(counts.occurring().recall),
}


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def metrics_of(scheme: str) -> tuple[str, ...]:
    """Returns the metrics for a scheme, the main one first: F1 for entities, accuracy for plain tags."""
    names = TASKS["tag"].metrics
    if scheme != "plain":
        return names
    return "accuracy", *(name for name in names if name not in (*_ENTITIES, "accuracy"))


def units(tags: Sequence[str], scheme: str) -> list[Entity]:
    """Returns the units to count: the entities of a sentence or, with plain tags, each word with its tag."""
    return [(tag, word, word + 1) for word, tag in enumerate(tags)] if scheme == "plain" else decode(tags, scheme)


def tally(
    expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, names: Iterable[str] = ()
) -> Tally:
    """Counts the entities (or words with plain tags) that are expected, predicted, and right.

    The `names` get a column even if they do not occur.
    """
    pairs = [(units(gold, scheme), units(guess, scheme)) for gold, guess in zip(expected, predicted, strict=True)]
    occurring = {kind for pair in pairs for side in pair for kind, _, _ in side}
    columns = tuple(sorted({*names, *occurring}))
    numbers = {name: number for number, name in enumerate(columns)}
    right, guessed, present = np.zeros((3, len(pairs), len(columns)))
    for row, (gold, guess) in enumerate(pairs):
        for table, entities in ((right, {*gold} & {*guess}), (guessed, guess), (present, gold)):
            for kind, count in Counter(kind for kind, _, _ in entities).items():
                table[row, numbers[kind]] = count
    tags = [*zip(expected, predicted, strict=True)]
    right_words = np.array([sum(map(str.__eq__, gold, guess)) for gold, guess in tags], np.float64)
    return Tally(columns, right, guessed, present, right_words, np.array([*map(len, expected)], np.float64))


def tag_metrics(tallied: Tally, scheme: str) -> dict[str, float]:
    """Returns all metrics of tagging, keyed by name."""
    counts = tallied.counts()
    accuracy = float(ratio(tallied.right_words.sum(), tallied.words.sum()))
    return {name: accuracy if name == "accuracy" else _OF_COUNTS[name](counts) for name in metrics_of(scheme)}


def tag_interval(metric: str, tallied: Tally) -> tuple[float, float]:
    """Returns the 95 % interval of a metric, from a bootstrap over sentences.

    Words are not resampled, because the words of a sentence are not independent.
    """
    right_words, words = tallied.right_words, tallied.words
    if metric == "accuracy":
        return bootstrap(lambda rows: float(ratio(right_words[rows].sum(), words[rows].sum())), len(words))
    return resampled_counts(_OF_COUNTS[metric], tallied.right, tallied.predicted, tallied.expected)


def tagging(
    records: Sequence[TaggedSentence],
    predictions: Sequence[Prediction],
    *,
    scheme: str,
    names: Sequence[str] = (),
    metric: str,
    **about: Any,
) -> Evaluation:
    """Evaluates predicted tags."""
    expected, predicted = [record.tags for record in records], [prediction.tags for prediction in predictions]
    tallied = tally(expected, predicted, scheme, names)
    scores = tag_metrics(tallied, scheme)
    classes = tallied.names if scheme == "plain" else (*tallied.names, OUTSIDE)
    return Evaluation(
        task="tag",
        examples=len(records),
        metric=metric,
        score=scores[metric],
        interval=tag_interval(metric, tallied),
        metrics=scores,
        labels=label_scores(tallied.names, tallied.counts()),
        confusion=_confusion(expected, predicted, scheme, classes),
        classes=classes,
        mistakes=_mistakes(records, predictions, scheme),
        **about,
    )


def _confusion(
    expected: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, classes: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """Counts how many words of each type (row) were predicted as each type (column)."""
    numbers = {name: number for number, name in enumerate(classes)}

    def numbered(sentences: Sequence[Sequence[str]]) -> Ints:
        names = (tag if scheme == "plain" else parts(tag, scheme)[1] or OUTSIDE for tags in sentences for tag in tags)
        return np.array([numbers[name] for name in names], np.int64)

    matrix = confusion_matrix(numbered(expected), numbered(predicted), len(classes))
    return tuple(map(tuple, matrix.tolist()))


def _mistakes(records: Sequence[TaggedSentence], predictions: Sequence[Prediction], scheme: str) -> tuple[Mistake, ...]:
    """Returns the mistakes: the sentences whose wrong tags have the highest confidence."""
    worst: list[tuple[float, int, int]] = []
    for number, (record, guess) in enumerate(zip(records, predictions, strict=True)):
        wrong = [(-guess.confidences[i], number, i) for i, tag in enumerate(record.tags) if tag != guess.tags[i]]
        if wrong and units(record.tags, scheme) != units(guess.tags, scheme):
            worst.append(min(wrong))
    return tuple(
        _mistake(records[number], predictions[number], scheme, -confidence, word)
        for confidence, number, word in sorted(worst)[:MISTAKES]
    )


def _mistake(record: TaggedSentence, prediction: Prediction, scheme: str, confidence: float, word: int) -> Mistake:
    expected, predicted = units(record.tags, scheme), units(prediction.tags, scheme)
    text, start = record.text, 0
    if len(text) > _MAX_TEXT:
        start = max(record.offsets[word][0] - _CONTEXT, 0)
        end = start + _MAX_TEXT
        text = ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")
    expected_set, predicted_set = {*expected}, {*predicted}
    return Mistake(
        text=text,
        pair=None,
        expected=_listed(record, [unit for unit in expected if unit not in predicted_set]),
        predicted=_listed(record, [unit for unit in predicted if unit not in expected_set]),
        score=float(confidence),
        place=record.place,
    )


def _listed(record: TaggedSentence, entities: Sequence[Entity]) -> str:
    """Lists entities or words with their types: `Paris LOC, New York LOC`."""
    offsets = record.offsets
    return ", ".join(f"{record.text[offsets[start][0] : offsets[end - 1][1]]} {kind}" for kind, start, end in entities)
