"""What all tasks share: one or many inputs, and inputs that cannot be used."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.results import Failure
from mlxbert.text.batch import WINDOW, windows

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
    """Prepares and computes a window of items at a time, in constant memory.

    Args:
        items: The inputs, as many as there are. An InputError among them, from whoever reads the inputs, fails like an
            input that cannot be used: it keeps its place, so that batches do not depend on what could be read.
        prepare: From an input to what is computed; raises InputError for one that cannot be used.
        compute: From prepared inputs to as many results.
        on_error: `raise` (an error that says which input it is, where there are several), or `return` a Failure in the
            result's place.
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
    for prepared in _ahead(items, prepare):
        alone = index == 0 and len(prepared) == 1
        if on_error == "raise":  # nothing behind the first bad input will be asked for
            bad = next((place for place, job in enumerate(prepared) if isinstance(job, InputError)), len(prepared) - 1)
            prepared = prepared[: bad + 1]
        results = iter(compute([job for job in prepared if not isinstance(job, InputError)]))
        for place, job in enumerate(prepared, index):
            if not isinstance(job, InputError):
                yield next(results)
            elif on_error == "raise":
                raise job if alone else InputError(f"input {place}: {job.message}", hint=job.hint)
            else:
                yield Failure(place, job)
        index += len(prepared)


def _ahead(items: Iterable[Item | InputError], prepare: Callable[[Item], Job]) -> Iterator[list[Job | InputError]]:
    """Windows of prepared items, each prepared on another thread while the one before is computed.

    The items themselves are taken on this thread: whoever made the iterable may have reasons to stay on one.
    """

    def prepare_all(window: list[Item | InputError]) -> list[Job | InputError]:
        return [_prepared(item, prepare) for item in window]

    source = windows(items)
    first = next(source, [])
    if len(first) < WINDOW:  # all there is: no need of a thread
        yield from filter(None, [prepare_all(first)])
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, "mlxbert-tokenizing") as thread:
        waiting = thread.submit(prepare_all, first)
        while True:
            try:
                window = next(source, None)
            except Exception:  # the source failed: what it gave before is not lost
                yield waiting.result()
                raise
            following = None if window is None else thread.submit(prepare_all, window)
            yield waiting.result()
            if following is None:
                return
            waiting = following


def _prepared(item: Item | InputError, prepare: Callable[[Item], Job]) -> Job | InputError:
    if isinstance(item, InputError):
        return item
    try:
        return prepare(item)
    except InputError as problem:
        return problem
