"""What all tasks share: one or many inputs, and inputs that cannot be used."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from mlxbert.batch import windows
from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.results import Failure

Item = TypeVar("Item")
Job = TypeVar("Job")
Result = TypeVar("Result")

ON_ERROR = ("raise", "return")


def check_on_error(on_error: str) -> None:
    """Refuses an `on_error` that is neither `raise` nor `return`."""
    if on_error not in ON_ERROR:
        raise ArgumentError(f"on_error is {on_error!r}, expected one of {', '.join(ON_ERROR)}")


def check_finite(scores: list[float]) -> list[float]:
    """Returns `scores`, or refuses them if one is no number.

    Raises:
        MlxbertError: A weight is no number, or a value left the range of the dtype.
    """
    if not all(map(math.isfinite, scores)):
        raise MlxbertError("the model computed scores that are no numbers (NaN)", hint="try --dtype float32")
    return scores


def run(
    items: Iterable[Item | InputError],
    prepare: Callable[[Item], Job],
    compute: Callable[[Sequence[Job]], Sequence[Result]],
    on_error: str,
) -> Iterator[Result | Failure]:
    """Prepares and computes a window of items at a time.

    Args:
        items: The inputs, as many as there are. An InputError among them, from whoever reads the inputs, fails like an
            input that cannot be used: it keeps its place, so that batches do not depend on what could be read.
        prepare: From an input to what is computed; raises InputError for one that cannot be used.
        compute: From prepared inputs to as many results.
        on_error: `raise`, or `return` a Failure in the result's place.
    """
    if not isinstance(items, Iterable):
        raise ArgumentError(f"inputs are {items!r:.60}, expected one or an iterable of them")
    return _run(items, prepare, compute, on_error)


def _run(
    items: Iterable[Item | InputError],
    prepare: Callable[[Item], Job],
    compute: Callable[[Sequence[Job]], Sequence[Result]],
    on_error: str,
) -> Iterator[Result | Failure]:
    index = 0
    for window in windows(items):
        jobs: list[Job] = []
        failures: dict[int, Failure] = {}
        for place, item in enumerate(window):
            try:
                if isinstance(item, InputError):
                    raise item
                jobs.append(prepare(item))
            except InputError as problem:
                if on_error == "raise":
                    raise
                failures[place] = Failure(index + place, problem)
        results = iter(compute(jobs))
        yield from (failures[place] if place in failures else next(results) for place in range(len(window)))
        index += len(window)
