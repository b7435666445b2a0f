"""The objectives of training with a teacher: the loss of a task, combined with the distance from a teacher's outputs.

They wrap the objective of the task, and only the loop uses them. The task defines the distance between scores.

Shapes: B examples in a batch, L length, N rows of scores, C classes, W size of a vector.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from mlxbert.machine.device import mx
from mlxbert.nn.embedder import Normalize
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.text.batch import make_batch
from mlxbert.text.encoding import Encoding
from mlxbert.train.data.data_report import DataReport
from mlxbert.train.nn.losses import binary_cross_entropy, mean_squared_error
from mlxbert.train.objectives.objective import LoopObjective, TrainBatch
from mlxbert.train.options.loop_options import TeacherOptions

ERROR = "teacher_error"  # the metric that selects the best checkpoint if the validation data are single texts
Scores = NDArray[np.float32]


@dataclass(frozen=True)
class DistillationExample:
    """An example with the teacher's outputs for it."""

    example: Any  # the example of the task
    compute: Callable[[], Scores]  # computes `scores` when they are first needed

    def __len__(self) -> int:
        return len(self.example)

    @cached_property
    def scores(self) -> Scores:
        """The scores of the teacher's head, (C,), or (L, C) if each token has scores; or the teacher's vector, (W,)."""
        return self.compute()

    @property
    def encodings(self) -> Sequence[Encoding]:
        return cast(Sequence[Encoding], self.example.encodings)


@dataclass(frozen=True)
class TeacherTargets:
    """The targets of a batch in training with a teacher."""

    labels: Any  # the targets of the task
    scores: mx.array  # the teacher's scores, float32: (N, C), or (B, L, 2) for question answering
    # The rows of the flattened batch to which the scores belong, int32 (N,); `None` for all rows.
    rows: mx.array | None = None


class _ComputedNetwork:
    """A network that returns cached scores for a batch, so that two losses need only one forward pass."""

    def __init__(self, network: Network, scores: mx.array) -> None:
        self._network, self._scores = network, scores

    def logits(self, head: str, inputs: Batch) -> mx.array:
        return self._scores

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


class DistillationObjective(LoopObjective[Any]):
    """The base class of the objectives with a teacher.

    Args:
        order: For each label of the student, its index in the teacher's scores; `None` if the order is the same.
    """

    name: ClassVar[str] = "distillation"
    chooses = False  # whether the distance on the validation data selects the best checkpoint

    def __init__(self, task: Any, order: list[int] | None = None) -> None:
        self.task, self.metric, self.minimize, self.order = task, task.metric, task.minimize, order
        self.pure = task.pure

    def tokens(self, example: DistillationExample) -> Iterable[int]:
        return cast(Iterable[int], self.task.tokens(example.example))

    def settings(self) -> dict[str, Any]:
        return {}

    def noted(self, report: DataReport, teacher: str) -> DataReport:
        return replace(report, facts={**report.facts, "teacher": teacher})

    def distance(self, ours: mx.array, theirs: mx.array) -> mx.array:
        """Returns the distance between the student's and the teacher's predictions, summed over the examples."""
        return mean_squared_error(ours, theirs)


