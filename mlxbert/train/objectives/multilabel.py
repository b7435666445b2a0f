"""The objective of multi-label classification: any number of labels per text or pair."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import InputError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.nn.heads import Network
from mlxbert.train.data import data_report
from mlxbert.train.data.data_report import SplitReport
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.nn.losses import binary_cross_entropy
from mlxbert.train.objectives.distillation_losses import TeacherTargets, independent_divergence
from mlxbert.train.objectives.objective import Example, Predictions, Split, TrainBatch
from mlxbert.train.objectives.text_objective import HEAD, TextObjective
from mlxbert.train.scores import labelled_scores, metrics
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.scores.linear_models import SIGMOID
from mlxbert.train.scores.metrics import Floats


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
