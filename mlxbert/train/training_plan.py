"""Prepares training: splits and tokenizes the data, and makes the report on them."""

import hashlib
import itertools
import logging
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mlxbert.errors import InputError
from mlxbert.labels.labels import Labels
from mlxbert.model import Model
from mlxbert.train.base_model import BaseModel
from mlxbert.train.data import data_report
from mlxbert.train.data.data_report import DataReport
from mlxbert.train.data.labelled_rows import LabelledRows, row_bytes
from mlxbert.train.data.validation_split import split
from mlxbert.train.loop.phase_times import LOADING, Times
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.objective import Objective, Split
from mlxbert.train.objectives.task_objective import TaskObjective
from mlxbert.train.options.training_tasks import options_of_variant

_LOG = logging.getLogger("mlxbert")


class FreshModels:
    """Untrained models with the heads to train.

    The first model is loaded for the plan and then trained by the first run, so that it is loaded only once.
    """

    def __init__(self, base: BaseModel, heads: Mapping[str, Labels | None], seed: int, needs: str) -> None:
        self._base, self._heads, self._seed, self._needs = base, heads, seed, needs
        self._first: Model | None = base.with_heads(heads, seed, needs)

    def bind(self, objective: Objective[Any]) -> None:
        """Binds an objective to the first model, before a run takes the model."""
        assert self._first is not None
        _bind(objective, self._first, self._seed)

    def take(self, objective: Objective[Any], seed: int) -> Model:
        """Returns a model, bound to the objective, whose new weights were initialized with `seed`.

        The caller may modify the model.
        """
        model, self._first = self._first, None
        if model is None or seed != self._seed:
            del model  # frees its memory for the next one
            model = self._base.with_heads(self._heads, seed, self._needs)
        model.adopt()  # the events may be iterated over on a different thread than the call
        _bind(objective, model, seed)
        return model


def _bind(objective: Objective[Any], model: Model, seed: int) -> None:
    if isinstance(objective, TaskObjective):
        objective.seed = seed
    objective.bind(model)


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """The data, the objective and the models of a training."""

    objective: Objective[Any]  # the objective, bound to the first model
    heads: Mapping[str, Labels | None]
    models: FreshModels
    train: Split  # the training data
    valid: Split  # the validation data
    report: DataReport | None  # the report on the data; `None` for a custom objective
    train_files: tuple[str, ...]  # the files of the training data
    valid_files: tuple[str, ...]  # the files of the validation data
    sha256: Mapping[str, str]  # the hashes of all files, and of data from pipes and iterators, keyed by name


def make_plan(
    objective: Objective[Any],
    base: BaseModel,
    train: LabelledRows,
    valid: LabelledRows | None,
    validation_fraction: float | None,
    seed: int,
    times: Times,
) -> TrainingPlan:
    """Reads, splits and tokenizes the data."""
    if isinstance(objective, TaskObjective):
        objective.start(base)
    times.begin("reading the data")
    placed = _placed(objective, train)
    if isinstance(objective, TaskObjective):
        if (variant := objective.usual_variant([record for record, _ in placed], base)) is not None:
            objective = make_objective(objective.name, **objective.given | options_of_variant(variant))
            objective.start(base)
            _LOG.addFilter(_nothing)  # what the data lack was said when they were first read
            try:
                placed = _placed(objective, train)  # also sets its columns and the names of labels
            finally:
                _LOG.removeFilter(_nothing)
        objective.check([record for record, _ in placed])
    if valid is None:
        share = usual_share(len(placed)) if validation_fraction is None else validation_fraction
        held_in, held_out = split(placed, share, seed, key=_key, names=_names)
    else:
        held_in = placed
        held_out = _placed(objective, valid)
    if isinstance(objective, TaskObjective):
        objective.check_valid(*([record for record, _ in part] for part in (held_in, held_out)))
    heads = objective.heads([record for record, _ in held_in])
    times.begin(LOADING)
    models = FreshModels(base, heads, seed, objective.needs)
    models.bind(objective)
    times.begin("tokenizing")
    parts = [prepared(objective, part) for part in (held_in, held_out)]
    return TrainingPlan(
        objective=objective, heads=heads, models=models, train=parts[0], valid=parts[1],
        report=_report(objective, parts, train, valid),
        train_files=train.files, valid_files=(train if valid is None else valid).files,
        sha256=_hashes(train, valid),
    )  # fmt: skip


