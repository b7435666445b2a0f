"""Training with a teacher: the loss of a task, and the distance from what another model computes for each example.

These objectives stand before that of the task in the loop alone: the task reads, evaluates and knows of no teacher.

Shapes: B examples of a batch, L length, N rows of scores, C classes, W size of a vector.
"""

import copy
import functools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import ArgumentError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.machine.distributed import Group
from mlxbert.nn.embedder import Normalize
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import HEADS, Network
from mlxbert.nn.losses import binary_cross_entropy, mean_squared_error
from mlxbert.progress import Progress
from mlxbert.text.batch import make_batch
from mlxbert.text.encoding import Encoding
from mlxbert.training.base import BaseModel
from mlxbert.training.data.report import DataReport
from mlxbert.training.objective import Comparison, LoopObjective, Objective, Part, Predictions, TrainBatch
from mlxbert.training.objectives.embed import Embed
from mlxbert.training.objectives.task import TaskObjective
from mlxbert.training.options import TeacherOptions
from mlxbert.training.predict import compute
from mlxbert.weights.adapted import find_model
from mlxbert.weights.source import ModelRef

ERROR = "teacher_error"  # the metric that chooses vectors where nobody has judged the validation data
_OF_TOKENS = ("tag", "answer")
_HIDDEN = -1e9  # the score of padding
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


class DistillationObjective(LoopObjective[Any]):
    """What both objectives with a teacher share.

    Args:
        task: The objective of the task.
    """

    name: ClassVar[str] = "distillation"

    def __init__(self, task: TaskObjective[Any]) -> None:
        self.task, self.metric, self.minimize = task, task.metric, task.minimize

    def tokens(self, example: DistillationExample) -> Iterable[int]:
        """See `LoopObjective.tokens`."""
        return self.task.tokens(example.example)


class ScoreDistillation(DistillationObjective):
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

    def collate(self, examples: Sequence[DistillationExample], rng: random.Random) -> TrainBatch:
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

    def totals(self, examples: Sequence[DistillationExample]) -> Any:
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


class VectorDistillation(DistillationObjective):
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

    def tokens(self, example: DistillationExample) -> Iterable[int]:
        """See `Objective.tokens`."""
        return cast(Iterable[int], example.example.encoding.ids)

    def collate(self, examples: Sequence[DistillationExample], rng: random.Random) -> TrainBatch:
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


