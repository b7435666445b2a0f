"""The cores of a Linux CPU: streams for the parts of a batch, threads for the parts of a training step.

MLX computes everything but matrix products on one core.
"""

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar

from mlxbert.machine.device import BLAS, clear_when_thread_ends, mx
from mlxbert.nn.backend import Stage

_MAX_STREAMS = 16
_limit = _MAX_STREAMS
T = TypeVar("T")
R = TypeVar("R")
_streams = threading.local()  # streams belong to threads
_passes = threading.local()


def cpu_streams(batch: int) -> list[mx.Stream]:
    """Returns the streams on which the parts of a batch run in parallel, and sets the number of BLAS threads to match.

    Each core gets its own stream, and BLAS gets one thread in each stream. With fewer than two streams, the batch is
    not to be split, and all cores are left to BLAS.
    """
    if mx.default_stream(mx.cpu) in _stream_per_core():
        return []  # this thread already computes a part of a training step
    cores = _cores()
    count = min(cores, batch)
    if BLAS.set_threads is not None:
        BLAS.set_threads(1 if count > 1 else cores)
    elif BLAS.name != "reference":  # threads that we cannot limit would compete for the cores
        return []
    return _stream_per_core()[:count]


@contextlib.contextmanager
def stages(*, filled: bool = False) -> Iterator[list[Stage]]:
    """Computes `Backend.stages`: collects, in order, the arrays that this thread's passes give to `staged`.

    MLX blocks a thread that adds an operation when about a hundred operations are waiting in all streams together. The
    thread may then wait although its own stream has nothing left to compute; with two threads, such waits take a tenth
    of the time. A training step that is evaluated in stages never reaches that number.
    If `filled`, functions compute what MLX is slow at, and the memory of all their arrays is in use at the same time.
    """
    collected: list[Stage] = []
    with _collecting((collected, filled)):
        yield collected


def unstaged() -> AbstractContextManager[None]:
    """Stops collecting stages within the `with` block."""
    return _collecting(None)


def unfilled() -> AbstractContextManager[None]:
    """Stops collecting functions within the `with` block; arrays are still collected (see `stages`).

    For passes without gradients: functions would keep all their arrays in memory, whereas MLX frees each array after
    its last use.
    """
    outside = getattr(_passes, "stages", None)
    return _collecting(None if outside is None else (outside[0], False))


@contextlib.contextmanager
def _collecting(target: tuple[list[Stage], bool] | None) -> Iterator[None]:
    """Makes `staged` and, if it is allowed, `fill` append to a list within the `with` block."""
    outside, _passes.stages = getattr(_passes, "stages", None), target
    try:
        yield
    finally:
        _passes.stages = outside


def staged(x: mx.array) -> mx.array:
    """Returns `x`. Within `stages`, also makes it a stage, which is evaluated before the operations that follow."""
    if (collected := getattr(_passes, "stages", None)) is not None:
        collected[0].append(x)
    return x


def fills() -> bool:
    """Whether this thread collects functions as stages, so that `fill` may be called (see `stages`)."""
    collected = getattr(_passes, "stages", None)
    return collected is not None and collected[1]


def fill(function: Callable[[], None]) -> None:
    """Makes a function a stage, which runs before the later operations of this pass are evaluated (see `stages`)."""
    _passes.stages[0].append(function)


def training_workers() -> list[ThreadPoolExecutor]:
    """The threads that compute the parts of a training batch in parallel; empty if the calling thread does it all.

    Each thread has its own stream. A stream accepts few operations beyond the running one, so a single thread could
    keep only one of several streams busy.

    Call this function before every update, because an evaluation in between changes the number of BLAS threads (see
    `cpu_streams`). The number of workers is always the same, because the last digits of gradient sums depend on it.
    """
    return [_worker(number) for number, _ in enumerate(cpu_streams(_cores()))]


def in_parallel(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Runs the jobs of a training step on `training_workers`, or one by one; returns the results in order.

    Jobs must take evaluated arrays and evaluate the arrays that they return: a thread cannot evaluate the lazy arrays
    of another thread.
    """
    workers = training_workers()
    if not workers:
        return [job() for job in jobs]
    futures = [workers[number % len(workers)].submit(job) for number, job in enumerate(jobs)]
    return [future.result() for future in futures]


def as_cores_get_free(jobs: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Like `in_parallel`, but each core takes the next job as soon as it is free; yields the results in order.

    To bound memory, jobs do not run far ahead of the results that have been yielded: at most by about one and a half
    times the number of cores.
    """
    workers = training_workers()
    if not workers:
        yield from (job() for job in jobs)
        return
    futures = deque(Future[T]() for _ in jobs)
    queue = deque(zip(jobs, futures, strict=True))
    room = threading.Semaphore(len(workers) + (len(workers) + 1) // 2)

    def work() -> None:
        with contextlib.suppress(IndexError):  # the queue is empty
            while room.acquire():
                _fulfil(*queue.popleft())

    try:
        for worker in workers:
            worker.submit(work)
        while futures:
            yield futures.popleft().result()
            room.release()
    finally:  # also after an interrupt in `submit`: the interpreter waits for its threads before it ends
        queue.clear()
        room.release(len(workers))


def _fulfil(job: Callable[[], T], result: "Future[T]") -> None:
    """Runs a job, and stores its result or exception in `result`.

    This is a separate function, so that no local name in the loop of a worker keeps the result alive.
    """
    try:
        result.set_result(job())
    except BaseException as problem:
        result.set_exception(problem)


def cores_at_hand() -> int:
    """The number of cores that `over_cores` uses; 1 on a thread that itself computes a part of a batch."""
    return max(len(training_workers()), 1)


def over_cores(function: Callable[[list[T]], list[R]], parts: list[T]) -> list[R]:
    """Distributes parts, for example of a long text, over all cores; returns their results in the order of the parts.

    `function` takes a list of parts and returns the list of their results.

    On a thread that computes a part of a batch, one core computes everything. The rules for arrays in `in_parallel`
    apply. Afterwards, BLAS has all threads again.
    """
    count = min(cores_at_hand(), len(parts))
    shares = in_parallel([functools.partial(function, parts[number::count]) for number in range(count)])
    cpu_streams(1)
    return [shares[number % count][number // count] for number in range(len(parts))]


@functools.cache
def _worker(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, f"mlxbert-core-{number}", initializer=_own_stream)


def is_worker() -> bool:
    """Whether this thread is one of `training_workers`, next to which others compute."""
    return getattr(_passes, "is_worker", False)


def _own_stream() -> None:
    """Gives the calling thread a single stream for all its computations."""
    _passes.is_worker = True
    clear_when_thread_ends()
    _streams.streams = [mx.new_stream(mx.cpu)]
    mx.set_default_device(mx.cpu)
    mx.set_default_stream(_streams.streams[0])


def limit_cores(count: int) -> None:
    """Makes this process compute on at most `count` cores, for machines that several processes share.

    Call this function before the first pass, which makes threads and streams.
    """
    global _limit
    _limit = max(1, min(count, _MAX_STREAMS))


def _cores() -> int:
    return min(len(os.sched_getaffinity(0)), _limit)  # type: ignore[attr-defined, unused-ignore]


def _stream_per_core() -> list[mx.Stream]:
    if not hasattr(_streams, "streams"):
        _streams.streams = [mx.new_stream(mx.cpu) for _ in range(_cores())]
    streams: list[mx.Stream] = _streams.streams
    return streams
