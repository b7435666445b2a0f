"""What the objectives over whole texts share: how their data are read, tokenized and predicted.

Shapes: B examples of a batch, C classes.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from mlxbert.data.columns import Columns, find_columns
from mlxbert.data.labelled import Labelled, read_labelled
from mlxbert.data.rows import Rows
from mlxbert.device import mx
from mlxbert.errors import ArgumentError
from mlxbert.labels import Labels
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.training.objective import Example, Objective, Predictions
from mlxbert.training.scores.summary import METRICS, Evaluation

HEAD = "sequence_classifier"


class TextObjective(Objective[Example]):
    """A sequence classifier over one text or two.

    Args:
        text_column: Where the text stands; `None` guesses. The same for the others.
        pair_column: Where the second text stands.
        label_column: Where the label stands.
        metric: What chooses the best checkpoint; `None` for the task's own.
        max_length: Inputs are truncated to so many tokens; `None` for what the model takes.

    Attributes:
        kind: What a label is: `class`, `classes` or `number`.
        problem_type: As in `config.json`.
        labels: The classes, once they are known.
        columns: What was read from where, once something was read.
    """

    kind: ClassVar[Literal["class", "classes", "number"]]
    problem_type: ClassVar[str]
    labels: Labels

    def __init__(
        self,
        *,
        text_column: str | None = None,
        pair_column: str | None = None,
        label_column: str | None = None,
        metric: str | None = None,
        max_length: int | None = None,
    ) -> None:
        known = METRICS[self.name]
        metric = next(iter(known)) if metric is None else metric
        if metric not in known:
            raise ArgumentError(f"metric is {metric!r:.60}, expected one of {', '.join(known)}")
        if max_length is not None and (type(max_length) is not int or max_length < 8):
            raise ArgumentError(f"max_length is {max_length!r:.60}, expected a whole number of at least 8")
        self.metric, self.minimize, self.max_length = metric, not known[metric], max_length
        self._asked = {"text_column": text_column, "pair_column": pair_column, "label_column": label_column}
        self.columns: Columns | None = None

    def settings(self) -> dict[str, Any]:
        """See `Objective.settings`."""
        return {"metric": self.metric, "max_length": self.max_length, **self._asked}

    def read(self, rows: Rows) -> list[Labelled]:
        """Texts with labels; files read later have the columns of the first."""
        if self.columns is None:
            self.columns = find_columns(rows, labels=True, **self._asked)
        return read_labelled(rows, self.columns, self.kind)

    def heads(self, records: Sequence[Labelled]) -> Mapping[str, Labels | None]:
        """A classifier with the classes of the records."""
        return {HEAD: self.labels_of(records)}

    def labels_of(self, records: Sequence[Labelled]) -> Labels:
        """The classes of the records, numbers in their order, other names by the alphabet."""
        names = {name for record in records for name in record.names}
        return Labels(tuple(sorted(names, key=_order)), self.problem_type)

    def bind(self, model: Model) -> None:
        """Takes the tokenizer and the labels of a model with a classifier.

        Raises:
            ArgumentError: The model does not take inputs as long as `max_length`.
        """
        super().bind(model)
        if self.max_length is not None and self.max_length > self.config.max_length:
            raise ArgumentError(
                f"max_length is {self.max_length}, the model takes at most {self.config.max_length} tokens"
            )
        self.tokenizer: Tokenizer = model.tokenizer.adapted(max_length=self.max_length)
        assert model.labels is not None
        self.labels = model.labels

    def prepare(self, record: Labelled) -> Example:
        """Tokenizes a text or a pair; of a pair the longer text is truncated first."""
        encoding = self.tokenizer.encode(record.text, record.pair, overflow="truncate")
        return Example(encoding, self.target(record))

    @abstractmethod
    def target(self, record: Labelled) -> Any:
        """What the model should predict, as numbers."""

    def predict(self, network: Network, inputs: Batch) -> Predictions:
        """Probabilities, or for numbers the logit itself, float32 (B, C)."""
        return np.array(self.scores(network.logits(HEAD, inputs).astype(mx.float32)))

    @abstractmethod
    def scores(self, logits: mx.array) -> mx.array:
        """Logits (B, C) as predictions (B, C)."""

    @abstractmethod
    def evaluation(self, records: Sequence[Labelled], predictions: Predictions, **facts: Any) -> Evaluation:
        """Everything that is known about predictions; `facts` are `model`, `data` and `truncated`."""

    def tuned(self, examples: Sequence[Example], predictions: Predictions) -> Labels:
        """The labels, with what is chosen on validation data."""
        return replace(self.labels, problem_type=self.problem_type)


def _order(name: str) -> tuple[bool, float, str]:
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name