def _nothing(record: logging.LogRecord) -> bool:
    """The filter of a log that lets nothing pass."""
    return False


def _placed(objective: Objective[Any], rows: LabelledRows) -> list[tuple[Any, str]]:
    """Returns the records, each with its location. A built-in task may make several records from a row."""
    records = objective.read(rows)
    if isinstance(objective, TaskObjective):
        return [(record, record.place) for record in records]
    return list(zip(records, (row.where for row in rows), strict=True))


def _hashes(train: LabelledRows, valid: LabelledRows | None) -> dict[str, str]:
    """Returns the hashes of all data, keyed by name.

    If training and validation data differ but share a name, such as `records`, the second name is `valid records`.
    """
    hashes = dict(train.sha256)
    parts = [train] if valid is None else [train, valid]
    for name, sha256 in parts[-1].sha256.items():
        hashes[name if hashes.get(name, sha256) == sha256 else f"valid {name}"] = sha256
    if streams := [part for part in parts if not part.resumable]:
        digest = hashlib.sha256()
        for row in itertools.chain(*streams):
            digest.update(row_bytes(row.values, row.where))
        hashes["stream"] = digest.hexdigest()
    return hashes


def usual_share(examples: int) -> float:
    """Returns the default share of validation data: 0.1, or up to 0.2 if that is needed to get 20 examples."""
    return max(0.1, min(20 / max(examples, 1), 0.2))


def prepared(objective: Objective[Any], part: Sequence[tuple[Any, str]]) -> Split:
    """Tokenizes records. Errors name the location of the record."""
    examples: list[Any] = []
    owners: list[int] = []
    for number, (record, place) in enumerate(part):
        try:
            tokenized = objective.examples(record)
        except InputError as problem:
            raise InputError(f"{place}: {problem.message}", hint=problem.hint) from None
        examples += tokenized
        owners += [number] * len(tokenized)
    return Split([record for record, _ in part], examples, owners, [part[owner][1] for owner in owners])


def _key(placed: tuple[Any, str]) -> Hashable:
    """Returns the key of records that must be in the same split: their `group` or, without one, their inputs."""
    record, place = placed
    return getattr(record, "group", None) or getattr(record, "key", place)


def _names(placed: tuple[Any, str]) -> tuple[str, ...]:
    names: tuple[str, ...] = getattr(placed[0], "names", ())
    return names


def _report(
    objective: Objective[Any], parts: Sequence[Split], train: LabelledRows, valid: LabelledRows | None
) -> DataReport | None:
    if not isinstance(objective, TaskObjective) or objective.columns is None:
        return None
    splits = [
        data_report.describe_split(name, files, part.records, _lengths(part), part.truncated)
        for name, files, part in zip(("train", "valid"), (train.files, (valid or train).files), parts, strict=True)
    ]
    report = data_report.describe(
        splits,
        [part.records for part in parts],
        warn=objective.warnings,
        columns=objective.columns,
        unused=tuple(column for column in train.columns if column not in objective.columns.to_dict().values()),
        split_off=None if valid is not None else len(parts[1].records) / sum(len(part.records) for part in parts),
        max_length=objective.tokenizer.max_length,
    )
    return replace(report, facts=objective.facts(), warnings=(*objective.notes(), *report.warnings))


def _lengths(part: Split) -> list[int]:
    """Returns the number of tokens of each record before truncation, including special tokens."""
    lengths = [0] * len(part.records)
    for owner, example in zip(part.owners, part.examples, strict=True):
        lengths[owner] = max(lengths[owner], *(encoding.positions[-1] + 1 for encoding in example.encodings))
    return lengths
