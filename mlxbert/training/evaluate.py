"""`mlxbert.evaluate`: how good a model is on labelled data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.data.rows import read_rows
from mlxbert.errors import ArgumentError, CheckpointError, InputError
from mlxbert.folders.fingerprint import hash_folder
from mlxbert.labels import Labels
from mlxbert.model import Model
from mlxbert.training.data.plan import prepared
from mlxbert.training.distributed import join
from mlxbert.training.objectives import make_objective
from mlxbert.training.objectives.texts import TextObjective
from mlxbert.training.predict import predict
from mlxbert.training.scores.summary import Evaluation


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
    name the outputs of a model whose labels have no names (`LABEL_0`).

    Args:
        task: `classify`, `multilabel` or `regress`.
        model: A model with a sequence classifier.
        data: A file, several files, a folder of texts per label, or an iterable of records.
        text_column: Where the text stands; guessed if left out, like the others.
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
    objective = make_objective(
        task, text_column=text_column, pair_column=pair_column, label_column=label_column, metric=metric,
        max_length=max_length,
    )  # fmt: skip
    model.require("classify")
    assert isinstance(objective, TextObjective)
    _check_kind(objective, model)
    group = join()
    with group.together():
        rows = read_rows(data, format=format)
        records = objective.read(rows)
        if not records:
            raise InputError(f"{', '.join(rows.files) or 'data'}: there is no example")
        objective.bind(model)
        records = _renamed(objective, records, model.labels or Labels())
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
        truncated=sum(example.encoding.truncated for example in part.examples),
    )  # fmt: skip


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


def _renamed(objective: TextObjective, records: Sequence[Any], labels: Labels) -> list[Any]:
    """The records with labels as the model spells them.

    Raises:
        InputError: The model does not have a label.
    """
    if objective.kind == "number":
        return list(records)
    spelled = _spellings(labels)
    for record in records:
        for name in record.names:
            if spelled(name) is None:
                raise InputError(
                    f"{record.place}: the label is {name!r:.60}, the model has: {', '.join(labels.names[:20])}",
                    hint="rename the labels of the data, or choose the column with label_column=",
                )
    one = objective.kind == "class"
    return [
        replace(record, label=spelled(record.label) if one else tuple(map(spelled, record.label))) for record in records
    ]


def _spellings(labels: Labels) -> Callable[[str], str | None]:
    exact = set(labels.names)
    folded: Mapping[str, str] = {name.casefold(): name for name in labels.names}
    if len(folded) < len(labels):
        folded = {}
    unnamed = {str(index): name for index, name in enumerate(labels.names) if name == f"LABEL_{index}"}
    return lambda name: name if name in exact else folded.get(name.casefold()) or unnamed.get(name)
