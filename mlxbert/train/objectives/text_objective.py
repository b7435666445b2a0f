"""The base class of the objectives that predict for whole texts: they share reading, tokenizing and predicting.

Shapes: B or N examples, C classes, D size of a vector.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from mlxbert.errors import ArgumentError, CheckpointError, InputError, MlxbertError
from mlxbert.frozen_dict import FrozenDict
from mlxbert.labels.labels import REGRESSION, Labels
from mlxbert.machine.device import mx
from mlxbert.model import Model
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from mlxbert.tasks.embed import embed
from mlxbert.tasks.training_record import missing_pair, trained_columns, trained_names
from mlxbert.train.data.columns import ColumnNames, find_columns
from mlxbert.train.data.data_report import check_labels, find_unknown
from mlxbert.train.data.labelled_rows import LabelledRows
from mlxbert.train.data.labelled_texts import LabelledText, read_labelled
from mlxbert.train.objectives.objective import Example, Predictions, Split
from mlxbert.train.objectives.task_objective import TaskObjective
from mlxbert.train.options.training_tasks import TASKS
from mlxbert.train.scores.linear_models import Link, fit_linear
from mlxbert.train.scores.metrics import BASELINE_EXAMPLES, Floats, Ints, Numbers

HEAD = "sequence_classifier"
_LOG = logging.getLogger("mlxbert")


class TextObjective(TaskObjective[Example]):
    """A sequence classifier over one text or two."""

    head = HEAD
    kind: ClassVar[Literal["class", "classes", "number"]]  # the kind of label: `class`, `classes` or `number`
    columns: ColumnNames | None = None
    # The new name of each label of the data; empty if labels keep their names.
    renamed: Mapping[str, str] = FrozenDict()
    common: ClassVar[str]  # the name of the baseline that always predicts what is most common in the training data
    link: ClassVar[Link]  # the link function of the linear baseline

    @property
    def problem_type(self) -> str | None:
        """The `problem_type` for `config.json`."""
        return self.spec.problem_type

    def read(self, rows: LabelledRows) -> list[LabelledText]:
        """Reads texts with labels. The first call finds the columns, and later calls read the same columns."""
        if self.columns is None:
            self.columns = find_columns(rows, labels=True, **self._columns)
        records = read_labelled(rows, self.columns, self.kind)
        names = getattr(self.data, "label_names", None)
        if names is None:
            return records
        self.renamed = self.renamed or _renamed(names, {name for record in records for name in record.names})
        return [_relabelled(record, lambda name: self.renamed.get(name, name)) for record in records]

    def settings(self) -> dict[str, Any]:
        return super().settings() | ({"label_names": dict(self.renamed)} if self.renamed else {})

    def check_valid(self, train: Sequence[LabelledText], valid: Sequence[LabelledText]) -> None:
        check_labels({name for record in train for name in record.names}, valid)

    def heads(self, records: Sequence[LabelledText]) -> Mapping[str, Labels | None]:
        return {HEAD: self.labels_of(records)}

    def labels_of(self, records: Sequence[LabelledText]) -> Labels:
        """Returns the renamed classes, if any, or else the sorted classes of the records. Numbers sort before names."""
        names = {name for record in records for name in record.names}
        return Labels(tuple(self.renamed.values()) or tuple(sorted(names, key=_order)), self.problem_type)

    def prepare(self, record: LabelledText) -> Example:
        """Tokenizes a text or a pair. If a pair is too long, the longer text is truncated first."""
        encoding = self.tokenizer.encode(record.text, record.pair, overflow="truncate")
        return Example(encoding, self.target(record))

    @abstractmethod
    def target(self, record: LabelledText) -> Any:
        """Returns the expected prediction in numeric form."""

    def predict(self, network: Network, inputs: Batch) -> mx.array:
        """Computes probabilities or, if numbers are predicted, the logits themselves, float32 (B, C)."""
        return self.scores(network.logits(HEAD, inputs).astype(mx.float32))

    @abstractmethod
    def scores(self, logits: mx.array) -> mx.array:
        """Converts logits (B, C) to predictions (B, C)."""

    def tuned(self, part: Split, predictions: Predictions) -> Labels:
        return replace(self.labels, problem_type=self.problem_type)

    def baselines(self, model: Model, train: Sequence[LabelledText], valid: Sequence[LabelledText]) -> dict[str, float]:
        """See `TaskObjective.baselines`.

        The first method always predicts what is most common in the training data. `frozen vectors` is a linear model on
        the vectors of the untrained model, for at most 2,000 examples of each split. It is left out if the model cannot
        embed the texts.
        """
        targets, expected = self.expected(train), self.expected(valid)
        scores = self.constant(train, valid)
        train_rows, valid_rows = _sample(len(train)), _sample(len(valid))
        try:
            vectors = _vectors(model, [train[number] for number in train_rows])
            predict = fit_linear(vectors, targets[train_rows], self.link)
            predicted = predict(_vectors(model, [valid[number] for number in valid_rows]))
        except MlxbertError:  # hours of training must not fail because of a baseline
            return scores
        return scores | {"frozen vectors": self.score(expected[valid_rows], predicted)}

    @abstractmethod
    def expected(self, records: Sequence[LabelledText]) -> Floats:
        """Returns the targets for a linear model (see `fit_linear`)."""

    @abstractmethod
    def score(self, expected: Floats, predicted: Floats) -> float:
        """Returns the main metric of a linear model's predictions."""

    def constant(self, train: Sequence[LabelledText], valid: Sequence[LabelledText]) -> dict[str, float]:
        return {self.common: self.score_common(self.expected(train), self.expected(valid))}

    def score_common(self, train: Floats, expected: Floats) -> float:
        """Returns the main metric of always predicting the mean of the training targets."""
        return self.score(expected, np.broadcast_to(train.mean(0), expected.shape))

    def adapt(self, model: Model, rows: LabelledRows) -> None:
        """See `TaskObjective.adapt`. The columns of a text and its pair are only reused if both can be."""
        trained = trained_columns(model.folder)
        present = {role: column for role, column in trained.items() if column in rows.columns}
        named = {column for column in self._columns.values() if column is not None}
        texts = {"text", "pair"} & trained.keys()
        if self._columns["text_column"] or self._columns["pair_column"] or not texts <= present.keys():
            present = {role: column for role, column in present.items() if role == "label"}
        chosen = {
            role: column for role, column in present.items()
            if self._columns.get(f"{role}_column", column) is None and column not in named
        }  # fmt: skip
        if chosen:
            self._columns |= {f"{role}_column": column for role, column in chosen.items()}
            listed = ", ".join(f"{role} {column!r}" for role, column in chosen.items())
            _LOG.info("using the columns that %s was trained with: %s", model.source, listed)

    def check_model(self, model: Model) -> None:
        labels = model.labels
        if labels is None:
            raise CheckpointError(
                f"{model.source}: the labels cannot be used", hint="correct id2label in the model's config.json"
            )
        kind = labels.problem_type or (REGRESSION if len(labels) == 1 else self.problem_type)
        if kind != self.problem_type:
            other = next((name for name, spec in TASKS.items() if spec.problem_type == kind), "classify")
            raise ArgumentError(f"`task` is {self.name!r}, but the model was trained for {other!r} ({kind})")
        if self.kind == "number" and len(labels) > 1:
            raise ArgumentError(
                f"`task` is {self.name!r}, but the model has {len(labels)} outputs, expected a single output"
            )

    def matched(
        self, records: Sequence[LabelledText], model: Model
    ) -> tuple[Sequence[LabelledText], Mapping[str, int]]:
        """See `TaskObjective.matched`. An unknown label is an error, unless examples can have several labels."""
        if "pair" in trained_columns(model.folder) and all(record.pair is None for record in records):
            _LOG.warning("%s", missing_pair(model.source))
        if self.kind == "number":
            return records, {}
        labels = model.labels or Labels()
        spelling = _spellings(labels, trained_names(model.folder))
        unknown = find_unknown(spelling, records)
        single = self.kind == "class"
        if unknown is not None:
            listed = ", ".join(labels.names[:20]) + (", …" if len(labels) > 20 else "")
            if single or not any(spelling(name) for record in records for name in record.names):
                raise InputError(
                    f"{unknown.place}: {unknown.of_no_model()}, which has {listed}",
                    hint="rename the labels in the data, or choose the column with `label_column=`",
                )
            _LOG.warning("%s does not have %s, so the scores leave out unknown labels", model.source, unknown)
        return [_relabelled(record, spelling) for record in records], unknown.labels if unknown is not None else {}


