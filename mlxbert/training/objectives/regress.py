"""A number per text or pair."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mlxbert.data.labelled import Labelled
from mlxbert.errors import InputError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.nn.heads import Network
from mlxbert.nn.losses import mean_squared_error
from mlxbert.training.data import checks
from mlxbert.training.data.report import SplitReport
from mlxbert.training.objectives.objective import Example, Predictions, Split, TrainBatch
from mlxbert.training.objectives.texts import HEAD, TextObjective
from mlxbert.training.scores import metrics, scoring
from mlxbert.training.scores.linear import IDENTITY
from mlxbert.training.scores.metrics import Floats
from mlxbert.training.scores.summary import Evaluation


class Regress(TextObjective):
    """Squared error of one number."""

    name = "regress"
    kind = "number"
    common, link = "mean", IDENTITY

    def labels_of(self, records: Sequence[Labelled]) -> Labels:
        """One output, called by the column that is predicted."""
        column = self.columns.label if self.columns is not None else None
        return Labels((column or "value",), self.problem_type)

    def check(self, records: Sequence[Labelled]) -> None:
        """Refuses numbers that are all the same."""
        if len({record.label for record in records}) < 2:
            said = f"every example has the number {records[0].label}, expected different ones"
            raise InputError(f"{checks.first_place(records)}: {said}")

    def warnings(self, train: SplitReport, records: Sequence[Labelled]) -> Iterator[str]:
        """See `TaskObjective.warnings`."""
        return checks.other_than_numbers(records)

    def target(self, record: Labelled) -> float:
        """The number."""
        assert isinstance(record.label, float)
        return record.label

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        """The summed squared errors, and the number of examples."""
        logits = network.logits(HEAD, batch.inputs)[:, 0]
        return mean_squared_error(logits, batch.targets), float(batch.targets.shape[0])

    def scores(self, logits: mx.array) -> mx.array:
        """The numbers as they are."""
        return logits

    def metrics(self, examples: Sequence[Example], predictions: Predictions) -> dict[str, float]:
        """See `mlxbert.training.scores.metrics`."""
        targets = np.array([example.target for example in examples], np.float64)
        return metrics.regress_metrics(targets, np.asarray(predictions, np.float64)[:, 0])

    def expected(self, records: Sequence[Labelled]) -> Floats:
        """The numbers, (N,)."""
        return scoring.numbers(records)

    def score(self, expected: Floats, predicted: Floats) -> float:
        """See `TextObjective.score`."""
        return metrics.regress_metrics(expected, predicted)[self.metric]

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        """See `TaskObjective.evaluation`."""
        return scoring.regression(part.records, np.asarray(predictions)[:, 0], metric=self.metric, **facts)
