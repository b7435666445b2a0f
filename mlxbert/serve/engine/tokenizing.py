"""Splits the texts of requests into tokens, a few of each in turn, on whichever thread of an engine is idle."""

from collections.abc import Sequence
from typing import Any

from mlxbert.errors import InputError, TooLargeError
from mlxbert.results.result import Failure
from mlxbert.serve.engine.answer_memory import too_large
from mlxbert.serve.engine.request_queue import AnyTask, QueuedItem, Request
from mlxbert.serve.engine.shared_state import EngineState

_PIECE = 64  # items that are prepared before those of another request


def prepare_all(state: EngineState) -> None:
    """Splits texts into tokens while a batch is computed, until the engine ends."""
    while True:
        taken = None  # or the last task, and its model, would stay while this waits
        with state.changed:
            state.tokens.wait_for(lambda: (state.arriving and state.computing and not state.preparing) or state.ended)
            if state.ended:
                return
            taken = next_to_prepare(state)
        if taken is not None:
            prepare(state, *taken)


def next_to_prepare(state: EngineState) -> tuple[Request, AnyTask] | None:
    """Takes the next request, under the lock, unless it has to wait: for its model, its task, or memory."""
    request = state.arriving.popleft()
    task = state.tasks.get(request.key)
    if task is None:
        state.opening.append(request)
        state.changed.notify_all()
        return None
    state.tasks.move_to_end(request.key)
    if not state.admit(request):
        return None
    state.preparing = request.key
    return request, task


def prepare(state: EngineState, request: Request, task: AnyTask) -> None:
    """Splits a few texts of a request into tokens; then it is the turn of other requests."""
    try:
        jobs = [] if request.over else _prepared(request, task)
    except BaseException as problem:  # whatever it is, this thread stays alive
        jobs = [problem]
    with state.locked():
        state.preparing = None
        _take(state, request, task, jobs)
        state.changed.notify_all()
        if state.computing and state.arriving:
            state.tokens.notify_all()


def _prepared(request: Request, task: AnyTask) -> list[Any]:
    """The next jobs of a request; errors stand in the place of those that cannot be prepared."""
    items = request.items[request.prepared : request.prepared + _PIECE]

    def one(item: Any) -> Any:
        try:
            return item if isinstance(item, InputError) else task.job(item)
        except Exception as problem:
            return problem

    with task.together([item for item in items if not isinstance(item, InputError)]):
        return [one(item) for item in items]


def _refused(request: Request, count: int, most: int, task: AnyTask) -> TooLargeError:
    """Why a request takes too much memory; `count` of its items are prepared."""
    found = len(request.items)
    if found == 1:
        return too_large("the result", request.size, most, task.smaller)
    what = f"the results of {f'{count:,} of ' if count < found else ''}{found:,} texts"
    return too_large(what, request.size, most, f"ask for fewer texts at once; {task.smaller}")


def _take(state: EngineState, request: Request, task: AnyTask, jobs: Sequence[Any]) -> None:
    """Puts jobs into the queue; and the request at the end of its own, if it has more items."""
    if request.over:
        return
    for number, job in enumerate(jobs, request.prepared):
        if isinstance(job, InputError):
            state.settle(request, number, Failure(number, job))
        elif isinstance(job, BaseException):
            state.fail(request, job)
            return
        else:
            tokens, size = job.tokens, task.size(request.items[number], task.units(job))
            request.tokens += tokens
            request.size += size
            if request.budget is not None and request.size > request.budget.room.most:
                state.fail(request, _refused(request, number + 1, request.budget.room.most, task))
                return
            if job.truncated:
                request.truncated.append(number)
            state.ready.append(QueuedItem(request, number, task, job, tokens, size))
    request.prepared += len(jobs)
    if request.prepared < len(request.items):
        state.arrive(request)