def _sample(examples: int) -> Ints:
    """Returns the sorted indices of a random sample of at most `BASELINE_EXAMPLES` examples."""
    if examples <= BASELINE_EXAMPLES:
        return np.arange(examples)
    return np.sort(np.random.default_rng(0).choice(examples, BASELINE_EXAMPLES, replace=False))


def _vectors(model: Model, records: Sequence[LabelledText]) -> Numbers:
    """Returns the vector of each text, (N, D), or |u - v| and u * v for each pair of vectors u and v, (N, 2D).

    If u and v were concatenated, a linear model could not compare them. |u - v| shows where they differ, and u * v
    (whose sum is their cosine) where they agree. Neither depends on the order of the texts.
    """
    first = embed(model, [record.text for record in records])
    if all(record.pair is None for record in records):
        return first
    second = embed(model, [record.pair or "" for record in records])
    return np.hstack([np.abs(first - second), first * second])


def _renamed(label_names: str | Sequence[str], labels: Collection[str]) -> Mapping[str, str]:
    """Returns the new name of each label of the data. The labels are sorted by `_order` to match `label_names`."""
    names = [name.strip() for name in (label_names.split(",") if isinstance(label_names, str) else label_names)]
    if not all(names) or len({*names}) < len(names):
        raise ArgumentError(f"`label_names` is {label_names!r:.60}, expected different names separated by commas")
    old_names = names if {*labels} <= {*names} else sorted(labels, key=_order)
    if len(old_names) != len(names):
        listed = ", ".join(old_names[:20]) + (", …" if len(old_names) > 20 else "")
        raise ArgumentError(
            f"`label_names` has {len(names)} names, but the data has {len(old_names)} labels ({listed})",
            hint="give one name for each label, in the same order",
        )
    return dict(zip(old_names, names, strict=True))


def _relabelled(record: LabelledText, name: Callable[[str], str | None]) -> LabelledText:
    """Renames the labels of a record. If it can have several labels, labels without a new name are left out."""
    if isinstance(record.label, str):
        return replace(record, label=name(record.label) or record.label)
    return replace(record, label=tuple(filter(None, map(name, record.names))))


def _spellings(labels: Labels, renamed: Mapping[str, str]) -> Callable[[str], str | None]:
    """Returns a function that maps a label of the data to the model's spelling; to `None` if the model lacks the label.

    The function also accepts old names, which are the keys of `renamed`.
    """
    exact = set(labels.names)
    folded: Mapping[str, str] = {name.lower(): name for name in labels.names}
    if len(folded) < len(labels):
        folded = {}
    unnamed = {str(index): name for index, name in enumerate(labels.names) if name == f"LABEL_{index}"}
    return lambda name: name if name in exact else folded.get(name.lower()) or unnamed.get(name) or renamed.get(name)


def _order(name: str) -> tuple[bool, float, str]:
    try:
        return False, float(name), name
    except ValueError:
        return True, 0.0, name
