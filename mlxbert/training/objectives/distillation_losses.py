"""What is trained with a teacher: the loss of a task, and the distance from what another model computes.

These objectives stand before that of the task in the loop alone, which says how far its scores are from a teacher's.

Shapes: B examples of a batch, L length, N rows of scores, C classes, W size of a vector.
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
from mlxbert.nn.losses import binary_cross_entropy, mean_squared_error
from mlxbert.text.batch import make_batch
from mlxbert.text.encoding import Encoding
from mlxbert.training.data.data_report import DataReport
from mlxbert.training.objectives.objective import LoopObjective, TrainBatch
from mlxbert.training.options.loop_options import TeacherOptions

ERROR = "teacher_error"  # the metric that chooses vectors where nobody has judged the validation data
Scores = NDArray[np.float32]


@dataclass(frozen=True)
class DistillationExample:
    """An example, and what the teacher computes for it.

    Attributes:
        example: The example of the task.
        ask: Gives the `scores`.
    """

    example: Any
    ask: Callable[[], Scores]

    def __len__(self) -> int:
        return len(self.example)

    @cached_property
    def scores(self) -> Scores:
        """Scores of the teacher's head, (C,), of each token (L, C); or its vector, (W,)."""
        return self.ask()

    @property
    def encodings(self) -> Sequence[Encoding]:
        """See `Example.encodings`."""
        return cast(Sequence[Encoding], self.example.encodings)


@dataclass(frozen=True)
class TeacherTargets:
    """What is learned of a batch.

    Attributes:
        own: The targets of the task.
        scores: Those of the teacher: float32 (N, C), or (B, L, 2) for questions.
        rows: The rows of the flattened batch that the scores are of, int32 (N,); `None` for all.
    """

    own: Any
    scores: mx.array
    rows: mx.array | None = None


class _ComputedNetwork:
    """A network whose scores of a batch are known: two losses of one forward pass."""

    def __init__(self, network: Network, scores: mx.array) -> None:
        self._network, self._scores = network, scores

    def logits(self, head: str, inputs: Batch) -> mx.array:
        """The known scores."""
        return self._scores

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


class DistillationObjective(LoopObjective[Any]):
    """What both objectives with a teacher share.

    Args:
        task: The objective of the task, a `TaskObjective`.
        order: For each label of the student its place in the teacher's scores; `None` for the same order.

    Attributes:
        chooses: Whether the distance on the validation data chooses the best checkpoint.
    """

    name: ClassVar[str] = "distillation"
    chooses = False

    def __init__(self, task: Any, order: list[int] | None = None) -> None:
        self.task, self.metric, self.minimize, self.order = task, task.metric, task.minimize, order
        self.pure = task.pure

    def tokens(self, example: DistillationExample) -> Iterable[int]:
        """See `LoopObjective.tokens`."""
        return cast(Iterable[int], self.task.tokens(example.example))

    def settings(self) -> dict[str, Any]:
        """The options that decide the result: with others, a run cannot resume."""
        return {}

    def noted(self, report: DataReport, teacher: str) -> DataReport:
        """A report that names the teacher."""
        return replace(report, facts={**report.facts, "teacher": teacher})

    def distance(self, ours: mx.array, theirs: mx.array) -> mx.array:
        """How far predictions of the student are from the teacher's, summed over the examples."""
        return mean_squared_error(ours, theirs)


