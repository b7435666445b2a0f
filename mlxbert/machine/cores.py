"""The cores of a Linux CPU: streams for the parts of a batch, threads for the parts of a training step.

MLX computes everything but matrix products on one core; on a GPU and on a Mac all of this is one stream.
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
    """The streams that the parts of a batch run on in parallel, and the threads that BLAS then has in each.

    Fewer than two streams mean: do not split the batch.

    MLX computes everything but matrix products on one core. On a Linux CPU each core gets its own stream, and BLAS
    one thread in each; a batch that cannot be split leaves the cores to BLAS.
    """
    if on_gpu() or sys.platform != "linux" or mx.default_stream(mx.cpu) in _stream_per_core():
        return []  # the last: this is a part already, of a step of training
    cores = _cores()
    count = min(cores, batch)
    if BLAS.set_threads is not None:
        BLAS.set_threads(1 if count > 1 else cores)
    elif BLAS.name != "reference":  # threads that we cannot limit would compete for the cores
        return []
    return _stream_per_core()[:count]


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Within it, forward passes of this thread on a Linux CPU compute as they go, on all cores.

    Like torch's `inference_mode`: nothing can be differentiated or compiled. Outside, a pass is an MLX graph like any.
    """
    outside = inferring(), evaluating()
    _passes.inferring, _passes.evaluating = not on_gpu() and sys.platform == "linux", True
    try:
        yield
    finally:
        _passes.inferring, _passes.evaluating = outside


def inferring() -> bool:
    """Whether passes of this thread compute as they go, see `inference`."""
    return getattr(_passes, "inferring", False)


def evaluating() -> bool:
    """Whether this thread is within `inference`, on any device."""
    return getattr(_passes, "evaluating", False)


Stage = mx.array | Callable[[], None]


@contextlib.contextmanager
def stages(*, filled: bool = False) -> Iterator[list[Stage]]:
    """Collects, in order, what passes of this thread within it pass to `staged`, to be evaluated after them.

    MLX makes a thread wait that adds an operation while some hundred wait in all streams together, and wakes it only
    once their number has fallen: it may wait on while its own stream has nothing left to compute, a tenth of the time
    with two of them. A step of training that is evaluated in these stages never reaches that number.

    Args:
        filled: Whether they may include functions, which compute what MLX is slow at and write it into arrays that
            the graph has already: all of these take memory at once.
    """
    found: list[Stage] = []
    with _collecting(None if on_gpu() else (found, filled)):
        yield found


def unstaged() -> AbstractContextManager[None]:
    """Within it, nothing is collected."""
    return _collecting(None)


def unfilled() -> AbstractContextManager[None]:
    """Within it, no functions are collected: of what has no gradients, MLX frees each array as soon as it is used."""
    outside = getattr(_passes, "stages", None)
    return _collecting(None if outside is None else (outside[0], False))


@contextlib.contextmanager
def _collecting(into: tuple[list[Stage], bool] | None) -> Iterator[None]:
    """Within it, `staged` and `fill` collect into a list, or nothing; with it stands whether functions may be."""
    outside, _passes.stages = getattr(_passes, "stages", None), into
    try:
        yield
    finally:
        _passes.stages = outside


def staged(x: mx.array) -> mx.array:
    """`x`; where a core computes a part of a training step, it is evaluated before what comes after it."""
    if (collected := getattr(_passes, "stages", None)) is not None:
        collected[0].append(x)
    return x


def fills() -> bool:
    """Whether `fill` may be called."""
    collected = getattr(_passes, "stages", None)
    return collected is not None and collected[1]


def fill(function: Callable[[], None]) -> None:
    """Has a function called before anything is evaluated that comes after it in this pass."""
    _passes.stages[0].append(function)


def training_workers() -> list[ThreadPoolExecutor]:
    """The threads that compute the parts of a training batch in parallel; empty where the calling thread does it all.

    Each has a stream of its own. A stream accepts few operations beyond the one that it runs, so a single thread that
    hands work to several streams keeps only one of them busy.

    Call it before every update: an evaluation in between changes the threads of BLAS. See `cpu_streams`; here the
    number of workers is always the same, as sums of gradients depend on it in their last digits.
    """
    if on_gpu() or sys.platform != "linux":
        return []
    return [_worker(number) for number, _ in enumerate(cpu_streams(_cores()))]


def in_parallel(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Runs the jobs of a training step on `training_workers`, or in turn where there are none; results in order.

    Arrays that jobs take must be evaluated, and jobs evaluate what they return: a thread cannot evaluate what another
    one left lazy.
    """
    workers = training_workers()
    if not workers:
        return [job() for job in jobs]
    waiting = [workers[number % len(workers)].submit(job) for number, job in enumerate(jobs)]
    return [one.result() for one in waiting]


def as_cores_get_free(jobs: Sequence[Callable[[], T]]) -> Iterator[T]:
    """Like `in_parallel`, but a core that is done takes the next job; results in order, one after the other.

    So that they do not fill the memory, no more than half as many results as there are cores wait for an earlier one.
    """
    workers = training_workers()
    if not workers:
        yield from (job() for job in jobs)
        return
    waiting = deque(Future[T]() for _ in jobs)
    left = deque(zip(jobs, waiting, strict=True))
    room = threading.Semaphore(len(workers) + (len(workers) + 1) // 2)

    def work() -> None:
        with contextlib.suppress(IndexError):  # none is left
            while room.acquire():
                _fulfil(*left.popleft())

    for worker in workers:
        worker.submit(work)
    try:
        while waiting:
            yield waiting.popleft().result()
            room.release()
    finally:
        left.clear()
        room.release(len(workers))


def _fulfil(job: Callable[[], T], result: "Future[T]") -> None:
    """Keeps no result longer than whoever waits for it."""
    try:
        result.set_result(job())
    except BaseException as problem:
        result.set_exception(problem)


def cores_at_hand() -> int:
    """How many parts `over_cores` computes at a time here: a part of a batch has one core."""
    return max(len(training_workers()), 1)


def over_cores(function: Callable[[list[T]], list[R]], parts: list[T]) -> list[R]:
    """`function` of all parts, in their order; each core takes a share, so that one long text keeps all of them busy.

    A part of a batch has one core and takes all. Arrays as for `in_parallel`. Afterwards BLAS has all threads again.
    """
    count = min(cores_at_hand(), len(parts))
    found = in_parallel([functools.partial(function, parts[number::count]) for number in range(count)])
    cpu_streams(1)
    return [found[number % count][number // count] for number in range(len(parts))]


@functools.cache
def _worker(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, f"mlxbert-core-{number}", initializer=_own_stream)


def _own_stream() -> None:
    """Gives the calling thread one stream, on which it computes everything."""
    _streams.found = [mx.new_stream(mx.cpu)]
    mx.set_default_device(mx.cpu)
    mx.set_default_stream(_streams.found[0])


def _cores() -> int:
    return min(len(os.sched_getaffinity(0)), _MAX_STREAMS)  # type: ignore[attr-defined, unused-ignore]


def _stream_per_core() -> list[mx.Stream]:
    """The streams of this thread, on a Linux CPU."""
    if not hasattr(_streams, "found"):
        _streams.found = [mx.new_stream(mx.cpu) for _ in range(_cores())]
    found: list[mx.Stream] = _streams.found
    return found
