"""Training with a teacher: a model for the same task and labels, whose scores for each example the student learns.

Shapes: L length, C classes, W size of a vector.
"""

import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from mlxbert.errors import ArgumentError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import HEADS, Network
from mlxbert.progress import OnProgress
from mlxbert.text.encoding import Encoding
from mlxbert.train.base_model import BaseModel
from mlxbert.train.data.data_report import DataReport
from mlxbert.train.objectives.distillation_losses import ERROR, DistillationExample, Scores
from mlxbert.train.objectives.objective import Objective, Predictions, Share, Split, alone
from mlxbert.train.objectives.predictions import compute
from mlxbert.train.objectives.task_objective import TaskObjective
from mlxbert.train.options.loop_options import TeacherOptions
from mlxbert.weights.find_model import find_model
from mlxbert.weights.model_source import ModelRef


class Distillation:
    """Computes a teacher's scores for the training data, from which a student learns.

    The teacher is a model that was trained for the same task and labels.
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
            raise ArgumentError("`teacher` works only with the name of a task, not with an Objective")
        task.check_teacher()
        base = BaseModel(ref=ref, files=find_model(ref, on_progress))
        model = base.load(task=task.spec.needs)
        self.name, self._files = base.name, base.files
        self._task, self._train, self._valid = task, train, valid
        self._network: Network | None = model.network
        self._teacher_task = task.of_teacher(model)
        self._train_scores: Predictions | None = None
        self._valid_vectors: Predictions | None = None
        # The objective for the loop, which combines the task with the distance from the teacher.
        self.objective = task.distilled(self._teacher_task, self.name, options)
        self._per_token = bool(task.head) and HEADS[task.head].scope in ("token", "span")
        self._inputs = [example.encoding for record in train.records for example in self._teacher_task.examples(record)]
        self._check_tokens()

    def manifest(self) -> dict[str, Any]:
        """Returns the entries of the manifest that depend on the teacher."""
        return {"teacher": hash_model(self._files), **self.objective.settings()}

    def noted(self, report: DataReport | None) -> DataReport | None:
        """Returns the report with the teacher added to it; `None` if there is no report."""
        return report and self.objective.noted(report, self.name)

    def examples(self, share: Share | None) -> list[DistillationExample]:
        """Returns the training examples with the scores of the teacher.

        `share` divides the inputs among the processes of the run, which compute all scores now; without it, each score
        is computed later, when it is needed.
        """
        if share is not None and self._train_scores is None:
            self._train_scores = self._computed(self._inputs, share)
            if self.objective.chooses:
                valid = [self._teacher_task.examples(record)[0].encoding for record in self._valid.records]
                self._valid_vectors = self._computed(valid, share)
            self._network = None  # frees its memory
        return [
            DistillationExample(example, functools.partial(self._scores, number))
            for number, example in enumerate(self._train.examples)
        ]

    def measured(self, network: Network, share: Share) -> dict[str, float]:
        """Returns the mean distance between the student's and the teacher's vectors of the validation data.

        The distance is keyed by the name of its metric. The result is empty unless this metric selects the best
        checkpoint.
        """
        if self._valid_vectors is None:
            return {}
        inputs = [example.encoding for example in self._valid.examples]
        vectors = compute(network, inputs, self._task.predict, share=share)
        distance = self.objective.distance(mx.array(np.array(vectors)), mx.array(np.array(self._valid_vectors)))
        return {ERROR: cast(float, distance.item()) / len(inputs)}

    def _computed(self, inputs: Sequence[Encoding], share: Share = alone) -> Predictions:
        """Computes the teacher's output for each input: a vector (W,), or the scores of its head, (C,) or (L, C)."""

        def scores(network: Network, inputs: Batch) -> mx.array:
            return self._teacher_task.teacher_outputs(network, inputs).astype(mx.float32)

        assert self._network is not None
        return compute(self._network, inputs, scores, share=share)

    def _scores(self, number: int) -> Scores:
        """Returns the teacher's scores for an example, without padding, in the order of the student's labels."""
        stored = self._train_scores
        [scores] = self._computed([self._inputs[number]]) if stored is None else [stored[number]]
        if self._per_token:
            scores = scores[: len(self._train.examples[number])]
        order = self.objective.order
        return cast(Scores, scores if order is None else scores[..., order])

    def _check_tokens(self) -> None:
        """If the teacher scores tokens, rejects a teacher that tokenizes the texts differently from the student."""
        examples = self._train.examples
        if self._per_token and [each.encoding.ids for each in examples] != [each.ids for each in self._inputs]:
            raise ArgumentError(
                f"{self.name}: {self._task.name} compares tokens, but the teacher tokenizes texts differently from the "
                "student",
                hint="use a teacher with the same vocabulary, and `max_length=` to give both models the same windows",
            )
