"""`mlxbert.evaluate`: how good a model is on labelled data."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.data.labelled import Labelled
from mlxbert.data.rows import Rows, read_rows
from mlxbert.data.trained import missing_pair, trained_columns
from mlxbert.errors import ArgumentError, CheckpointError, InputError
from mlxbert.folders.fingerprint import hash_folder
from mlxbert.labels import Labels
from mlxbert.model import Model
from mlxbert.training.data.checks import find_unknown
from mlxbert.training.data.plan import prepared
from mlxbert.training.distributed import join
from mlxbert.training.objectives import make_objective
from mlxbert.training.objectives.texts import TextObjective
from mlxbert.training.predict import predict
from mlxbert.training.scores.summary import Evaluation

_LOG = logging.getLogger("mlxbert")


def evaluate(
    task: str,
    model: Model,
    *,
    data: str | Path | Iterable[Any],
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    format: str | None = None,
    metric: str | None = None,
    max_length: int | None = None,
    batch_tokens: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Evaluates a model on labelled data.

    Labels of the data are those of the model; where they are written differently, capitals do not count, and numbers
    name the outputs of a model whose labels have no names (`LABEL_0`). Other labels are refused; of `multilabel`, where
    rare ones are missing in most training data, they are left out, with a warning: `Evaluation.unknown`.

    Columns that are not named are those of the training data, where the data have them, and are guessed otherwise.

    Args:
        task: `classify`, `multilabel` or `regress`.
        model: A model with a sequence classifier.
        data: A file, several files, a folder of texts per label, or an iterable of records.
        text_column: Where the text stands; found if left out, like the others.
        pair_column: Where the second text stands.
        label_column: Where the label stands.
        format: The format of the files, where their endings do not say it.
        metric: The main metric; `None` for the task's own.
        max_length: Inputs are truncated to so many tokens; `None` for what the model takes.
        batch_tokens: Tokens per batch, padding included.
        on_progress: Called with how many examples are done, and of how many.

    Raises:
        ArgumentError: An argument is invalid, or the model is of another kind than the task.
        InputError: A record cannot be used.
        CheckpointError: The model has no sequence classifier.
    """
    if not isinstance(model, Model):
        raise ArgumentError(f"model is {model!r:.60}, expected the result of mlxbert.load")
    given = {"text": text_column, "pair": pair_column, "label": label_column}
    how: dict[str, Any] = {"metric": metric, "max_length": max_length}
    objective = _objective(task, given, how)  # before the data are read, which takes time
    model.require("classify")
    _check_kind(objective, model)
    group = join()
    with group.together():
        rows = read_rows(data, format=format)
        objective = _objective(task, _as_trained(model, given, rows), how)
        records = objective.read(rows)
        if not records:
            raise InputError(f"{', '.join(rows.files) or 'data'}: there is no example")
        if "pair" in trained_columns(model.folder) and all(record.pair is None for record in records):
            _LOG.warning("%s", missing_pair(model.source))
        objective.bind(model)
        records, unknown = _renamed(objective, records, model)
        part = prepared(objective, [(record, record.place) for record in records])
    if group.size > 1:
        group.check_same(
            {"data": dict(rows.sha256), "number of examples": len(records), "model": hash_folder(model.folder)}
        )
    predictions = predict(
        model.network, objective, part.examples, group=group, batch_tokens=batch_tokens, on_progress=on_progress
    )
    return objective.evaluation(
        records, predictions, model=model.source, data=rows.files,
        truncated=sum(example.encoding.truncated for example in part.examples), unknown=unknown,
    )  # fmt: skip


def _objective(task: str, columns: Mapping[str, str | None], how: Mapping[str, Any]) -> TextObjective:
    objective = make_objective(task, **{f"{role}_column": column for role, column in columns.items()}, **how)
    assert isinstance(objective, TextObjective)
    return objective


def _as_trained(model: Model, given: Mapping[str, str | None], rows: Rows) -> dict[str, str | None]:
    """The columns that are given, and for the others those of the training data, where the data have them."""
    known = {role: column for role, column in trained_columns(model.folder).items() if column in rows.columns}
    asked = {column for column in given.values() if column is not None}
    texts = {role for role in ("text", "pair") if role in trained_columns(model.folder)}
    if any(given[role] is not None for role in ("text", "pair")) or not texts <= known.keys():
        known = {role: column for role, column in known.items() if role == "label"}
    chosen = {
        role: column for role, column in known.items() if role in given and given[role] is None and column not in asked
    }
    if chosen:
        said = ", ".join(f"{role} {column!r}" for role, column in chosen.items())
        _LOG.info("columns as in the training of %s: %s", model.source, said)
    return {**given, **chosen}


def _check_kind(objective: TextObjective, model: Model) -> None:
    """Refuses a model whose outputs are of another kind than the task's."""
    labels = model.labels
    if labels is None:
        raise CheckpointError(f"{model.source}: its labels cannot be used", hint="see id2label in its config.json")
    kind = labels.problem_type or ("regression" if len(labels) == 1 else objective.problem_type)
    if kind != objective.problem_type:
        tasks = {"regression": "regress", "multi_label_classification": "multilabel"}
        raise ArgumentError(
            f"task is {objective.name!r}, the model is made for {tasks.get(kind, 'classify')!r} ({kind})"
        )
    if objective.kind == "number" and len(labels) > 1:
        raise ArgumentError(f"task is {objective.name!r}, the model has {len(labels)} outputs, expected one")


def _renamed(
    objective: TextObjective, records: Sequence[Labelled], model: Model
) -> tuple[list[Labelled], Mapping[str, int]]:
    """The records with labels as the model spells them; and those that it does not have, by label.

    Raises:
        InputError: The model does not have a label, and records have one each; or it has none of them.
    """
    if objective.kind == "number":
        return list(records), {}
    labels = model.labels or Labels()
    spelled = _spellings(labels)
    unknown = find_unknown(spelled, records)
    one = objective.kind == "class"
    if unknown is not None:
        shown = ", ".join(labels.names[:20]) + (", …" if len(labels) > 20 else "")
        if one or not any(spelled(name) for record in records for name in record.names):
            raise InputError(
                f"{unknown.place}: {unknown} not in the model, which has: {shown}",
                hint="rename the labels of the data, or choose the column with label_column=",
            )
        _LOG.warning("%s does not have %s: the scores leave them out", model.source, unknown)
    renamed = [
        replace(record, label=spelled(str(record.label)) if one else tuple(filter(None, map(spelled, record.names))))
        for record in records
    ]
    return renamed, unknown.labels if unknown is not None else {}


def _spellings(labels: Labels) -> Callable[[str], str | None]:
    exact = set(labels.names)
    folded: Mapping[str, str] = {name.casefold(): name for name in labels.names}
    if len(folded) < len(labels):
        folded = {}
    unnamed = {str(index): name for index, name in enumerate(labels.names) if name == f"LABEL_{index}"}
    return lambda name: name if name in exact else folded.get(name.casefold()) or unnamed.get(name)
