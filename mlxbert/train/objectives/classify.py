"""The objectives of texts and pairs with labels: one class, any number of labels, or a number."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import InputError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.nn.heads import Network, probabilities
from mlxbert.train.data import data_report
from mlxbert.train.data.data_report import SplitReport
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.nn.losses import binary_cross_entropy, cross_entropy, mean_squared_error
from mlxbert.train.objectives.distillation_losses import TeacherTargets, divergence, independent_divergence
from mlxbert.train.objectives.objective import Example, Predictions, Split, TrainBatch
from mlxbert.train.objectives.task_objective import Origin
from mlxbert.train.objectives.text_objective import HEAD, TextObjective
from mlxbert.train.options.training_tasks import ClassLearning
from mlxbert.train.scores import labelled_scores, metrics
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.scores.linear_models import IDENTITY, SIGMOID, SOFTMAX
from mlxbert.train.scores.metrics import Floats

_FEW_SHOT = 64  # up to this many examples per label, pairs are better (benchmarks/few_shot.py)


class Classify(TextObjective):
    """Classification, trained with the cross-entropy over the classes."""

    name = "classify"
    learning: ClassLearning
    kind = "class"
    common, link = "largest class", SOFTMAX

    def check(self, records: Sequence[LabelledText]) -> None:
        if self.columns is not None:
            data_report.check_label_column(records, self.columns.label or "")
        labels = {name for record in records for name in record.names}
        if len(labels) < 2:
            problem = f"every example has the label {min(labels, default='')!r}, expected two labels or more"
            raise InputError(f"{data_report.first_place(records)}: {problem}")

    def warnings(self, train: SplitReport, records: Sequence[LabelledText]) -> Iterator[str]:
        yield from super().warnings(train, records)
        yield from data_report.other_than_classes(train.labels)

    def usual_variant(self, records: Sequence[LabelledText], source: Origin) -> str | None:
        repeated = 2 * len({record.label for record in records}) < len(records)  # even after the validation split
        suitable = self.learning.few_shot is None and repeated and source.embeds()
        return "few_shot" if suitable and self.few_shot_hint(records) else None

    def few_shot_hint(self, records: Sequence[LabelledText]) -> str | None:
        counts = Counter(str(record.label) for record in records)
        pairs = self.columns is not None and self.columns.pair is not None
        conflicting = replace(self.learning, few_shot=None) != ClassLearning()  # few_shot takes none of these options
        if pairs or conflicting or max(counts.values()) > _FEW_SHOT:
            return None
        return "`few_shot=True` is made for so few examples per label"

    def balance(self, train: SplitReport) -> Iterator[str]:
        dominant = [*data_report.dominant_label(train)]
        yield from dominant or data_report.imbalance(train, "`class_weights='balanced'` may help.")

    def heads(self, records: Sequence[LabelledText]) -> Mapping[str, Labels | None]:
        self._counts = Counter(str(record.label) for record in records)
        return super().heads(records)

    def target(self, record: LabelledText) -> int:
        return self.labels.encode(str(record.label))

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, mx.array | float]:
        logits = network.logits(HEAD, batch.inputs)
        smoothing = self.learning.label_smoothing
        if self.learning.class_weights == "none":
            loss = cross_entropy(logits, batch.targets, label_smoothing=smoothing)
            return loss, float(batch.targets.shape[0])
        weights = mx.array(self.weights())
        loss = cross_entropy(logits, batch.targets, weights, label_smoothing=smoothing)
        return loss, weights[batch.targets].sum()

    def weights(self) -> list[float]:
        """Returns class weights that give all classes the same total weight. The mean weight of an example is 1."""
        total = sum(self._counts.values())
        return [total / (len(self.labels) * max(self._counts[name], 1)) for name in self.labels.names]

    def teacher_distance(self, scores: mx.array, targets: TeacherTargets, temperature: float) -> mx.array:
        return divergence(scores, targets.scores, temperature)

    def scores(self, logits: mx.array) -> mx.array:
        return probabilities(logits)

    def metrics(self, examples: Sequence[Example], predictions: Predictions) -> dict[str, float]:
        """See `mlxbert.train.scores.metrics`; `loss` is the mean cross-entropy."""
        targets = np.array([example.target for example in examples])
        return metrics.classify_metrics(targets, np.asarray(predictions))

    def expected(self, records: Sequence[LabelledText]) -> Floats:
        """Returns the classes of the records, one-hot encoded, (N, C)."""
        return np.eye(len(self.labels))[labelled_scores.label_numbers(records, self.labels.names)]

    def score(self, expected: Floats, predicted: Floats) -> float:
        return metrics.classify_metrics(expected.argmax(1), predicted)[self.metric]

    def score_common(self, train: Floats, expected: Floats) -> float:
        """See `TextObjective.score_common`. Of equally frequent classes, the one with the best score counts."""
        share = train.mean(0)
        candidates = (share + 1e-9 * one_hot for one_hot in np.eye(len(share))[share == share.max()])
        scores = [self.score(expected, np.broadcast_to(candidate, expected.shape)) for candidate in candidates]
        return (min if self.minimize else max)(scores)

    def constant(self, train: Sequence[LabelledText], valid: Sequence[LabelledText]) -> dict[str, float]:
        counts = [count for _, count in Counter(record.label for record in train).most_common(2)]
        name = f"best of the {self.common}es" if len({*counts}) < len(counts) else self.common
        return {name: super().constant(train, valid)[self.common]}

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        return labelled_scores.classification(
            part.records, self.labels.names, np.asarray(predictions), metric=self.metric, **facts
        )


class Multilabel(TextObjective):
    """Multi-label classification, trained with the binary cross-entropy of every label.

    Each label has a threshold, which is tuned on the validation data.
    """

    name = "multilabel"
    kind = "classes"
    common, link = "most frequent labels", SIGMOID

    def check(self, records: Sequence[LabelledText]) -> None:
        if not any(record.names for record in records):
            raise InputError(f"{data_report.first_place(records)}: no example has a label")

    def warnings(self, train: SplitReport, records: Sequence[LabelledText]) -> Iterator[str]:
        yield from super().warnings(train, records)
        if all(len(record.names) == 1 for record in records):
            yield "Every training example has exactly one label; train 'classify' instead if this is always so."

    def target(self, record: LabelledText) -> list[float]:
        numbers = {self.labels.encode(name) for name in record.names}
        return [float(number in numbers) for number in range(len(self.labels))]

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        loss = binary_cross_entropy(network.logits(HEAD, batch.inputs), batch.targets)
        return loss / len(self.labels), float(batch.targets.shape[0])

    def teacher_distance(self, scores: mx.array, targets: TeacherTargets, temperature: float) -> mx.array:
        return independent_divergence(scores, targets.scores, temperature)

    def scores(self, logits: mx.array) -> mx.array:
        return mx.sigmoid(logits)

    def metrics(self, examples: Sequence[Example], predictions: Predictions) -> dict[str, float]:
        """See `mlxbert.train.scores.metrics`. The thresholds are tuned on the same predictions."""
        targets, scores = _targets(examples), np.asarray(predictions)
        return metrics.multilabel_metrics(targets, scores, metrics.tune_thresholds(scores, targets))

    def tuned(self, part: Split, predictions: Predictions) -> Labels:
        thresholds = metrics.tune_thresholds(np.asarray(predictions), _targets(part.examples))
        return replace(super().tuned(part, predictions), thresholds=tuple(thresholds))

    def expected(self, records: Sequence[LabelledText]) -> Floats:
        """Returns an array (N, C) with 1 for every label that a record has, and 0 for the other labels."""
        return labelled_scores.label_matrix(records, self.labels.names).astype(np.float64)

    def score(self, expected: Floats, predicted: Floats) -> float:
        """See `TextObjective.score`. The thresholds come from `cross_thresholds`, as for a trained model."""
        has = expected.astype(np.bool_)
        return metrics.multilabel_metrics(has, predicted, metrics.cross_thresholds(predicted, has))[self.metric]

    def score_common(self, train: Floats, expected: Floats) -> float:
        """Returns the main metric of always predicting the most frequent labels.

        The number of these labels is the mean number of labels per example, rounded, but at least one.
        """
        share = train.mean(0)
        frequent = np.argsort(-share, kind="stable")[: max(round(float(train.sum(1).mean())), 1)]
        thresholds = np.full(len(share), 2.0)
        thresholds[frequent] = 0.0
        predicted = np.broadcast_to(share, expected.shape)
        return metrics.multilabel_metrics(expected.astype(np.bool_), predicted, thresholds)[self.metric]

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        """See `TaskObjective.evaluation`. A label is predicted if its probability is at least its threshold."""
        thresholds = self.labels.thresholds or (0.5,) * len(self.labels)
        return labelled_scores.multilabel(
            part.records, self.labels.names, np.asarray(predictions), thresholds=thresholds, metric=self.metric, **facts
        )


def _targets(examples: Sequence[Example]) -> NDArray[np.bool_]:
    return np.array([example.target for example in examples]) > 0.5


class Regress(TextObjective):
    """Regression, trained with the squared error of a number."""

    name = "regress"
    kind = "number"
    common, link = "mean", IDENTITY

    def labels_of(self, records: Sequence[LabelledText]) -> Labels:
        column = self.columns.label if self.columns is not None else None
        return Labels((column or "value",), self.problem_type)

    def check(self, records: Sequence[LabelledText]) -> None:
        if len({record.label for record in records}) < 2:
            problem = f"every example has the number {records[0].label}, expected different numbers"
            raise InputError(f"{data_report.first_place(records)}: {problem}")

    def warnings(self, train: SplitReport, records: Sequence[LabelledText]) -> Iterator[str]:
        return data_report.other_than_numbers(records)

    def target(self, record: LabelledText) -> float:
        assert isinstance(record.label, float)
        return record.label

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        logits = network.logits(HEAD, batch.inputs)[:, 0]
        return mean_squared_error(logits, batch.targets), float(batch.targets.shape[0])

    def scores(self, logits: mx.array) -> mx.array:
        return logits

    def metrics(self, examples: Sequence[Example], predictions: Predictions) -> dict[str, float]:
        targets = np.array([example.target for example in examples], np.float64)
        return metrics.regress_metrics(targets, np.asarray(predictions, np.float64)[:, 0])

    def expected(self, records: Sequence[LabelledText]) -> Floats:
        """Returns the number to predict for each record, (N,)."""
        return labelled_scores.numbers(records)

    def score(self, expected: Floats, predicted: Floats) -> float:
        return metrics.regress_metrics(expected, predicted)[self.metric]

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        return labelled_scores.regression(part.records, np.asarray(predictions)[:, 0], metric=self.metric, **facts)
