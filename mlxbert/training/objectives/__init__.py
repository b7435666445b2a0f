"""What can be trained, one file each."""

import difflib
import importlib
import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mlxbert.errors import ArgumentError
from mlxbert.training.options import TrainingOptions
from mlxbert.training.tasks import TASKS

if TYPE_CHECKING:
    from mlxbert.training.objectives.task import TaskObjective


def make_objective(task: str, **options: Any) -> "TaskObjective[Any]":
    """The objective of a task; options that are not `None` go to it.

    Raises:
        ArgumentError: The task is unknown, or does not have one of the options.
    """
    if task not in TASKS:
        raise ArgumentError(f"task is {task!r:.60}, expected one of {', '.join(TASKS)}")
    given = {option: value for option, value in options.items() if value is not None}
    spec = TASKS[task]
    chosen = [variant for option, variant in spec.variants.items() if given.pop(option, False)]
    module, name = (chosen or [spec.objective])[0]
    kind = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    own = {
        name for base in kind.__mro__ for name, parameter in inspect.signature(base.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }  # fmt: skip
    for option in given:
        if option not in own:
            known = sorted({*own, *spec.variants, *(field.name for field in fields(TrainingOptions))})
            similar = difflib.get_close_matches(option, known, n=1)
            hint = f"did you mean {similar[0]}?" if similar else None
            raise ArgumentError(f"{option} is given, which {task} does not have", hint=hint)
    objective: TaskObjective[Any] = kind(**given)
    return objective
