"""The state that the threads of an engine share: requests, their progress, and counts."""

import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mlxbert.errors import ArgumentError, InputError, MissingHeadError, MlxbertError
from mlxbert.results.result import Failure
from mlxbert.serve.engine.next_batch import Answered, AnyTask, Key, QueuedItem, Request
from mlxbert.tasks.task import NotFiniteError


@dataclass
class EngineCounts:
    """Counts of the work of an engine."""

    requests: int = 0  # the number of accepted requests
    refused: int = 0  # the number of requests refused because the queue was full
    abandoned: int = 0  # the number of requests cancelled by their callers
    failed: int = 0  # the number of requests that failed with an error that their input did not cause
    texts: int = 0  # the number of computed texts
    tokens: int = 0  # the number of computed tokens
    truncated: int = 0  # the number of truncated texts
    batches: int = 0  # the number of computed batches; a long text counts as one batch even if it takes several passes
    busy: float = 0.0  # the seconds spent on computing
    # The number of batches by size: the key n counts batches of up to 2**n texts.
    sizes: Counter[int] = field(default_factory=Counter)


@dataclass(eq=False)
class EngineState:
    """The state that the threads of an engine share. A single lock, which its two conditions use, protects it.

    Whichever thread is idle tokenizes a request: the model thread, which can then compute the request without waiting
    for another thread, or the tokenizing thread while the model thread computes.
    """

    changed: threading.Condition = field(default_factory=threading.Condition)  # wakes the model thread
    tokens: threading.Condition = field(init=False)  # wakes the tokenizing thread
    computing: bool = False
    arriving: deque[Request] = field(default_factory=deque)  # to be tokenized, in turn
    opening: deque[Request] = field(default_factory=deque)  # waiting for their model or their task
    ready: list[QueuedItem] = field(default_factory=list)
    requests: set[Request] = field(default_factory=set)  # all requests that are not over
    calls: deque[tuple[Future[Any], str | None, Callable[..., Any]]] = field(default_factory=deque)
    tasks: OrderedDict[Key, AnyTask] = field(default_factory=OrderedDict)
    gated: set[Request] = field(default_factory=set)  # waiting for room for their results
    preparing: Key | None = None  # the key of the request that is being tokenized
    waiting: int = 0  # accepted items that are not computed yet
    counts: EngineCounts = field(default_factory=EngineCounts)
    completions: list[Callable[[], None]] = field(default_factory=list)  # of futures, called after the lock is released
    closed: bool = False
    ended: bool = False  # whether the model thread has ended

    def __post_init__(self) -> None:
        self.tokens = threading.Condition(self.changed._lock)  # type: ignore[attr-defined]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock. Futures are completed after the lock is released, since their callbacks may do anything."""
        with self.changed:
            yield
            completions, self.completions = self.completions, []
        for complete in completions:
            with suppress(InvalidStateError):  # cancelled in the meantime
                complete()

    def arrive(self, request: Request) -> None:
        """Queues a request and wakes the thread that tokenizes it."""
        self.arriving.append(request)
        (self.tokens if self.computing else self.changed).notify_all()

    def admit(self, request: Request) -> bool:
        """Claims the memory that a request may need; returns whether the request got it. The caller holds the lock.

        A request that gets no memory waits in a queue until there is room.
        """
        if request.claim is None and request.budget is not None:
            task = self.tasks[request.key]
            size = sum(task.most_bytes(item) for item in request.items)
            request.claim = request.budget.claim(size, partial(self._enter, request))
            if not request.claim.granted:
                self.gated.add(request)
        return request not in self.gated

    def _enter(self, request: Request) -> None:
        with self.changed:
            self.gated.discard(request)
            if not request.over:
                self.arrive(request)

    def settle(self, request: Request, number: int, result: Any) -> None:
        """Stores the result of an item; the last result completes the request."""
        if not request.unfinished:  # cancelled, or failed
            return
        request.results[number] = result
        request.unfinished -= 1
        self.waiting -= 1
        if not request.unfinished:
            self.requests.discard(request)
            errors = (one.error for one in request.results if isinstance(one, Failure))
            self.counts.failed += any(isinstance(error, NotFiniteError) for error in errors)
            if request.claim is not None and request.budget is not None:
                request.budget.room.shrink(request.claim, request.size)
            self.completions.append(partial(request.future.set_result, request.answered()))

    def fail(self, request: Request, problem: BaseException) -> None:
        """Fails a request. The caller holds the lock."""
        if request.over:  # if it was cancelled, `forget` follows
            return
        self.requests.discard(request)
        self.gated.discard(request)
        self.ready = [entry for entry in self.ready if entry.request is not request]
        self.waiting -= request.unfinished
        self.counts.failed += not isinstance(problem, ArgumentError | InputError | MissingHeadError)
        request.unfinished = 0
        self.completions.append(partial(request.future.set_exception, problem))

    def fail_all(self, problem: MlxbertError) -> None:
        """Closes the state, and fails all requests and calls that are not over. The caller holds the lock."""
        self.closed, self.ready = True, []
        for request in [*self.requests]:
            self.fail(request, problem)
        for future, *_ in self.calls:
            if future.set_running_or_notify_cancel():
                self.completions.append(partial(future.set_exception, problem))
        self.calls.clear()

    def forget(self, reference: "weakref.ref[Request]", future: "Future[Answered[Any]]") -> None:
        """Removes a cancelled request from the queue."""
        request = reference()
        if request is not None and future.cancelled():
            with self.changed:
                self.ready = [entry for entry in self.ready if entry.request is not request]
                self.requests.discard(request)
                self.gated.discard(request)
                self.waiting -= request.unfinished
                request.unfinished = 0
                self.counts.abandoned += 1
