"""What can be trained, one file each."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mlxbert.errors import ArgumentError

if TYPE_CHECKING:
    from mlxbert.training.objective import Objective

# By the name of a task, where its objective is.
OBJECTIVES: Mapping[str, tuple[str, str]] = {
    "classify": ("classify", "Classify"),
    "multilabel": ("multilabel", "Multilabel"),
    "regress": ("regress", "Regress"),
}


def make_objective(task: str, **options: Any) -> "Objective[Any]":
    """The objective of a task; options that are not `None` go to it.

    Raises:
        ArgumentError: The task is unknown, or does not have one of the options.
    """
    if task not in OBJECTIVES:
        raise ArgumentError(f"task is {task!r:.60}, expected one of {', '.join(OBJECTIVES)}")
    module, name = OBJECTIVES[task]
    kind = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    given = {option: value for option, value in options.items() if value is not None}
    try:
        objective: Objective[Any] = kind(**given)
    except TypeError as problem:
        option = str(problem).rpartition(" ")[2].strip("'")
        raise ArgumentError(f"{option} is given, which {task} does not have") from None
    return objective
