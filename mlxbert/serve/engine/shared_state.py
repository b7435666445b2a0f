"""What the threads of an engine share: what is asked for, how far it is, and what has been done."""

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
from mlxbert.serve.engine.request_queue import Answered, AnyTask, Key, QueuedItem, Request


@dataclass
class EngineCounts:
    """What an engine has done so far.

    Attributes:
        requests: Requests that were taken.
        refused: Requests that found the queue full.
        abandoned: Requests that their callers have given up.
        failed: Requests that ended with an error which is not theirs.
        texts: Texts that were computed.
        tokens: Their tokens.
        truncated: How many of them were truncated.
        batches: Forward passes, or several for a long text.
        busy: Seconds of computing.
        sizes: How many batches had up to 1, 2, 4, 8 and more texts, by the power of two.
    """

    requests: int = 0
    refused: int = 0
    abandoned: int = 0
    failed: int = 0
    texts: int = 0
    tokens: int = 0
    truncated: int = 0
    batches: int = 0
    busy: float = 0.0
    sizes: Counter[int] = field(default_factory=Counter)


@dataclass(eq=False)
class EngineState:
    """What the threads of an engine share; everything is read and written under the conditions' lock.

    Whoever is idle prepares a request: the thread of the models, which then computes it without waiting for another
    one, or, while that one computes, the thread for tokens.
    """

    changed: threading.Condition = field(default_factory=threading.Condition)  # for the thread of the models
    tokens: threading.Condition = field(init=False)  # for the other one
    computing: bool = False
    arriving: deque[Request] = field(default_factory=deque)  # to be prepared, in turn
    opening: deque[Request] = field(default_factory=deque)  # wait for their model or their task
    ready: list[QueuedItem] = field(default_factory=list)
    requests: set[Request] = field(default_factory=set)  # that are not over, wherever they are
    calls: deque[tuple[Future[Any], str | None, Callable[..., Any]]] = field(default_factory=deque)
    tasks: OrderedDict[Key, AnyTask] = field(default_factory=OrderedDict)
    gated: set[Request] = field(default_factory=set)  # wait until there is room for their results
    preparing: Key | None = None  # of whose items some are being prepared just now
    waiting: int = 0  # items that are taken, and not computed
    counts: EngineCounts = field(default_factory=EngineCounts)
    completions: list[Callable[[], None]] = field(default_factory=list)  # of futures, once the lock is free
    closed: bool = False
    ended: bool = False  # the thread of the models has

    def __post_init__(self) -> None:
        self.tokens = threading.Condition(self.changed._lock)  # type: ignore[attr-defined]

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the lock. Futures that end meanwhile are completed afterwards: their callbacks may do anything."""
        with self.changed:
            yield
            ended, self.completions = self.completions, []
        for complete in ended:
            with suppress(InvalidStateError):  # cancelled just now
                complete()

    def arrive(self, request: Request) -> None:
        """Puts a request into the queue, and wakes the thread that prepares it."""
        self.arriving.append(request)
        (self.tokens if self.computing else self.changed).notify_all()

    def admit(self, request: Request) -> bool:
        """Takes the memory that a request may need, under the lock; says whether there is room, or waits for it.

        A request that has to wait arrives again when there is room.
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
        """Takes the result of one item."""
        if not request.unfinished:  # cancelled, or failed
            return
        request.results[number] = result
        request.unfinished -= 1
        self.waiting -= 1
        if not request.unfinished:
            self.requests.discard(request)
            if request.claim is not None and request.budget is not None:
                request.budget.room.shrink(request.claim, request.size)
            self.completions.append(partial(request.future.set_result, request.answered()))

    def fail(self, request: Request, problem: BaseException) -> None:
        """Ends a request with an error, under the lock."""
        if request.over:  # answered, failed, or cancelled: then `forget` follows
            return
        self.requests.discard(request)
        self.gated.discard(request)
        self.ready = [entry for entry in self.ready if entry.request is not request]
        self.waiting -= request.unfinished
        self.counts.failed += not isinstance(problem, ArgumentError | InputError | MissingHeadError)
        request.unfinished = 0
        self.completions.append(partial(request.future.set_exception, problem))

    def fail_all(self, problem: MlxbertError) -> None:
        """Ends everything that is not over with an error, under the lock; nothing is taken any more."""
        self.closed, self.ready = True, []
        for request in [*self.requests]:
            self.fail(request, problem)
        for future, *_ in self.calls:
            if future.set_running_or_notify_cancel():
                self.completions.append(partial(future.set_exception, problem))
        self.calls.clear()

    def forget(self, asked: "weakref.ref[Request]", future: "Future[Answered]") -> None:
        """Takes a cancelled request out of the queue."""
        request = asked()
        if request is not None and future.cancelled():
            with self.changed:
                self.ready = [entry for entry in self.ready if entry.request is not request]
                self.requests.discard(request)
                self.gated.discard(request)
                self.waiting -= request.unfinished
                request.unfinished = 0
                self.counts.abandoned += 1
