"""`mlxbert.evaluate`: measures how good a model is on labelled data."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlxbert.errors import InputError
from mlxbert.model import Model
from mlxbert.progress import OnProgress
from mlxbert.readers.text_lines import UTF8
from mlxbert.tasks.argument_checks import check_model
from mlxbert.tasks.training_record import trained_hashes
from mlxbert.train.data.labelled_rows import LabelledRows, read_rows
from mlxbert.train.objectives import make_objective
from mlxbert.train.objectives.predictions import predict
from mlxbert.train.options.training_tasks import options_of_variant
from mlxbert.train.scores.evaluation_summary import Evaluation
from mlxbert.train.training_plan import prepared

_LOG = logging.getLogger("mlxbert")


def evaluate(
    task: str,
    model: Model,
    *,
    data: str | Path | Iterable[Any],
    format: str | None = None,
    no_header: bool = False,
    encoding: str = UTF8,
    batch_tokens: int | None = None,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Evaluation:
    """Evaluates a model on labelled data.

    The labels in the data must be labels of the model. Case is ignored, and if the model's labels have no names
    (`LABEL_0`), numbers in the data are the indices of its outputs. Any other label is an error, except for
    `multilabel`: rare labels are often missing in training data, so unknown labels are ignored with a warning, and
    `Evaluation.unknown` counts them.

    If the call does not name a column, the column that training used is read. If the data do not have it, the column is
    guessed.

    Example:
        >>> mlxbert.evaluate("classify", mlxbert.load("my-classifier"), data="test.csv").metrics

    Args:
        task: The name of a task of `finetune`.
        model: A model with the task's head.
        data: A file, several files, a folder of texts per label, or an iterable of records.
        format: The format of the files, if their extensions do not name it.
        no_header: Whether the first row of a .csv or .tsv file is data; the columns are then called `1`, `2`, …
        encoding: The encoding of text files.
        batch_tokens: Tokens per batch, padding included.
        on_progress: Called with the number of finished examples and the number of all examples.
        **options: The options of the task: `text_column`, `pair_column`, `label_column` (guessed if left out);
            `metric`, the main metric; `max_length`, the length to which inputs are truncated, or the length of windows
            for `tag` and `answer`; `stride` for these two; `label_names` for `classify` and `multilabel`; `max_words`
            for `answer`; `query_column` and `max_score` for `rerank`.

    Raises:
        ArgumentError: An argument is invalid, or the model was made for another task.
        InputError: A record cannot be used.
        CheckpointError: The model does not have the task's head.
    """
    check_model(model, task, place="second")
    objective = make_objective(task, **options)
    if (variant := objective.variant_of(model)) is not None:
        objective = make_objective(task, **options, **options_of_variant(variant))
    model.require(objective.spec.needs)
    if (variant := objective.needed_variant(model)) is not None:
        objective = make_objective(task, **objective.given | {variant: True})
    objective.check_model(model)
    rows = read_rows(data, format=format, header=not no_header, encoding=encoding, words=objective.spec.of_words)
    objective.adapt(model, rows)
    records = objective.read(rows)
    if not records:
        raise InputError(f"{', '.join(rows.files) or 'data'}: there are no examples")
    objective.bind(model)
    records, unknown = objective.matched(records, model)
    part = prepared(objective, [(record, record.place) for record in records])
    predictions = predict(model.network, objective, part.examples, batch_tokens=batch_tokens, on_progress=on_progress)
    return objective.evaluation(
        part, predictions, model=model.source, data=rows.files, truncated=part.truncated, unknown=unknown,
        constant=objective.constant(records, records), seen=_seen(model, rows),
    )  # fmt: skip


def _seen(model: Model, rows: LabelledRows) -> int:
    """Returns how many rows are from files on which the model was trained or selected; warns if there are any."""
    trained = trained_hashes(model.folder)
    files = [name for name, sha256 in rows.sha256.items() if sha256 in trained]
    seen = sum(rows.counts[name] for name in files)
    if seen:
        _LOG.warning(
            "rows are from %s, on which %s was trained or chosen, so the scores say little about new texts",
            ", ".join(files), model.source,
        )  # fmt: skip
    return seen