class ScoreDistillation(DistillationObjective):
    """The loss of a task with a head, and the distance from the teacher's scores, each with its share.

    Classes, tags and places of answers are distributions, softened by the temperature: the Kullback-Leibler divergence
    (arXiv:1503.02531). Labels that do not exclude each other are as many distributions of two. The square of the
    temperature is a factor, so that gradients keep their size. Of numbers it is the squared error.

    Args:
        task: The objective of the task.
        options: The share of the teacher, and the temperature.
        order: See `DistillationObjective`.
    """

    losses = ("labels", "teacher")

    def __init__(self, task: Any, options: TeacherOptions, order: list[int] | None = None) -> None:
        super().__init__(task, order)
        self._share, self._temperature = options.teacher_weight, options.temperature

    def settings(self) -> dict[str, Any]:
        """See `DistillationObjective.settings`."""
        return {"teacher_weight": self._share, "soft": self._temperature}

    def collate(self, examples: Sequence[DistillationExample], rng: random.Random) -> TrainBatch:
        """The batch of the task, with the scores of the teacher."""
        own = [one.example for one in examples]
        batch = self.task.collate(own, rng)
        return replace(batch, targets=self.task.teacher_targets(batch, own, [one.scores for one in examples]))

    def totals(self, examples: Sequence[DistillationExample]) -> Any:
        """See `Objective.totals`."""
        return self.task.totals([one.example for one in examples])

    def terms(self, network: Network, batch: TrainBatch) -> tuple[Mapping[str, mx.array], mx.array | float]:
        """The loss of the task and the distance from the teacher, both as sums; the weight is the task's."""
        targets: TeacherTargets = batch.targets
        scores = network.logits(self.task.head, batch.inputs)
        known = cast(Network, _ComputedNetwork(network, scores))
        loss, weight = self.task.loss(known, replace(batch, targets=targets.own))
        far = self.task.teacher_distance(scores.astype(mx.float32), targets, self._temperature)
        return {"labels": (1 - self._share) * loss, "teacher": self._share * far}, weight

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, mx.array | float]:
        """The sum of both."""
        found, weight = self.terms(network, batch)
        return found["labels"] + found["teacher"], weight


class VectorDistillation(DistillationObjective):
    """The squared error of the vectors of texts alone; without labels, there is no other loss (arXiv:2004.09813).

    Args:
        task: The objective of `embed`.
        dimensions: Sizes to which vectors are truncated and scaled to length 1 first; `None` for whole vectors.
        chooses: Whether the same error on the validation data chooses the best checkpoint.
    """

    def __init__(self, task: Any, dimensions: Sequence[int] | None, *, chooses: bool) -> None:
        super().__init__(task)
        self._dimensions, self.chooses = dimensions, chooses
        if chooses:
            self.metric, self.minimize = ERROR, True

    def noted(self, report: DataReport, teacher: str) -> DataReport:
        """A report whose only loss is the distance from the teacher."""
        error = f"squared error to the vectors of {teacher}"
        facts = {**report.facts, "loss": error} | ({"validated by": error} if self.chooses else {})
        said = self.task.notes()  # of the loss that is not used
        return replace(report, facts=facts, warnings=tuple(note for note in report.warnings if note not in said))

    def tokens(self, example: DistillationExample) -> Iterable[int]:
        """See `Objective.tokens`."""
        return cast(Iterable[int], example.example.encoding.ids)

    def collate(self, examples: Sequence[DistillationExample], rng: random.Random) -> TrainBatch:
        """Each text once, with the vector of the teacher."""
        inputs = make_batch([one.example.encoding for one in examples], self.task.config)
        return TrainBatch(inputs, mx.array(np.stack([one.scores for one in examples])))

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        """The distance, and the number of texts."""
        return self.distance(self.task.outputs(network, batch.inputs), batch.targets), float(len(batch.targets))

    def distance(self, ours: mx.array, theirs: mx.array) -> mx.array:
        """The sum over the texts of the mean over the values (B, W), for each size."""
        if self._dimensions is None:
            return super().distance(ours, theirs)
        units = [[Normalize()(vectors[:, :size]) for vectors in (ours, theirs)] for size in self._dimensions]
        return mx.stack([mean_squared_error(*pair) for pair in units]).sum()


def divergence(ours: mx.array, theirs: mx.array, temperature: float) -> mx.array:
    """The divergence of distributions along the last axis, softened by a temperature; the sum over all others."""
    one, other = (_log_shares(scores / temperature) for scores in (ours, theirs))
    return temperature**2 * (mx.exp(other) * (other - one)).sum()


def independent_divergence(ours: mx.array, theirs: mx.array, temperature: float) -> mx.array:
    """The divergence of probabilities of independent labels, softened; the mean over the labels (B, C)."""
    ours, theirs = ours / temperature, theirs / temperature
    wanted = mx.sigmoid(theirs)
    far = binary_cross_entropy(ours, wanted) - binary_cross_entropy(theirs, wanted)
    return temperature**2 * far / ours.shape[-1]


def _log_shares(scores: mx.array) -> mx.array:
    return scores - mx.logsumexp(scores, axis=-1, keepdims=True)
