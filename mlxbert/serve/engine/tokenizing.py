"""Tokenizes a few texts of each request in turn, on whichever thread of the engine is idle."""

from collections.abc import Sequence
from typing import Any

from mlxbert.errors import InputError, TooLargeError
from mlxbert.results.result import Failure
from mlxbert.serve.engine.engine_state import EngineState
from mlxbert.serve.engine.next_batch import AnyTask, QueuedItem, Request
from mlxbert.serve.engine.result_memory import too_large

_GROUP = 64  # items that are tokenized before it is another request's turn


def prepare_all(state: EngineState) -> None:
    """Tokenizes texts while batches are computed, until the engine ends."""
    while True:
        request = None  # otherwise this thread keeps the last task and its model in memory while it waits
        with state.changed:
            state.tokens.wait_for(lambda: (state.arriving and state.computing and not state.preparing) or state.ended)
            if state.ended:
                return
            request = next_to_prepare(state)
        if request is not None:
            prepare(state, *request)


def next_to_prepare(state: EngineState) -> tuple[Request, AnyTask] | None:
    """Returns the next request to tokenize, with its task; the caller holds the lock.

    Returns `None` if the request has to wait for its model, its task, or memory.
    """
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
    """Tokenizes a few texts of a request; after that, it is the turn of other requests."""
    try:
        jobs = [] if request.over else _next_jobs(request, task)
    except BaseException as problem:  # no error may end this thread
        jobs = [problem]
    with state.locked():
        state.preparing = None
        _queue_jobs(state, request, task, jobs)
        state.changed.notify_all()
        if state.computing and state.arriving:
            state.tokens.notify_all()


def _next_jobs(request: Request, task: AnyTask) -> list[Any]:
    """Returns the next jobs of a request, with errors in place of jobs for items that cannot be tokenized."""
    items = request.items[request.prepared : request.prepared + _GROUP]

    def job_or_error(item: Any) -> Any:
        try:
            return item if isinstance(item, InputError) else task.job(item)
        except Exception as problem:
            return problem

    with task.together([item for item in items if not isinstance(item, InputError)]):
        return [job_or_error(item) for item in items]


def _refused(request: Request, count: int, limit: int, task: AnyTask) -> TooLargeError:
    """Makes the error for a request whose first `count` items already take too much memory."""
    total = len(request.items)
    if total == 1:
        return too_large("the result", request.size, limit, task.smaller)
    what = f"the results of {f'{count:,} of ' if count < total else ''}{total:,} texts"
    return too_large(what, request.size, limit, f"ask for fewer texts at once; {task.smaller}")


def _queue_jobs(state: EngineState, request: Request, task: AnyTask, jobs: Sequence[Any]) -> None:
    """Queues jobs to be computed; if the request has more items, queues it to be tokenized again."""
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
            if request.budget is not None and request.size > request.budget.room.max_bytes:
                state.fail(request, _refused(request, number + 1, request.budget.room.max_bytes, task))
                return
            if job.truncated:
                request.truncated.append(number)
            state.ready.append(QueuedItem(request, number, task, job, tokens, size))
    request.prepared += len(jobs)
    if request.prepared < len(request.items):
        state.arrive(request)
