"""`mlxbert.distill`: trains a smaller student of a model. It is pre-training with different defaults."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mlxbert.errors import ArgumentError
from mlxbert.train.loop.events import TrainingEvents
from mlxbert.train.pretraining.initial_model import EVERY_OTHER
from mlxbert.train.pretraining.pretrain import pretrain
from mlxbert.train.pretraining.pretraining_settings import DISTILLED
from mlxbert.weights.model_source import check_source


def distill(
    corpus: str | Path | Sequence[str | Path],
    *,
    teacher: str | Path,
    output: str | Path,
    student: str | Path | None = None,
    layers: str | Sequence[int] | None = None,
    objective: str = DISTILLED,
    **options: Any,
) -> TrainingEvents:
    """Trains a student on plain text to predict what its teacher predicts, and writes it as a model folder.

    Example:
        >>> for event in mlxbert.distill("notes.txt", teacher="google-bert/bert-base-uncased", output="my-student"):
        ...     print(event)

    Args:
        corpus: See `mlxbert.pretrain`.
        teacher: The model that the student learns from: hub name, folder or `builtin`.
        output: The folder to write.
        student: The model to train, which must have the teacher's vocabulary; by default a copy of the teacher with
            only some of its layers.
        layers: The layers of the teacher that the student starts with (numbered from 0); by default every other one.
        objective: The losses with their weights (see `mlxbert.pretrain`).
        **options: All other options of `mlxbert.pretrain`.

    Returns:
        An iterator of events (see `mlxbert.pretrain`).

    Raises:
        MlxbertError: See `mlxbert.pretrain`.
    """
    for name in ("model", "config", "vocabulary", "adapter"):
        if options.get(name) is not None:
            raise ArgumentError(
                f"{name} is not an option of distill", hint="choose the student with student= or layers="
            )
    if student is not None:
        if layers is not None:
            raise ArgumentError("student and layers cannot be combined, because layers are taken from the teacher")
        return pretrain(
            corpus, output=output, model=student, teacher=teacher, objective=objective, **options
        )  # fmt: skip
    check_source(teacher, "teacher")
    chosen = EVERY_OTHER if layers is None else layers
    return pretrain(
        corpus, output=output, model=teacher, layers=chosen, teacher=teacher, objective=objective, **options
    )
