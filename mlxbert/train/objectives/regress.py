"""The objective of regression: one number per text or pair."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mlxbert.errors import InputError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.nn.heads import Network
from mlxbert.train.data import data_report
from mlxbert.train.data.data_report import SplitReport
from mlxbert.train.data.labelled_texts import LabelledText
from mlxbert.train.nn.losses import mean_squared_error
from mlxbert.train.objectives.objective import Example, Predictions, Split, TrainBatch
from mlxbert.train.objectives.text_objective import HEAD, TextObjective
from mlxbert.train.scores import labelled_scores, metrics
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.scores.linear_models import IDENTITY
from mlxbert.train.scores.metrics import Floats


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