class Distillation:
    """What is learned from a teacher, a finished model for the same task and labels.

    Args:
        ref: The teacher, which is asked once for every example.
        task: The objective, bound to the student.
        train: The training data.
        valid: The validation data.
        options: How much it counts.
        on_progress: See `mlxbert.load`.

    Attributes:
        objective: What the loop trains.

    Raises:
        ArgumentError: The task cannot be learned from a teacher, or not from this one: it is made for another task,
            other labels or another vocabulary.
        MlxbertError: The model cannot be loaded.
    """

    objective: DistillationObjective

    def __init__(
        self,
        ref: ModelRef,
        task: Objective[Any],
        train: Part,
        valid: Part,
        options: TeacherOptions,
        on_progress: Progress | None = None,
    ) -> None:
        _check_task(task)
        assert isinstance(task, TaskObjective)
        found = BaseModel(ref=ref, files=find_model(ref, on_progress))
        model = found.load(task=task.needs)
        self.name, self._files, self._options = found.name, found.files, options
        self._task, self._train, self._valid = task, train, valid
        self._network: Network | None = model.network
        self._own = own = copy.copy(task)  # the same task with the tokenizer and the labels of the teacher
        own.check_model(model)
        own.bind(model)
        self._found: Predictions | None = None  # what it computes for the training data
        self._wanted: Predictions | None = None  # its vectors of the validation data
        self._chooses = isinstance(task, Embed) and task.unjudged
        self._order: list[int] | None = None
        if isinstance(task, Embed) and isinstance(own, Embed):
            own.embedder = model.embedder  # options of pooling are the student's
            self.objective = VectorDistillation(task, _sizes(self.name, task, own), chooses=self._chooses)
        else:
            self._order = _order(self.name, task, own.labels)
            self.objective = ScoreDistillation(task, options)
        self._inputs = [one.encoding for record in train.records for one in own.examples(record)]
        self._check_tokens()

    def manifest(self) -> dict[str, Any]:
        """What decides the result besides the rest of a call."""
        found = {"teacher": hash_model(self._files)}
        if isinstance(self.objective, VectorDistillation):
            return found
        return {**found, "teacher_weight": self._options.teacher_weight, "soft": self._options.temperature}

    def noted(self, report: DataReport | None) -> DataReport | None:
        """A report that names the teacher; for vectors its loss is the only one."""
        if report is None:
            return None
        if not isinstance(self.objective, VectorDistillation):
            return replace(report, facts={**report.facts, "teacher": self.name})
        error = f"squared error to the vectors of {self.name}"
        facts = {**report.facts, "loss": error} | ({"validated by": error} if self._chooses else {})
        said = self._task.notes()  # of the loss that is not used
        return replace(report, facts=facts, warnings=tuple(note for note in report.warnings if note not in said))

    def examples(self, group: Group | None) -> list[DistillationExample]:
        """The training examples with what the teacher computes for them.

        Args:
            group: The processes, which compute all of it once; `None` to compute each when it is needed.
        """
        if group is not None and self._found is None:
            self._found = self._computed(self._inputs, group)
            if self._chooses:
                valid = [self._own.examples(record)[0].encoding for record in self._valid.records]
                self._wanted = self._computed(valid, group)
            self._network = None  # its memory is needed
        return [
            DistillationExample(example, functools.partial(self._scores, number))
            for number, example in enumerate(self._train.examples)
        ]

    def measured(self, network: Network, group: Group) -> dict[str, float]:
        """How far the student's vectors of the validation data are from the teacher's, where that chooses the best."""
        if self._wanted is None:
            return {}
        assert isinstance(self.objective, VectorDistillation)
        inputs = [one.encoding for one in self._valid.examples]
        found = compute(network, inputs, self._task.predict, group=group)
        far = self.objective.distance(mx.array(np.array(found)), mx.array(np.array(self._wanted)))
        return {ERROR: cast(float, far.item()) / len(inputs)}

    def _computed(self, inputs: Sequence[Encoding], group: Group | None = None) -> Predictions:
        """Vectors (W,), or the scores of the head, (C,) or (L, C), for each of the inputs."""

        def scores(network: Network, inputs: Batch) -> Scores:
            own = self._own
            found = own.outputs(network, inputs) if isinstance(own, Embed) else network.logits(own.head, inputs)
            return np.asarray(found.astype(mx.float32))

        assert self._network is not None
        return compute(self._network, inputs, scores, group=group)

    def _scores(self, number: int) -> Scores:
        """Those of one example, without padding, in the order of the student's labels."""
        [found] = self._computed([self._inputs[number]]) if self._found is None else [self._found[number]]
        if self._task.name in _OF_TOKENS:
            found = found[: len(self._train.examples[number])]
        return cast(Scores, found if self._order is None else found[..., self._order])

    def _check_tokens(self) -> None:
        """Refuses a teacher that sees other tokens, where scores are those of tokens.

        Raises:
            ArgumentError: It does.
        """
        if self._task.name not in _OF_TOKENS:
            return
        if [one.encoding.ids for one in self._train.examples] != [one.ids for one in self._inputs]:
            raise ArgumentError(
                f"{self.name}: cuts texts into other tokens than the student, but {self._task.name} compares tokens",
                hint="teacher and student need the same vocabulary; max_length= gives both windows of one length",
            )


def _check_task(task: Objective[Any]) -> None:
    """Refuses what cannot be learned from a teacher.

    Raises:
        ArgumentError: It is such a task.
    """
    if not isinstance(task, TaskObjective):
        raise ArgumentError("teacher is given with an Objective of one's own, expected the name of a task")
    if isinstance(task, Embed):
        if task.columns is None or task.columns.kind != "texts":
            raise ArgumentError(
                "teacher is given with pairs of texts, expected texts alone",
                hint="name the column of the text with text_column=, in a file without other texts",
            )
    elif isinstance(task, Comparison):
        raise ArgumentError("teacher is given with few_shot, which trains vectors and not scores")


def _order(name: str, student: TaskObjective[Any], labels: Labels) -> list[int] | None:
    """For each label of the student its place in the teacher's scores; `None` where outputs have no names.

    Raises:
        ArgumentError: The labels are not the same, or a CRF is among the heads.
    """
    if student.numeric or not HEADS[student.head].labelled:
        return None
    if student.labels.crf or labels.crf:
        raise ArgumentError(
            f"{name if labels.crf else 'the student'}: has a CRF, which scores whole sentences: a teacher's scores are "
            "those of single words"
        )
    ours, theirs = student.labels.names, labels.names
    if {*ours} != {*theirs}:
        raise ArgumentError(
            f"{name}: has the labels {_shown(theirs)}, the training data {_shown(ours)}",
            hint="teacher and student need the same labels",
        )
    return [theirs.index(label) for label in ours]


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def _sizes(name: str, student: Embed, teacher: Embed) -> tuple[int, ...] | None:
    """The sizes at which vectors are compared.

    Raises:
        ArgumentError: The teacher's vectors have another size.
    """
    ours, theirs = student.embedder.size, teacher.embedder.size
    sizes: tuple[int, ...] | None = student.settings()["dimensions"]
    least = min(ours, theirs)
    if max(sizes or (ours, theirs)) > least:
        raise ArgumentError(
            f"{name}: its vectors have {theirs} values, those of the student {ours}",
            hint=f"choose sizes up to {least} with dimensions=",
        )
    return sizes


def _log_shares(scores: mx.array) -> mx.array:
    return scores - mx.logsumexp(scores, axis=-1, keepdims=True)
