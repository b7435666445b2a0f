"""The base class of the built-in tasks, which adds everything that reports, evaluations and model cards need."""

import copy
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from mlxbert.errors import ArgumentError
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import HEADS, Network
from mlxbert.option_declarations import check_fields
from mlxbert.other_libraries import no_argument, not_one_of
from mlxbert.tasks.training_record import trained_columns
from mlxbert.train.data import data_report
from mlxbert.train.data.columns import TaskColumns
from mlxbert.train.data.data_report import SplitReport
from mlxbert.train.data.labelled_rows import LabelledRows
from mlxbert.train.nn.losses import mean_squared_error
from mlxbert.train.objectives.distillation_losses import (
    DistillationObjective,
    ScoreDistillation,
    Scores,
    TeacherTargets,
)
from mlxbert.train.objectives.objective import AnyExample, Objective, Predictions, Split, TrainBatch
from mlxbert.train.options.loop_options import TeacherOptions
from mlxbert.train.options.training_tasks import TASKS, TaskSpec
from mlxbert.train.scores.evaluation_summary import Evaluation


class Origin(Protocol):
    """The model that training starts from, as objectives know it (see `BaseModel`)."""

    def labels(self, head: str) -> Labels | None: ...
    def pooling(self) -> str: ...
    def embeds(self) -> bool: ...
    def vectors(self) -> tuple[str, ...]: ...


