"""The objective of reranking: a cross-encoder scores how well a text answers a query.

Shapes: B examples in a batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlxbert.errors import InputError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.tasks.rerank import check_one_score
from mlxbert.train.data.labelled_rows import LabelledRows
from mlxbert.train.data.relevance import JudgedPair, RelevanceColumns, find_relevance_columns, read_judged
from mlxbert.train.nn.losses import binary_cross_entropy, mean_squared_error
from mlxbert.train.objectives.distillation_losses import TeacherTargets, independent_divergence
from mlxbert.train.objectives.objective import Example, Predictions, Split, TrainBatch
from mlxbert.train.objectives.task_objective import TaskObjective
from mlxbert.train.objectives.text_objective import HEAD
from mlxbert.train.options.training_tasks import QueryData, RerankLearning
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.scores.metrics import Numbers
from mlxbert.train.scores.reranking_scores import (
    check_rerank_metric,
    metrics_of,
    rerank_metrics,
    reranking,
    vector_baseline,
)
from mlxbert.weights.rerankers import activation, gives_probabilities

_LABELS = Labels(("LABEL_0",))  # without a problem_type, as in sentence-transformers


@dataclass(frozen=True)
class Pair(Example):
    """A query with a text. The target is the label."""

    record: JudgedPair  # the query, the text and the label


class Rerank(TaskObjective[Pair]):
    """Reranking: a model computes one score for a query and a text.

    The loss `bce` is the cross-entropy of the score's sigmoid, like sentence-transformers' BinaryCrossEntropyLoss;
    `mse` is the squared error of the score itself, like sentence-transformers' MSELoss.
    """

    name, head = "rerank", HEAD
    data: QueryData
    learning: RerankLearning
    columns: RelevanceColumns | None = None
    _notes: tuple[str, ...] = ()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._probabilities = self.learning.loss == "bce"

    def read(self, rows: LabelledRows) -> list[JudgedPair]:
        """Reads pairs with labels. The labels of the first call decide the main metric."""
        columns = self.columns
        if columns is None or not columns.fit(rows):  # files of another layout
            columns = find_relevance_columns(rows, **self._columns)
        records = read_judged(rows, columns, self.data.max_score)
        if self.columns is None:
            self.columns = columns
            self.metric = self._metric or metrics_of(records)[0]
        return records

    def notes(self) -> tuple[str, ...]:
        return self._notes

    def check(self, records: Sequence[JudgedPair]) -> None:
        """Raises `InputError` if all labels are the same. Counts the queries that no text answers, for `notes`."""
        labels = {record.label for record in records}
        if len(labels) < 2:
            problem = f"every example has the label {records[0].label:g}, expected different labels"
            raise InputError(f"{records[0].place} and below: {problem}")
        if self.columns is not None and self.columns.groups:
            answered = {record.text for record in records if record.label}
            without = len({record.text for record in records} - answered)
            self._notes = (f"Queries without a positive text: {without:,}.",) if without else ()

    def check_valid(self, train: Sequence[JudgedPair], valid: Sequence[JudgedPair]) -> None:
        check_rerank_metric(self.metric, valid)

    def heads(self, records: Sequence[JudgedPair]) -> Mapping[str, Labels | None]:
        return {HEAD: _LABELS}

    def config_keys(self) -> dict[str, Any]:
        return activation(probabilities=self._probabilities)

    def check_model(self, model: Model) -> None:
        """Checks that a model has a single score, and stores whether its files turn the score into a probability."""
        check_one_score(model)
        self._probabilities = gives_probabilities(model.files)

    def prepare(self, record: JudgedPair) -> Pair:
        """Tokenizes a query and a text. If they are too long, the longer one is truncated first."""
        encoding = self.tokenizer.encode(record.text, record.pair, overflow="truncate")
        return Pair(encoding, record.label, record)

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        logits = network.logits(HEAD, batch.inputs)[:, 0]
        loss = binary_cross_entropy if self.learning.loss == "bce" else mean_squared_error
        return loss(logits, batch.targets), float(batch.targets.shape[0])

    def teacher_distance(self, scores: mx.array, targets: TeacherTargets, temperature: float) -> mx.array:
        """Returns the divergence from the teacher's probability or, with the loss `mse`, the squared error."""
        if self.learning.loss == "mse":
            return super().teacher_distance(scores, targets, temperature)
        return independent_divergence(scores, targets.scores, temperature)

    def predict(self, network: Network, inputs: Batch) -> mx.array:
        """Computes the logits, float32 (B,)."""
        return super().predict(network, inputs)[:, 0]

    def _scores(self, logits: Numbers) -> Numbers:
        """Converts logits to scores, float32 (N,): probabilities, or the logits themselves."""
        return np.asarray(mx.sigmoid(mx.array(logits))) if self._probabilities else logits

    def metrics(self, examples: Sequence[Pair], predictions: Predictions) -> dict[str, float]:
        """See `mlxbert.train.scores.reranking_scores`; `loss` is the training loss without dropout."""
        logits, targets = np.asarray(predictions, np.float64), np.array([example.target for example in examples])
        binary = self.learning.loss == "bce"
        losses = np.logaddexp(0, logits) - targets * logits if binary else (logits - targets) ** 2
        scores = self._scores(np.asarray(predictions))
        metrics = rerank_metrics([example.record for example in examples], scores, logits)
        return metrics | {"loss": float(losses.mean())}

    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        logits = np.asarray(predictions)
        return reranking(part.records, self._scores(logits), logits=logits, metric=self.metric, **facts)

    def baselines(self, model: Model, train: Sequence[JudgedPair], valid: Sequence[JudgedPair]) -> dict[str, float]:
        """Returns the score of ranking texts by the similarity between their vectors and the query's vector."""
        return vector_baseline(model, valid, self.metric)