class ScoreDistillation(DistillationObjective):
    """The weighted sum of a task's loss and the distance from the teacher's scores, for tasks with a head.

    For classes, for tags, and for the first and last token of an answer, the distance is the Kullback-Leibler
    divergence between the distributions of the teacher and the student (arXiv:1503.02531). The temperature softens the
    distributions; the divergence is multiplied by the square of the temperature, so that gradients keep their size. If
    an example can have several labels, each label has a binary distribution of its own. For numbers, the distance is
    the squared error.
    """

    losses = ("labels", "teacher")

    def __init__(self, task: Any, options: TeacherOptions, order: list[int] | None = None) -> None:
        super().__init__(task, order)
        self._weight, self._temperature = options.teacher_weight, options.temperature

    def settings(self) -> dict[str, Any]:
        return {"teacher_weight": self._weight, "soft": self._temperature}

    def collate(self, examples: Sequence[DistillationExample], rng: random.Random) -> TrainBatch:
        task_examples = [example.example for example in examples]
        batch = self.task.collate(task_examples, rng)
        scores = [example.scores for example in examples]
        return replace(batch, targets=self.task.teacher_targets(batch, task_examples, scores))

    def totals(self, examples: Sequence[DistillationExample]) -> Any:
        return self.task.totals([example.example for example in examples])

    def terms(self, network: Network, batch: TrainBatch) -> tuple[Mapping[str, mx.array], mx.array | float]:
        targets: TeacherTargets = batch.targets
        scores = network.logits(self.task.head, batch.inputs)
        computed = cast(Network, _ComputedNetwork(network, scores))
        loss, weight = self.task.loss(computed, replace(batch, targets=targets.labels))
        distance = self.task.teacher_distance(scores.astype(mx.float32), targets, self._temperature)
        return {"labels": (1 - self._weight) * loss, "teacher": self._weight * distance}, weight

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, mx.array | float]:
        terms, weight = self.terms(network, batch)
        return terms["labels"] + terms["teacher"], weight


class VectorDistillation(DistillationObjective):
    """Training whose only loss is the squared error between the student's and the teacher's vectors (arXiv:2004.09813).

    Args:
        dimensions: Sizes to which vectors are truncated; they are then scaled to length 1 and compared. `None` compares
            full vectors.
    """

    def __init__(self, task: Any, dimensions: Sequence[int] | None, *, chooses: bool) -> None:
        super().__init__(task)
        self._dimensions, self.chooses = dimensions, chooses
        if chooses:
            self.metric, self.minimize = ERROR, True

    def noted(self, report: DataReport, teacher: str) -> DataReport:
        error = f"squared error to the vectors of {teacher}"
        facts = {**report.facts, "loss": error} | ({"validated by": error} if self.chooses else {})
        notes = self.task.notes()
        return replace(report, facts=facts, warnings=tuple(note for note in report.warnings if note not in notes))

    def tokens(self, example: DistillationExample) -> Iterable[int]:
        return cast(Iterable[int], example.example.encoding.ids)

    def collate(self, examples: Sequence[DistillationExample], rng: random.Random) -> TrainBatch:
        inputs = make_batch([example.example.encoding for example in examples], self.task.config)
        return TrainBatch(inputs, mx.array(np.stack([example.scores for example in examples])))

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        return self.distance(self.task.outputs(network, batch.inputs), batch.targets), float(len(batch.targets))

    def distance(self, ours: mx.array, theirs: mx.array) -> mx.array:
        """Returns the mean squared error of a text's vector, summed over texts and sizes. Arguments are (B, W)."""
        if self._dimensions is None:
            return super().distance(ours, theirs)
        units = [[Normalize()(vectors[:, :size]) for vectors in (ours, theirs)] for size in self._dimensions]
        return mx.stack([mean_squared_error(*pair) for pair in units]).sum()


def divergence(ours: mx.array, theirs: mx.array, temperature: float) -> mx.array:
    """Returns the divergence between the student's and the teacher's softened distributions, summed over all rows.

    The arguments are logits; their last axis holds the classes.
    """
    student, teacher = (_log_softmax(scores / temperature) for scores in (ours, theirs))
    return temperature**2 * (mx.exp(teacher) * (teacher - student)).sum()


def independent_divergence(ours: mx.array, theirs: mx.array, temperature: float) -> mx.array:
    """Returns the divergence between the teacher's and the student's softened probabilities of independent labels.

    The arguments are logits (B, C). The divergence is averaged over the labels and summed over the examples.
    """
    ours, theirs = ours / temperature, theirs / temperature
    targets = mx.sigmoid(theirs)
    distance = binary_cross_entropy(ours, targets) - binary_cross_entropy(theirs, targets)
    return temperature**2 * distance / ours.shape[-1]


def _log_softmax(scores: mx.array) -> mx.array:
    return scores - mx.logsumexp(scores, axis=-1, keepdims=True)
