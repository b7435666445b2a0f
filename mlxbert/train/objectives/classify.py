"""The objective of classification: one class per text or pair."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mlxbert.errors import InputError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.nn.heads import Network, probabilities
from mlxbert.train.data import data_report
from mlxbert.train.data.data_report import SplitReport
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.nn.losses import cross_entropy
from mlxbert.train.objectives.distillation_losses import TeacherTargets, divergence
from mlxbert.train.objectives.objective import Example, Predictions, Split, TrainBatch
from mlxbert.train.objectives.task_objective import Origin
from mlxbert.train.objectives.text_objective import HEAD, TextObjective
from mlxbert.train.options.training_tasks import ClassLearning
from mlxbert.train.scores import labelled_scores, metrics
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.scores.linear_models import SOFTMAX
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
