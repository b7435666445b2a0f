"""The cores of a Linux CPU: streams for the parts of a batch, threads for the parts of a training step.

MLX computes everything but matrix products on one core. On a GPU and on a Mac there is only one stream.
"""

import contextlib
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TypeVar

from mlxbert.machine.device import BLAS, mx, on_gpu

_MAX_STREAMS = 16
T = TypeVar("T")
R = TypeVar("R")
_streams = threading.local()  # streams belong to threads
_passes = threading.local()


def cpu_streams(batch: int) -> list[mx.Stream]:
    """The streams on which the parts of a batch run in parallel; also sets the number of BLAS threads accordingly.

    Fewer than two streams mean: do not split the batch.

    MLX computes everything but matrix products on one core. On a Linux CPU each core gets its own stream, and BLAS
    one thread in each stream; a batch that cannot be split leaves all cores to BLAS.
    """
    if on_gpu() or sys.platform != "linux" or mx.default_stream(mx.cpu) in _stream_per_core():
        return []  # in the last case, this thread already computes a part of a training step
    cores = _cores()
    count = min(cores, batch)
    if BLAS.set_threads is not None:
        BLAS.set_threads(1 if count > 1 else cores)
    elif BLAS.name != "reference":  # threads that we cannot limit would compete for the cores
        return []
    return _stream_per_core()[:count]


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Within it, this thread's forward passes on a Linux CPU are evaluated eagerly, on all cores.

    Like torch's `inference_mode`: nothing can be differentiated or compiled. Outside, a pass is an ordinary MLX graph.
    """
    outside = inferring(), evaluating()
    _passes.inferring, _passes.evaluating = not on_gpu() and sys.platform == "linux", True
    try:
        yield
    finally:
        _passes.inferring, _passes.evaluating = outside


def inferring() -> bool:
    """Whether this thread's passes are evaluated eagerly, see `inference`."""
    return getattr(_passes, "inferring", False)


def evaluating() -> bool:
    """Whether this thread is within `inference`, on any device."""
    return getattr(_passes, "evaluating", False)


Stage = mx.array | Callable[[], None]


@contextlib.contextmanager
def stages(*, filled: bool = False) -> Iterator[list[Stage]]:
    """Collects, in order, the arrays that this thread's passes give to `staged`, to be evaluated after the passes.

    When about a hundred operations wait in all streams together, MLX blocks a thread that adds another one until their
    number has fallen: the thread may still wait when its own stream has nothing left to compute, a tenth of the time
    with two threads. A training step that is evaluated in these stages never reaches that number.

    Args:
        filled: Whether the stages may include functions, which compute what MLX is slow at and write the results into
            arrays of the graph: all of these arrays take memory at once.
    """
    collected: list[Stage] = []
    with _collecting(None if on_gpu() else (collected, filled)):
        yield collected


def unstaged() -> AbstractContextManager[None]:
    """Within it, no stages are collected."""
    return _collecting(None)


def unfilled() -> AbstractContextManager[None]:
    """Within it, no functions are collected: where nothing needs gradients, MLX frees each array after its last use."""
    outside = getattr(_passes, "stages", None)
    return _collecting(None if outside is None else (outside[0], False))


@contextlib.contextmanager
def _collecting(target: tuple[list[Stage], bool] | None) -> Iterator[None]:
    """Within it, `staged` and `fill` append to the target's list; its flag says whether functions are allowed."""
    outside, _passes.stages = getattr(_passes, "stages", None), target
    try:
        yield
    finally:
        _passes.stages = outside


def staged(x: mx.array) -> mx.array:
    """Returns `x`; where stages are collected, `x` becomes one: it is evaluated before the operations that follow."""
    if (collected := getattr(_passes, "stages", None)) is not None:
        collected[0].append(x)
    return x


def fills() -> bool:
    """Whether `fill` may be called."""
    collected = getattr(_passes, "stages", None)
    return collected is not None and collected[1]


def fill(function: Callable[[], None]) -> None:
    """Has a function called before the later operations of this pass are evaluated."""
    _passes.stages[0].append(function)


def training_workers() -> list[ThreadPoolExecutor]:
    """The threads that compute the parts of a training batch in parallel; empty where the calling thread does it all.

    Each thread has its own stream. A stream accepts few operations beyond the running one, so a single thread that
    feeds several streams would keep only one of them busy.

    Call it before every update, since an evaluation in between changes the number of BLAS threads (see `cpu_streams`).
    The number of workers is always the same, as the last digits of gradient sums depend on it.
    """
    if on_gpu() or sys.platform != "linux":
        return []
    return [_worker(number) for number, _ in enumerate(cpu_streams(_cores()))]


def in_parallel(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Runs the jobs of a training step on `training_workers`, or in turn where there are none; results in order.

    Jobs must take evaluated arrays and evaluate the arrays that they return: a thread cannot evaluate the lazy arrays
    of another thread.
    """
    workers = training_workers()
    if not workers:
        return [job() for job in jobs]
    futures = [workers[number % len(workers)].submit(job) for number, job in enumerate(jobs)]
    return [future.result() for future in futures]


def as_cores_get_free(jobs: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Like `in_parallel`, but a core that is done takes the next job; yields the results in order.

    To bound memory, at most half as many results as there are cores wait for an earlier result.
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

    for worker in workers:
        worker.submit(work)
    try:
        while futures:
            yield futures.popleft().result()
            room.release()
    finally:
        queue.clear()
        room.release(len(workers))


def _fulfil(job: Callable[[], T], result: "Future[T]") -> None:
    """Runs a job and passes its result or exception on; a function, so that no local name keeps the result alive."""
    try:
        result.set_result(job())
    except BaseException as problem:
        result.set_exception(problem)


def cores_at_hand() -> int:
    """The number of parts that `over_cores` computes at a time on this thread: 1 within a part of a batch."""
    return max(len(training_workers()), 1)


def over_cores(function: Callable[[list[T]], list[R]], parts: list[T]) -> list[R]:
    """Maps a function over parts on all cores, so that one long text keeps all of them busy; results in order.

    Within a part of a batch, one core takes all parts. For arrays, see `in_parallel`. BLAS gets all threads back.
    """
    count = min(cores_at_hand(), len(parts))
    shares = in_parallel([functools.partial(function, parts[number::count]) for number in range(count)])
    cpu_streams(1)
    return [shares[number % count][number // count] for number in range(len(parts))]


@functools.cache
def _worker(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, f"mlxbert-core-{number}", initializer=_own_stream)


def _own_stream() -> None:
    """Gives the calling thread a single stream for all its computations."""
    _streams.streams = [mx.new_stream(mx.cpu)]
    mx.set_default_device(mx.cpu)
    mx.set_default_stream(_streams.streams[0])


def _cores() -> int:
    return min(len(os.sched_getaffinity(0)), _MAX_STREAMS)  # type: ignore[attr-defined, unused-ignore]


def _stream_per_core() -> list[mx.Stream]:
    """The streams of this thread, on a Linux CPU."""
    if not hasattr(_streams, "streams"):
        _streams.streams = [mx.new_stream(mx.cpu) for _ in range(_cores())]
    streams: list[mx.Stream] = _streams.streams
    return streams
