"""The training objectives, one file each."""

import importlib
from typing import TYPE_CHECKING, Any

from mlxbert.other_libraries import not_one_of
from mlxbert.train.options.training_tasks import TASKS, options_of_variant

if TYPE_CHECKING:
    from mlxbert.train.objectives.task_objective import TaskObjective


def make_objective(task: str, **options: Any) -> "TaskObjective[Any]":
    """Makes the objective of a task. Options that are `None` keep their defaults."""
    if task not in TASKS:
        raise not_one_of("task", task, TASKS)
    spec = TASKS[task]
    chosen = [
        place
        for variant, place in spec.variants.items()
        if all(options.get(name) == value for name, value in options_of_variant(variant).items())
    ]
    module, name = (chosen or [spec.objective])[0]
    objective: TaskObjective[Any] = getattr(importlib.import_module(f"{__name__}.{module}"), name)(**options)
    return objective
