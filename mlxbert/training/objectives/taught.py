"""Training with a teacher: the loss of a task, and the distance from what another model computes for each example.

These objectives stand before that of the task in the loop alone: the task reads, evaluates and knows of no teacher.

Shapes: B examples of a batch, L length, N rows of scores, C classes, W size of a vector.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.nn.embedder import Normalize
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.nn.losses import binary_cross_entropy, mean_squared_error
from mlxbert.text.batch import make_batch
from mlxbert.text.encoding import Encoding
from mlxbert.training.objective import Objective, Predictions, TrainBatch
from mlxbert.training.objectives.embed import Embed
from mlxbert.training.objectives.task import TaskObjective
from mlxbert.training.options import TeacherOptions

ERROR = "teacher_error"  # the metric that chooses vectors where nobody has judged the validation data
_HIDDEN = -1e9  # the score of padding
Scores = NDArray[np.float32]


@dataclass(frozen=True)
class Lesson:
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
class Targets:
    """What is learned of a batch.

    Attributes:
        own: The targets of the task.
        scores: Those of the teacher: float32 (N, C), or (B, L, 2) for questions.
        rows: The rows of the flattened batch that the scores are of, int32 (N,); `None` for all.
    """

    own: Any
    scores: mx.array
    rows: mx.array | None = None


class _Computed:
    """A network whose scores of a batch are known: two losses of one forward pass."""

    def __init__(self, network: Network, scores: mx.array) -> None:
        self._network, self._scores = network, scores

    def logits(self, head: str, inputs: Batch) -> mx.array:
        """The known scores."""
        return self._scores

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)


class Taught(Objective[Any]):
    """What both objectives with a teacher share: all but the losses is the task's.

    Args:
        task: The objective of the task.
    """

    name: ClassVar[str] = "taught"

    def __init__(self, task: TaskObjective[Any]) -> None:
        self.task, self.metric, self.minimize = task, task.metric, task.minimize

    def heads(self, records: Sequence[Any]) -> Mapping[str, Labels | None]:
        """See `Objective.heads`."""
        return self.task.heads(records)

    def prepare(self, record: Any) -> Any:
        """See `Objective.prepare`."""
        return self.task.prepare(record)

    def tokens(self, example: Lesson) -> Iterable[int]:
        """See `Objective.tokens`."""
        return self.task.tokens(example.example)

    def predict(self, network: Network, inputs: Batch) -> Predictions:
        """See `Objective.predict`."""
        return self.task.predict(network, inputs)

    def metrics(self, examples: Sequence[Any], predictions: Predictions) -> dict[str, float]:
        """See `Objective.metrics`."""
        return self.task.metrics(examples, predictions)


class TaughtScores(Taught):
    """The loss of a task with a head, and the distance from the teacher's scores, each with its share.

    Classes, tags and places of answers are distributions, softened by the temperature: the Kullback-Leibler divergence
    (arXiv:1503.02531). Labels that do not exclude each other are as many distributions of two. The square of the
    temperature is a factor, so that gradients keep their size. Of numbers it is the squared error.

    Args:
        task: The objective of the task.
        options: The share of the teacher, and the temperature.
    """

    losses = ("labels", "teacher")

    def __init__(self, task: TaskObjective[Any], options: TeacherOptions) -> None:
        super().__init__(task)
        self._share, self._temperature = options.teacher_weight, options.temperature

    def collate(self, examples: Sequence[Lesson], rng: random.Random) -> TrainBatch:
        """The batch of the task, with the scores of the teacher."""
        batch = self.task.collate([one.example for one in examples], rng)
        rows, length = None, batch.inputs.input_ids.shape[1]
        scores = [one.scores for one in examples]
        if self.task.name == "tag":  # only the tokens that have a tag
            places = [[place for place, _ in one.example.target] for one in examples]
            scores = [found[chosen] for found, chosen in zip(scores, places, strict=True)]
            rows = mx.array([row * length + place for row, some in enumerate(places) for place in some], mx.int32)
        elif self.task.name == "answer":
            missing = [((0, length - len(found)), (0, 0)) for found in scores]
            scores = [np.pad(*pair, constant_values=_HIDDEN)[None] for pair in zip(scores, missing, strict=True)]
        else:
            scores = [found[None] for found in scores]
        return replace(batch, targets=Targets(batch.targets, mx.array(np.concatenate(scores)), rows))

    def totals(self, examples: Sequence[Lesson]) -> Any:
        """See `Objective.totals`."""
        return self.task.totals([one.example for one in examples])

    def terms(self, network: Network, batch: TrainBatch) -> tuple[Mapping[str, mx.array], mx.array | float]:
        """The loss of the task and the distance from the teacher, both as sums; the weight is the task's."""
        targets: Targets = batch.targets
        scores = network.logits(self.task.head, batch.inputs)
        known = cast(Network, _Computed(network, scores))
        loss, weight = self.task.loss(known, replace(batch, targets=targets.own))
        far = self._distance(scores.astype(mx.float32), targets)
        return {"labels": (1 - self._share) * loss, "teacher": self._share * far}, weight

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, mx.array | float]:
        """The sum of both."""
        found, weight = self.terms(network, batch)
        return found["labels"] + found["teacher"], weight

    def _distance(self, scores: mx.array, targets: Targets) -> mx.array:
        """How far the scores of a batch, (B, C) or (B, L, C), are from the teacher's; each example as the task does."""
        name, theirs = self.task.name, targets.scores
        if name == "regress" or self.task.settings().get("loss") == "mse":
            return mean_squared_error(scores, theirs)
        if name == "answer":
            ours = mx.where(theirs > _HIDDEN, scores, _HIDDEN)
            return self._classes(*(ends.transpose(0, 2, 1) for ends in (ours, theirs))) / 2
        if name == "tag":
            if not theirs.size:
                return 0 * scores.sum()
            return self._classes(scores.reshape(-1, scores.shape[-1])[targets.rows], theirs)
        return self._classes(scores, theirs) if name == "classify" else self._independent(scores, theirs)

    def _classes(self, ours: mx.array, theirs: mx.array) -> mx.array:
        """The divergence of distributions along the last axis."""
        logs = (_log_shares(scores / self._temperature) for scores in (ours, theirs))
        one, other = logs
        return self._temperature**2 * (mx.exp(other) * (other - one)).sum()

    def _independent(self, ours: mx.array, theirs: mx.array) -> mx.array:
        """The divergence of probabilities, the mean over the labels (B, C)."""
        ours, theirs = ours / self._temperature, theirs / self._temperature
        wanted = mx.sigmoid(theirs)
        far = binary_cross_entropy(ours, wanted) - binary_cross_entropy(theirs, wanted)
        return self._temperature**2 * far / ours.shape[-1]


