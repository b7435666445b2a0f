"""What the built-in tasks share: everything that a report, an evaluation and a model card need to know of a task."""

import copy
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from mlxbert.counterparts import no_argument, not_one_of
from mlxbert.data.columns import TaskColumns
from mlxbert.data.training_record import trained_columns
from mlxbert.errors import ArgumentError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import HEADS, Network
from mlxbert.nn.losses import mean_squared_error
from mlxbert.options import check_fields
from mlxbert.readers.labelled_rows import LabelledRows
from mlxbert.training.data import data_checks
from mlxbert.training.data.data_report import SplitReport
from mlxbert.training.objectives.distillation_losses import (
    DistillationObjective,
    ScoreDistillation,
    Scores,
    TeacherTargets,
)
from mlxbert.training.objectives.objective import AnyExample, Objective, Predictions, Split, TrainBatch
from mlxbert.training.options.loop_options import TeacherOptions
from mlxbert.training.options.training_tasks import TASKS, TaskSpec
from mlxbert.training.scores.evaluation_summary import Evaluation


class TaskRecord(Protocol):
    """A record of a built-in task."""

    @property
    def place(self) -> str:
        """Where it stands: `train.csv, line 17`."""

    @property
    def key(self) -> Hashable:
        """What makes two records the same input."""

    @property
    def names(self) -> tuple[str, ...]:
        """Its labels; none where numbers or texts are predicted."""

    @property
    def label(self) -> Any:
        """What should be predicted: records with the same key and another label contradict each other."""


class Origin(Protocol):
    """The model that training starts from."""

    def labels(self, head: str) -> Labels | None:
        """The labels of a head; `None` if the model does not have it."""

    def pooling(self) -> str:
        """How the model makes the vector of a text; `mean` where its files do not say."""

    def embeds(self) -> bool:
        """Whether its files say how it makes vectors."""


