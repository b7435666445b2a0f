"""What the built-in tasks share: everything that a report, an evaluation and a model card need to know of a task."""

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from mlxbert.bounds import check_whole
from mlxbert.data.columns import Found
from mlxbert.data.trained import trained_columns
from mlxbert.errors import ArgumentError
from mlxbert.labels.labels import Labels
from mlxbert.model import Model
from mlxbert.readers.rows import Rows
from mlxbert.training.data import checks
from mlxbert.training.data.report import SplitReport
from mlxbert.training.objective import AnyExample, Objective, Part, Predictions
from mlxbert.training.scores.summary import METRICS, Evaluation


class Record(Protocol):
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


class TaskObjective(Objective[AnyExample]):
    """A task of the command line.

    Args:
        metric: What chooses the best checkpoint; `None` for the task's own.
        max_length: Inputs have at most that many tokens; `None` for what the model takes.

    Attributes:
        head: The head that is trained, a name in `mlxbert.nn.heads.HEADS`.
        command: The command that uses the model.
        arguments: What follows that command.
        numeric: Whether it predicts numbers, so that the name of the output says nothing.
        columns: What was read from where, once something was read.
        labels: The labels of the model, after `bind`.
    """

    head: ClassVar[str]
    command: ClassVar[str]
    arguments: ClassVar[str] = '"…"'
    numeric: ClassVar[bool] = False
    columns: Found | None = None
    labels: Labels
    _asked: dict[str, str | None]  # the columns that are named, by option

    def __init__(self, *, metric: str | None = None, max_length: int | None = None) -> None:
        known = METRICS[self.name]
        metric = next(iter(known)) if metric is None else metric
        if metric not in known:
            raise ArgumentError(f"metric is {metric!r:.60}, expected one of {', '.join(known)}")
        if max_length is not None:
            check_whole("max_length", max_length)
        self.metric, self.minimize, self.max_length = metric, not known[metric], max_length

    @property
    def needs(self) -> str:
        """The task that the model must be able to do, as `mlxbert.load` calls it."""
        return self.command

    def settings(self) -> dict[str, Any]:
        """See `Objective.settings`."""
        return {"metric": self.metric, "max_length": self.max_length}

    def bind(self, model: Model) -> None:
        """Takes the tokenizer and the labels of a model.

        Raises:
            ArgumentError: The model does not take inputs as long as `max_length`.
        """
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

    def warnings(self, train: SplitReport, records: Sequence[Any]) -> Iterator[str]:
        """What a careful person would look at first in the labels of the training records, in sentences."""
        if train.labels:
            yield from checks.few_examples(train)
            yield from self.balance(train)
            yield from checks.alike_names(train.labels)

    def balance(self, train: SplitReport) -> Iterator[str]:
        """The part of `warnings` that is about how often labels occur."""
        return checks.imbalance(train, "look at the scores of each label.")

    @abstractmethod
    def read(self, rows: Rows) -> Sequence[Any]:
        """See `Objective.read`; each record is a `Record`."""

    def check(self, records: Sequence[Any]) -> None:
        """Refuses training records from which nothing can be learned.

        Raises:
            InputError: There are such; the message begins with a place.
        """

    def check_valid(self, train: Sequence[Any], valid: Sequence[Any]) -> None:
        """Refuses validation records with labels that the training records do not have.

        Raises:
            InputError: There are such; the message begins with a place.
        """

    def tuned(self, part: Part, predictions: Predictions) -> Labels:
        """The labels, with what is chosen on validation data."""
        return self.labels

    @abstractmethod
    def evaluation(self, part: Part, predictions: Predictions, **facts: Any) -> Evaluation:
        """Everything that is known about predictions; `facts` are those of `Evaluation` that are not scores."""

    def baselines(self, model: Model, train: Sequence[Any], valid: Sequence[Any]) -> dict[str, float]:
        """The main metric of simple methods on the validation records, by their names.

        Args:
            model: The model before training, with its pooling.
            train: The training records.
            valid: The validation records.
        """
        return {}

    def adapt(self, model: Model, rows: Rows) -> None:
        """Takes the columns of a model's training data, where the data have them and no others are named.

        Numbers of columns mean something else in every file.
        """
        for role, column in trained_columns(model.folder).items():
            named = self._asked.get(f"{role}_column", column) is not None or column in self._asked.values()
            if column in rows.columns and not named and not column.isdecimal():
                self._asked[f"{role}_column"] = column

    def check_model(self, model: Model) -> None:
        """Refuses to evaluate a model of another kind.

        Raises:
            ArgumentError: It is made for another task.
            CheckpointError: Its labels cannot be used.
        """

    def matched(self, records: Sequence[Any], model: Model) -> tuple[Sequence[Any], Mapping[str, int]]:
        """Records with labels as a model spells them; and the labels that it does not have, with their records.

        Raises:
            InputError: The model does not have a label, and the task cannot do without.
        """
        return records, {}


def relabelled(model: Model, labels: Labels) -> Model:
    """The model with other labels; the network is the same."""
    config = replace(model.network.encoder.config, labels=labels)
    model.network.encoder.config = config
    return replace(model, labels=None if model.labels is None else labels, config=config)