class TaskObjective(Objective[AnyExample]):
    """A built-in task.

    Args:
        **options: The options of `TaskSpec.data` and `TaskSpec.learning`, and `metric`, which selects the best
            checkpoint. An option that is `None` has its default.

    Attributes:
        data: The data options, an instance of `TaskSpec.data`.
        learning: The training options, an instance of `TaskSpec.learning`.
        head: The name of the trained head in `mlxbert.nn.heads.HEADS`.
        given: The options that the caller set.
        columns: The columns that records are read from; known after the first `read`.
        labels: The labels of the model; set by `bind`.
        baseline_heads: The heads that `baselines` needs.
        adds_layers: Whether layers are trained that are neither in the encoder nor in a head.
        seed: The seed of the layers that `bind` adds to a model.
    """

    data: Any
    learning: Any
    head: ClassVar[str]
    columns: TaskColumns | None = None
    labels: Labels
    adds_layers: ClassVar[bool] = False
    seed: int = 0
    pure = True
    baseline_heads: ClassVar[tuple[str, ...]] = ()
    _columns: dict[str, str | None]  # the explicitly chosen columns, by option

    def __init__(self, **options: Any) -> None:
        self.given = values = {option: value for option, value in options.items() if value is not None}
        groups, metrics = (self.spec.data, self.spec.learning), self.spec.metrics
        names = {"metric", *(field.name for group in groups for field in fields(group))}
        for option in values:
            if option not in names:
                message = f"`{option}` is not an option of {self.name}"
                raise no_argument(option, {*names, *self.spec.defaults}, message)
        self._metric = values.get("metric")
        if self._metric not in (None, *metrics):
            raise not_one_of("metric", self._metric, metrics)
        self.metric = self._metric or metrics[0]
        self.minimize = self.metric in self.spec.minimized
        self.perfect = self.spec.perfect(self.metric)
        self.data, self.learning = (
            group(**{field.name: values[field.name] for field in fields(group) if field.name in values})
            for group in groups
        )
        check_fields(self.data)
        check_fields(self.learning)
        self.max_length: int | None = self.data.max_length
        self._columns = {name: value for name, value in asdict(self.data).items() if name.endswith("_column")}

    @property
    def spec(self) -> TaskSpec:
        return TASKS[self.name]

    @property
    def numeric(self) -> bool:
        return self.spec.numeric

    def settings(self) -> dict[str, Any]:
        learning = {name: value for name, value in asdict(self.learning).items() if name not in self.spec.variants}
        data = {name: value for name, value in asdict(self.data).items() if name != "label_names"}
        return {"metric": self.metric, **data, **learning}

    def bind(self, model: Model) -> None:
        """Stores the tokenizer and the labels of a model."""
        super().bind(model)
        if self.max_length is not None and self.max_length > self.config.max_length:
            raise ArgumentError(
                f"`max_length` is {self.max_length}, but the model takes at most {self.config.max_length} tokens"
            )
        self.tokenizer = model.tokenizer.adapted(max_length=self.max_length)
        if model.labels is not None:
            self.labels = model.labels

    def start(self, source: Origin) -> None:
        """Stores facts about the model that training starts from, before any data are read."""

    def facts(self) -> dict[str, str]:
        """Returns facts for the report, besides the columns, keyed by name. They are available after reading."""
        return {}

    def notes(self) -> tuple[str, ...]:
        """Returns sentences about problems that were found while reading, for the warnings of the report."""
        return ()

    def few_shot_hint(self, records: Sequence[Any]) -> str | None:
        """Returns advice to train with `few_shot` if each label has few examples; otherwise `None`."""
        return None

    def usual_variant(self, records: Sequence[Any], source: Origin) -> str | None:
        """Returns the option of `TaskSpec.variants` that suits the training records, if the user chose none."""
        return None

    def variant_of(self, model: Model) -> str | None:
        """Returns the option of `TaskSpec.variants` that suits a model to evaluate, if the user chose none."""
        return None

    def warnings(self, train: SplitReport, records: Sequence[Any]) -> Iterator[str]:
        """Yields warnings about the labels of the training records, each a complete sentence."""
        if train.labels:
            yield from data_report.few_examples(train, self.few_shot_hint(records))
            yield from self.balance(train)
            yield from data_report.alike_names(train.labels)

    def balance(self, train: SplitReport) -> Iterator[str]:
        """Yields the `warnings` that concern the frequencies of labels."""
        return data_report.imbalance(train, "look at the scores of each label.")

    @abstractmethod
    def read(self, rows: LabelledRows) -> Sequence[Any]:
        """See `Objective.read`.

        Each record has a `place` (its location: `train.csv, line 17`), a `key` (equal for records with the same input),
        `names` (its labels; empty if numbers or texts are predicted) and a `label` (the expected prediction).
        """

    def check(self, records: Sequence[Any]) -> None:
        """Raises `InputError` if nothing can be learned from the training records."""

    def check_valid(self, train: Sequence[Any], valid: Sequence[Any]) -> None:
        """Raises `InputError` if validation records have labels that the training records do not have."""

    def tuned(self, part: Split, predictions: Predictions) -> Labels:
        """Returns the labels of the model. If the task has thresholds, they are tuned on the validation data."""
        return self.labels

    @abstractmethod
    def evaluation(self, part: Split, predictions: Predictions, **facts: Any) -> Evaluation:
        """Evaluates predictions. The `facts` are the fields of `Evaluation` that are not scores."""

    def constant(self, train: Sequence[Any], valid: Sequence[Any]) -> dict[str, float]:
        """Returns the main metric of a baseline that always predicts the same, keyed by the name of the baseline.

        Returns:
            The metric, keyed by name; empty if a constant prediction is meaningless for the task.
        """
        return {}

    def baselines(self, model: Model, train: Sequence[Any], valid: Sequence[Any]) -> dict[str, float]:
        """Returns the main metric of simple methods on the validation records, keyed by the name of the method."""
        return self.constant(train, valid)

    def adapt(self, model: Model, rows: LabelledRows) -> None:
        """Selects the columns that the model was trained on, if the data have them and the user named no others.

        Column numbers are not reused, because they mean something else in every file.
        """
        for role, column in trained_columns(model.folder).items():
            named = self._columns.get(f"{role}_column", column) is not None or column in self._columns.values()
            if column in rows.columns and not named and not column.isdecimal():
                self._columns[f"{role}_column"] = column

    def check_model(self, model: Model) -> None:
        """Raises an error if the model was made for another task."""

    def needed_variant(self, model: Model) -> str | None:
        """Returns the option of `TaskSpec.variants` that the head of a model needs, if any."""
        return None

    def matched(self, records: Sequence[Any], model: Model) -> tuple[Sequence[Any], Mapping[str, int]]:
        """Returns the records, with labels spelled as in the model, and the counts of the labels that the model lacks.

        Each count is the number of records with the label, keyed by the label.
        """
        return records, {}

    def check_teacher(self) -> None:
        """Raises `ArgumentError` if the options or the data do not allow a teacher."""

    def of_teacher(self, model: Model) -> Self:
        """Returns a copy of the task that has the tokenizer and the labels of a teacher."""
        task = copy.copy(self)
        task.check_model(model)
        task.bind(model)
        return task

    def distilled(self, teacher_task: Self, name: str, options: TeacherOptions) -> DistillationObjective:
        """Returns the objective of training with a teacher."""
        return ScoreDistillation(self, options, self._order(teacher_task.labels, name))

    def _order(self, theirs: Labels, name: str) -> list[int] | None:
        """Returns the index of each label among the teacher's labels; `None` if the head's outputs are not labelled."""
        if self.numeric or not HEADS[self.head].labelled:
            return None
        if self.labels.crf or theirs.crf:
            raise ArgumentError(
                f"{name if theirs.crf else 'the student'} has a CRF, which scores whole sentences, but distillation "
                "needs a score for each word"
            )
        if {*self.labels.names} != {*theirs.names}:
            raise ArgumentError(
                f"{name}: the teacher has the labels {_listed(theirs.names)}, but the training data has "
                f"{_listed(self.labels.names)}",
                hint="use a teacher with the same labels as the student, or rename those of the data: `label_names=`",
            )
        return [theirs.names.index(label) for label in self.labels.names]

    def prepare(self, record: Any) -> AnyExample:
        """Tokenizes a record; if it has several examples, returns the first one."""
        return self.examples(record)[0]

    def predict(self, network: Network, inputs: Batch) -> mx.array:
        """Computes the scores of the head, float32: (B, C), or (B, L, …) for heads that score tokens."""
        return network.logits(self.head, inputs).astype(mx.float32)

    def teacher_outputs(self, network: Network, inputs: Batch) -> mx.array:
        """Computes the teacher's outputs: the scores of its head."""
        return network.logits(self.head, inputs)

    def teacher_targets(
        self, batch: TrainBatch, examples: Sequence[AnyExample], scores: Sequence[Scores]
    ) -> TeacherTargets:
        return TeacherTargets(batch.targets, mx.array(np.stack(scores)))

    def teacher_distance(self, scores: mx.array, targets: TeacherTargets, temperature: float) -> mx.array:
        """Returns the distance between the student's and the teacher's scores, summed as in `loss`.

        By default, and for numbers, this is the squared error.
        """
        return mean_squared_error(scores, targets.scores)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")


def relabelled(model: Model, labels: Labels) -> Model:
    """Returns the model with other labels. Both models share the network, whose configuration is updated."""
    config = replace(model.network.encoder.config, labels=labels)
    model.network.encoder.config = config
    return replace(model, labels=None if model.labels is None else labels, config=config)
