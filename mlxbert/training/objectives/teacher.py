"""The model that a task is learned from: found, compared with the student, and asked once for every example."""

import copy
import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from mlxbert.errors import ArgumentError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.machine.distributed import Group
from mlxbert.model import Model, load
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import HEADS, Network
from mlxbert.training.data.report import DataReport
from mlxbert.training.objective import Comparison, Objective, Part, Predictions
from mlxbert.training.objectives.embed import Embed
from mlxbert.training.objectives.task import TaskObjective
from mlxbert.training.objectives.taught import ERROR, Lesson, Scores, Taught, TaughtScores, TaughtVectors
from mlxbert.training.options import TeacherOptions
from mlxbert.training.predict import compute
from mlxbert.weights.adapted import find_model
from mlxbert.weights.folder import ModelFolder

_OF_TOKENS = ("tag", "answer")


class Teacher:
    """A teacher of a task; see `find_teacher`.

    Args:
        name: What errors and reports call it.
        files: Its folder.
        model: The model.
        student: The objective, bound to the student.
        part: The training data.
        valid: The validation data.
        options: How much it counts.

    Attributes:
        objective: What the loop trains.

    Raises:
        ArgumentError: It is made for another task, other labels or another vocabulary.
    """

    def __init__(
        self,
        name: str,
        files: ModelFolder,
        model: Model,
        student: TaskObjective[Any],
        part: Part,
        valid: Part,
        options: TeacherOptions,
    ) -> None:
        self.name, self._files, self._options, self._student = name, files, options, student
        self._part, self._valid = part, valid
        self._model: Model | None = model
        self._own = copy.copy(student)  # the same task with the tokenizer and the labels of the teacher
        self._own.check_model(model)
        self._own.bind(model)
        self._lessons: list[Lesson] | None = None
        self._wanted: Predictions | None = None  # its vectors of the validation data
        self._chooses = isinstance(student, Embed) and student.unjudged
        self.objective: Taught
        if isinstance(student, Embed) and isinstance(self._own, Embed):
            self._own.embedder = model.embedder  # options of pooling are the student's
            self._order: list[int] | None = None
            self.objective = TaughtVectors(student, _sizes(name, student, self._own), chooses=self._chooses)
        else:
            self._order = _order(name, student, self._own.labels)
            self.objective = TaughtScores(student, options)
        self._examples: list[Any] = [one for record in part.records for one in self._own.examples(record)]
        self._check_tokens()

    def manifest(self) -> dict[str, Any]:
        """What decides the result besides the rest of a call."""
        found = {"teacher": hash_model(self._files)}
        if isinstance(self.objective, TaughtVectors):
            return found
        return {**found, "teacher_weight": self._options.teacher_weight, "soft": self._options.temperature}

    def noted(self, report: DataReport | None) -> DataReport | None:
        """A report that names the teacher; for vectors its loss is the only one."""
        if report is None:
            return None
        if not isinstance(self.objective, TaughtVectors):
            return replace(report, facts={**report.facts, "teacher": self.name})
        error = f"squared error to the vectors of {self.name}"
        facts = {**report.facts, "loss": error} | ({"validated by": error} if self._chooses else {})
        said = self._student.notes()  # of the loss that is not used
        return replace(report, facts=facts, warnings=tuple(note for note in report.warnings if note not in said))

    def lessons(self, group: Group) -> list[Lesson]:
        """The training examples with what the teacher computes for them; computed once, by all processes."""
        if self._lessons is None:
            assert self._model is not None
            network, inputs = self._model.network, [one.encoding for one in self._examples]
            found = compute(network, inputs, self._scores, group=group)
            self._lessons = [
                Lesson(example, functools.partial(self._arranged, scores, len(example)))
                for example, scores in zip(self._part.examples, found, strict=True)
            ]
            if self._chooses:
                inputs = [self._own.examples(record)[0].encoding for record in self._valid.records]
                self._wanted = compute(network, inputs, self._scores, group=group)
            self._model = None  # its memory is needed
        return self._lessons

    def few_lessons(self) -> list[Lesson]:
        """The same, of which each is computed when it is needed: for those who need few."""
        assert self._model is not None
        network = self._model.network

        def asked(number: int) -> Scores:
            [scores] = compute(network, [self._examples[number].encoding], self._scores)
            return self._arranged(scores, len(self._part.examples[number]))

        return [Lesson(example, functools.partial(asked, number)) for number, example in enumerate(self._part.examples)]

    def measured(self, network: Network, group: Group) -> dict[str, float]:
        """How far the student's vectors of the validation data are from the teacher's, where that chooses the best."""
        if self._wanted is None:
            return {}
        assert isinstance(self.objective, TaughtVectors)
        inputs = [one.encoding for one in self._valid.examples]
        found = compute(network, inputs, self._student.predict, group=group)
        far = self.objective.distance(mx.array(np.array(found)), mx.array(np.array(self._wanted)))
        return {ERROR: cast(float, far.item()) / len(inputs)}

    def _scores(self, network: Network, inputs: Batch) -> Scores:
        """Vectors (B, W), or the scores of the head, (B, C) or (B, L, C)."""
        if isinstance(self._own, Embed):
            return np.asarray(self._own.outputs(network, inputs).astype(mx.float32))
        return np.asarray(network.logits(self._own.head, inputs).astype(mx.float32))

    def _arranged(self, scores: Any, length: int) -> Scores:
        """Those of one example, without padding, in the order of the student's labels."""
        found: Scores = scores[:length] if self._student.name in _OF_TOKENS else scores
        return found if self._order is None else found[..., self._order]

    def _check_tokens(self) -> None:
        """Refuses a teacher that sees other tokens, where scores are those of tokens.

        Raises:
            ArgumentError: It does.
        """
        if self._student.name not in _OF_TOKENS:
            return
        ours, theirs = ([list(one.encoding.ids) for one in some] for some in (self._part.examples, self._examples))
        if ours != theirs:
            raise ArgumentError(
                f"{self.name}: cuts texts into other tokens than the student, but {self._student.name} compares tokens",
                hint="teacher and student need the same vocabulary; max_length= gives both windows of one length",
            )


def find_teacher(
    name: str | Path | None,
    objective: Objective[Any],
    part: Part,
    valid: Part,
    options: TeacherOptions,
    device: str,
    **where: Any,
) -> Teacher | None:
    """Finds the model that a task is learned from; `None` where there is none.

    Args:
        name: Hub name or folder of a finished model for the same task and labels.
        objective: The task, bound to the student.
        part: The training data.
        valid: The validation data.
        options: How much it counts.
        device: See `mlxbert.load`.
        **where: `offline` and `on_progress`, see `mlxbert.load`.

    Raises:
        ArgumentError: The task cannot be learned from a teacher, or not from this one.
        MlxbertError: The model cannot be loaded.
    """
    if name is None:
        options.refuse_alone()
        return None
    if not isinstance(objective, TaskObjective):
        raise ArgumentError("teacher is given with an Objective of one's own, expected the name of a task")
    if isinstance(objective, Embed):
        if objective.columns is None or objective.columns.kind != "texts":
            raise ArgumentError(
                "teacher is given with pairs of texts, expected texts alone",
                hint="name the column of the text with text_column=, in a file without other texts",
            )
    elif isinstance(objective, Comparison):
        raise ArgumentError("teacher is given with few_shot, which trains vectors and not scores")
    files = find_model(str(name), **where)
    model = load(
        files.path, adapter=files.adapter, task=objective.needs, dtype="float32", device=device, quantized=False
    )
    return Teacher(str(name), files, replace(model, source=str(name)), objective, part, valid, options)


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