class TaskObjective(Objective[AnyExample]):
    """A task of the command line.

    Args:
        **options: Those of `TaskSpec.data` and `TaskSpec.learning`; and `metric`, which chooses the best checkpoint.
            Options that are `None` have their defaults.

    Attributes:
        data: The options of its data, a `TaskSpec.data`.
        learning: The options of training, a `TaskSpec.learning`.
        head: The head that is trained, a name in `mlxbert.nn.heads.HEADS`.
        given: The options that were given.
        columns: What was read from where, once something was read.
        labels: The labels of the model, after `bind`.
    """

    data: Any
    learning: Any
    head: ClassVar[str]
    columns: TaskColumns | None = None
    labels: Labels
    pure = True
    _asked: dict[str, str | None]  # the columns that are named, by option

    def __init__(self, **options: Any) -> None:
        self.given = given = {option: value for option, value in options.items() if value is not None}
        groups, known = (self.spec.data, self.spec.learning), self.spec.metrics
        names = {"metric", *(one.name for group in groups for one in fields(group))}
        for option in given:
            if option not in names:
                message = f"{option} is given, which {self.name} does not have"
                raise no_argument(option, {*names, *self.spec.defaults}, message)
        self._metric = given.get("metric")
        if self._metric not in (None, *known):
            raise not_one_of("metric", self._metric, known)
        self.metric = self._metric or known[0]
        self.minimize = self.metric in self.spec.minimized
        self.perfect = self.spec.perfect(self.metric)
        self.data, self.learning = (
            group(**{one.name: given[one.name] for one in fields(group) if one.name in given}) for group in groups
        )
        check_fields(self.data)
        check_fields(self.learning)
        self.max_length: int | None = self.data.max_length
        self._asked = {name: value for name, value in asdict(self.data).items() if name.endswith("_column")}

    @property
    def spec(self) -> TaskSpec:
        """What is known of the task without a model."""
        return TASKS[self.name]

    @property
    def numeric(self) -> bool:
        """See `TaskSpec.numeric`."""
        return self.spec.numeric

    def settings(self) -> dict[str, Any]:
        """See `Objective.settings`."""
        own = {name: value for name, value in asdict(self.learning).items() if name not in self.spec.variants}
        data = {name: value for name, value in asdict(self.data).items() if name != "label_names"}
        return {"metric": self.metric, **data, **own}

    def bind(self, model: Model) -> None:
        """Takes the tokenizer and the labels of a model."""
        super().bind(model)
        if self.max_length is not None and self.max_length > self.config.max_length:
            raise ArgumentError(
                f"max_length is {self.max_length}, the model takes at most {self.config.max_length} tokens"
            )
        self.tokenizer = model.tokenizer.adapted(max_length=self.max_length)
        if model.labels is not None:
            self.labels = model.labels

    def start(self, source: Origin) -> None:
        """Takes what it needs to know of the model that training starts from, before anything is read."""

    def facts(self) -> dict[str, str]:
        """What the report says of the data besides columns, by name; after reading."""
        return {}

    def notes(self) -> tuple[str, ...]:
        """What looked wrong while reading, in sentences for the report's warnings."""
        return ()

    def few_shot_hint(self, records: Sequence[Any]) -> str | None:
        """What to try where every label has few examples; `None` where that is nothing, or nothing special helps."""
        return None

    def usual_variant(self, records: Sequence[Any], source: Origin) -> str | None:
        """The option of `TaskSpec.variants` that suits the training records where the user chose none."""
        return None

    def warnings(self, train: SplitReport, records: Sequence[Any]) -> Iterator[str]:
        """What a careful person would look at first in the labels of the training records, in sentences."""
        if train.labels:
            yield from data_checks.few_examples(train, self.few_shot_hint(records))
            yield from self.balance(train)
            yield from data_checks.alike_names(train.labels)

    def balance(self, train: SplitReport) -> Iterator[str]:
        """The part of `warnings` that is about how often labels occur."""
        return data_checks.imbalance(train, "look at the scores of each label.")

    @abstractmethod
    def read(self, rows: LabelledRows) -> Sequence[Any]:
        """See `Objective.read`; each record is a `TaskRecord`."""

    def check(self, records: Sequence[Any]) -> None:
        """Refuses training records from which nothing can be learned."""

    def check_valid(self, train: Sequence[Any], valid: Sequence[Any]) -> None:
        """Refuses validation records with labels that the training records do not have."""

    def tuned(self, part: Split, predictions: Predictions) -> Labels:
        """The labels, with what is chosen on validation data."""
        return self.labels

    @abstractmethod
    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        """Everything that is known about predictions; `facts` are those of `Evaluation` that are not scores."""

    def constant(self, known: Sequence[Any], asked: Sequence[Any]) -> dict[str, float]:
        """The main metric of predicting the same for every record, by the name of what is predicted.

        Args:
            known: The records that decide what is predicted.
            asked: The records on which it is scored.

        Returns:
            Empty where such a prediction says nothing of a task.
        """
        return {}

    def baselines(self, model: Model, train: Sequence[Any], valid: Sequence[Any]) -> dict[str, float]:
        """The main metric of simple methods on the validation records, by their names.

        Args:
            model: The model before training, with its pooling.
            train: The training records.
            valid: The validation records.
        """
        return self.constant(train, valid)

    def adapt(self, model: Model, rows: LabelledRows) -> None:
        """Takes the columns of a model's training data, where the data have them and no others are named.

        Numbers of columns mean something else in every file.
        """
        for role, column in trained_columns(model.folder).items():
            named = self._asked.get(f"{role}_column", column) is not None or column in self._asked.values()
            if column in rows.columns and not named and not column.isdecimal():
                self._asked[f"{role}_column"] = column

    def check_model(self, model: Model) -> None:
        """Refuses to evaluate a model of another kind."""

    def matched(self, records: Sequence[Any], model: Model) -> tuple[Sequence[Any], Mapping[str, int]]:
        """Records with labels as a model spells them; and the labels that it does not have, with their records."""
        return records, {}

    def check_teacher(self) -> None:
        """Refuses what cannot be learned from a teacher."""

    def of_teacher(self, model: Model) -> Self:
        """The same task with the tokenizer and the labels of a teacher."""
        own = copy.copy(self)
        own.check_model(model)
        own.bind(model)
        return own

    def distilled(self, own: Self, name: str, options: TeacherOptions) -> DistillationObjective:
        """What is trained with a teacher.

        Args:
            own: The task `of_teacher`.
            name: What the teacher is called.
            options: How much it counts.
        """
        return ScoreDistillation(self, options, self._order(own.labels, name))

    def _order(self, theirs: Labels, name: str) -> list[int] | None:
        """For each label its place among those of a teacher; `None` where outputs have no names."""
        if self.numeric or not HEADS[self.head].labelled:
            return None
        if self.labels.crf or theirs.crf:
            raise ArgumentError(
                f"{name if theirs.crf else 'the student'}: has a CRF, which scores whole sentences: a teacher's scores "
                "are those of single words"
            )
        if {*self.labels.names} != {*theirs.names}:
            raise ArgumentError(
                f"{name}: has the labels {_shown(theirs.names)}, the training data {_shown(self.labels.names)}",
                hint="teacher and student need the same labels",
            )
        return [theirs.names.index(label) for label in self.labels.names]

    def taught(self, network: Network, inputs: Batch) -> mx.array:
        """What a teacher computes: the scores of its head."""
        return network.logits(self.head, inputs)

    def teacher_targets(
        self, batch: TrainBatch, examples: Sequence[AnyExample], scores: Sequence[Scores]
    ) -> TeacherTargets:
        """What is learned of a batch: its targets, and the scores of the teacher for each example."""
        return TeacherTargets(batch.targets, mx.array(np.stack(scores)))

    def teacher_distance(self, scores: mx.array, targets: TeacherTargets, temperature: float) -> mx.array:
        """How far the scores of a batch are from a teacher's, summed as in `loss`; for numbers the squared error."""
        return mean_squared_error(scores, targets.scores)


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def relabelled(model: Model, labels: Labels) -> Model:
    """The model with other labels; the network is the same."""
    config = replace(model.network.encoder.config, labels=labels)
    model.network.encoder.config = config
    return replace(model, labels=None if model.labels is None else labels, config=config)