class TaughtVectors(Taught):
    """The squared error of the vectors of texts alone; without labels, there is no other loss (arXiv:2004.09813).

    Args:
        task: The objective of `embed`.
        dimensions: Sizes to which vectors are truncated and scaled to length 1 first; `None` for whole vectors.
        chooses: Whether the same error on the validation data chooses the best checkpoint.
    """

    def __init__(self, task: Embed, dimensions: Sequence[int] | None, *, chooses: bool) -> None:
        super().__init__(task)
        self._embed, self._dimensions = task, dimensions
        if chooses:
            self.metric, self.minimize = ERROR, True

    def tokens(self, example: Lesson) -> Iterable[int]:
        """See `Objective.tokens`."""
        return cast(Iterable[int], example.example.encoding.ids)

    def collate(self, examples: Sequence[Lesson], rng: random.Random) -> TrainBatch:
        """Each text once, with the vector of the teacher."""
        inputs = make_batch([one.example.encoding for one in examples], self._embed.config)
        return TrainBatch(inputs, mx.array(np.stack([one.scores for one in examples])))

    def loss(self, network: Network, batch: TrainBatch) -> tuple[mx.array, float]:
        """The distance, and the number of texts."""
        return self.distance(self._embed.outputs(network, batch.inputs), batch.targets), float(len(batch.targets))

    def distance(self, ours: mx.array, theirs: mx.array) -> mx.array:
        """The sum over the texts of the mean over the values (B, W), for each size."""
        if self._dimensions is None:
            return mean_squared_error(ours, theirs)
        units = [[Normalize()(vectors[:, :size]) for vectors in (ours, theirs)] for size in self._dimensions]
        return mx.stack([mean_squared_error(*pair) for pair in units]).sum()


def _log_shares(scores: mx.array) -> mx.array:
    return scores - mx.logsumexp(scores, axis=-1, keepdims=True)
