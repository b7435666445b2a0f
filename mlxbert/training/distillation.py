"""Training with a teacher: a finished model for the same task and labels, and what it computes for each example.

Shapes: L length, C classes, W size of a vector.
"""

import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from mlxbert.errors import ArgumentError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.machine.device import mx
from mlxbert.machine.distributed import ProcessGroup
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import HEADS, Network
from mlxbert.progress import OnProgress
from mlxbert.text.encoding import Encoding
from mlxbert.training.base_model import BaseModel
from mlxbert.training.data.data_report import DataReport
from mlxbert.training.objectives.distillation_losses import ERROR, DistillationExample, Scores
from mlxbert.training.objectives.objective import Objective, Predictions, Split
from mlxbert.training.objectives.predictions import compute
from mlxbert.training.objectives.task_objective import TaskObjective
from mlxbert.training.options.loop_options import TeacherOptions
from mlxbert.weights.find_model import find_model
from mlxbert.weights.model_source import ModelRef


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
    """

    def __init__(
        self,
        ref: ModelRef,
        task: Objective[Any],
        train: Split,
        valid: Split,
        options: TeacherOptions,
        on_progress: OnProgress | None = None,
    ) -> None:
        if not isinstance(task, TaskObjective):
            raise ArgumentError("teacher is given with a custom Objective, expected the name of a task")
        task.check_teacher()
        found = BaseModel(ref=ref, files=find_model(ref, on_progress))
        model = found.load(task=task.spec.needs)
        self.name, self._files = found.name, found.files
        self._task, self._train, self._valid = task, train, valid
        self._network: Network | None = model.network
        self._own = task.of_teacher(model)
        self._found: Predictions | None = None  # what it computes for the training data
        self._wanted: Predictions | None = None  # its vectors of the validation data
        self.objective = task.distilled(self._own, self.name, options)
        self._of_tokens = bool(task.head) and HEADS[task.head].scope in ("token", "span")
        self._inputs = [one.encoding for record in train.records for one in self._own.examples(record)]
        self._check_tokens()

    def manifest(self) -> dict[str, Any]:
        """What decides the result besides the rest of a call."""
        return {"teacher": hash_model(self._files), **self.objective.settings()}

    def noted(self, report: DataReport | None) -> DataReport | None:
        """A report that names the teacher."""
        return report and self.objective.noted(report, self.name)

    def examples(self, group: ProcessGroup | None) -> list[DistillationExample]:
        """The training examples with what the teacher computes for them.

        Args:
            group: The processes, which compute all of it once; `None` to compute each when it is needed.
        """
        if group is not None and self._found is None:
            self._found = self._computed(self._inputs, group)
            if self.objective.chooses:
                valid = [self._own.examples(record)[0].encoding for record in self._valid.records]
                self._wanted = self._computed(valid, group)
            self._network = None  # its memory is needed
        return [
            DistillationExample(example, functools.partial(self._scores, number))
            for number, example in enumerate(self._train.examples)
        ]

    def measured(self, network: Network, group: ProcessGroup) -> dict[str, float]:
        """How far the student's vectors of the validation data are from the teacher's, where that chooses the best."""
        if self._wanted is None:
            return {}
        inputs = [one.encoding for one in self._valid.examples]
        found = compute(network, inputs, self._task.predict, group=group)
        far = self.objective.distance(mx.array(np.array(found)), mx.array(np.array(self._wanted)))
        return {ERROR: cast(float, far.item()) / len(inputs)}

    def _computed(self, inputs: Sequence[Encoding], group: ProcessGroup | None = None) -> Predictions:
        """Vectors (W,), or the scores of the head, (C,) or (L, C), for each of the inputs."""

        def scores(network: Network, inputs: Batch) -> mx.array:
            return self._own.teacher_outputs(network, inputs).astype(mx.float32)

        assert self._network is not None
        return compute(self._network, inputs, scores, group=group)

    def _scores(self, number: int) -> Scores:
        """Those of one example, without padding, in the order of the student's labels."""
        [found] = self._computed([self._inputs[number]]) if self._found is None else [self._found[number]]
        if self._of_tokens:
            found = found[: len(self._train.examples[number])]
        order = self.objective.order
        return cast(Scores, found if order is None else found[..., order])

    def _check_tokens(self) -> None:
        """Refuses a teacher that sees other tokens, where scores are those of tokens."""
        if self._of_tokens and [one.encoding.ids for one in self._train.examples] != [one.ids for one in self._inputs]:
            raise ArgumentError(
                f"{self.name}: tokenizes texts differently from the student, but {self._task.name} compares tokens",
                hint="teacher and student need the same vocabulary; max_length= gives both windows of one length",
            )
