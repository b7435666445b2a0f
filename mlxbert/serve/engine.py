"""An engine: models that any number of threads, or coroutines, ask at the same time.

A model belongs to one thread. The engine owns that thread, on which models are loaded and batches computed, and a
second one, on which texts are split into tokens. Whatever waits for the same model, task and options goes into common
batches, each a few tens of milliseconds of work. An item with more tokens than that is computed in several batches,
between which shorter items are let through.
"""

import asyncio
import logging
import threading
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from mlxbert.errors import ArgumentError, InputError, MissingHeadError, MlxbertError, OverloadedError
from mlxbert.folders.inspect import inspect
from mlxbert.machine.device import choose_dtype, dtype_name, use
from mlxbert.machine.faults import free_memory
from mlxbert.model import Model, load
from mlxbert.results.result import Failure
from mlxbert.serve.options import EngineOptions
from mlxbert.serve.queue import Answered, Entry, Key, Request, choose
from mlxbert.serve.tasks import AnyTask, check_task, hash_options, make_task
from mlxbert.tasks.runner import remembering
from mlxbert.text.batch import default_batch_tokens
from mlxbert.weights.source import BUILTIN, ModelRef

_LOG = logging.getLogger("mlxbert")
_T = TypeVar("_T")
_USUAL = EngineOptions()
_TASKS = 256  # with their options: those least recently used are made again
_FIRST, _SMALLEST = 512, 256  # tokens of a batch: of the first one, and however slow a model is
_PIECE = 64  # items that are prepared before those of another request
WORK, PATIENCE = 0.15, 0.25  # seconds of a batch; that a request is overtaken by shorter ones


@dataclass
class Counts:
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


@dataclass
class _Loaded:
    """A model in memory.

    Attributes:
        model: The model.
        size: Bytes of its weights; 0 where nobody asks.
        used: When it was last asked, in seconds of the monotonic clock.
        budget: Tokens of a batch that takes about `WORK`; 0 as long as nothing is known.
    """

    model: Model
    size: int
    used: float = 0.0
    budget: float = 0.0


@dataclass(eq=False)
class _State:
    """What the threads of an engine share; everything is read and written under the conditions' lock.

    Whoever is idle prepares a request: the thread of the models, which then computes it without waiting for another
    one, or, while that one computes, the thread for tokens.
    """

    changed: threading.Condition = field(default_factory=threading.Condition)  # for the thread of the models
    tokens: threading.Condition = field(init=False)  # for the other one
    computing: bool = False
    arriving: deque[Request] = field(default_factory=deque)  # to be prepared, in turn
    opening: deque[Request] = field(default_factory=deque)  # wait for their model or their task
    ready: list[Entry] = field(default_factory=list)
    requests: set[Request] = field(default_factory=set)  # that are not over, wherever they are
    calls: deque[tuple[Future[Any], str | None, Callable[..., Any]]] = field(default_factory=deque)
    tasks: OrderedDict[Key, AnyTask] = field(default_factory=OrderedDict)
    preparing: Key | None = None  # of whose items some are being prepared just now
    waiting: int = 0  # items that are taken, and not computed
    counts: Counts = field(default_factory=Counts)
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


class Engine:
    """Models that any number of threads and coroutines may ask at the same time.

    Example:
        >>> with mlxbert.Engine(["builtin"]) as engine:
        ...     asked = engine.submit("builtin", "embed", ["A man eats.", "It rains."])
        ...     asked.result().results[0].embedding  # (384,)

    Args:
        models: Names or references of the models, by the names that callers give them; a list of names stands for
            itself. They are loaded when they are first asked for.
        options: How much is done at a time, and kept in memory.

    Raises:
        ArgumentError: There are no models.
    """

    def __init__(
        self,
        models: Mapping[str, str | ModelRef] | Iterable[str] = (BUILTIN,),
        options: EngineOptions = _USUAL,
    ) -> None:
        given = (models,) if isinstance(models, str) else models
        named = given if isinstance(given, Mapping) else {name: name for name in given}
        self.models = {name: ref if isinstance(ref, ModelRef) else ModelRef(ref) for name, ref in named.items()}
        if not self.models:
            raise ArgumentError("there are no models, expected at least one")
        self.options, self._state = options, _State()
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()
        threads = (
            threading.Thread(target=_Owner(self).run, name="mlxbert-engine", daemon=True),
            threading.Thread(target=_prepare_all, args=(self._state,), name="mlxbert-engine-tokens", daemon=True),
        )
        # A thread that has compiled functions of MLX must end before the interpreter does.
        self._stop = weakref.finalize(self, _stop, self._state, threads)
        for thread in threads:
            thread.start()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, drain: bool = True) -> None:
        """Ends the engine, once all that was taken is computed; without `drain`, what was not is an error.

        Afterwards nothing is taken any more.
        """
        if not drain:
            with self._state.locked():
                _fail_all(self._state, MlxbertError("the engine is closed"))
        self._stop()

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self._state.closed

    @property
    def counts(self) -> Counts:
        """What has been done so far."""
        return self._state.counts

    @property
    def loaded(self) -> Mapping[str, int]:
        """The models in memory, the least recently used first, and the bytes of their weights, if these are limited."""
        return {name: one.size for name, one in [*self._loaded.items()]}

    @property
    def waiting(self) -> int:
        """How many texts wait."""
        return self._state.waiting

    def submit(self, model: str, task: str, items: Sequence[Any], **options: Any) -> "Future[Answered]":
        """Asks for the results of items, from any thread.

        Args:
            model: The name of one of the models.
            task: The name of a task, see `mlxbert.serve.tasks.TASKS`, where the items are described, too.
            items: Any number of items.
            options: The options of the task, as its function has them; not `batch_tokens`, `usage` and `on_error`.

        Returns:
            A future. Its errors are those of the task's function; an item that cannot be used is a `Failure` among the
            results. Cancelled before it is done, it is taken out of the queue.

        Raises:
            ArgumentError: There is no such model or task, or the options are not plain values or too large.
            OverloadedError: Too many texts wait.
        """
        self.check_model(model)
        check_task(task)
        if isinstance(items, str):
            raise ArgumentError(f"items is {items!r:.60}, expected a list of texts")
        if len(items) > self.options.max_queue:
            raise ArgumentError(f"{len(items):,} texts, expected at most {self.options.max_queue:,} at once")
        request = Request((model, task, hash_options(options)), options, items, time.monotonic())
        if not items:
            request.future.set_result(request.answered())
            return request.future
        # Nothing that stays refers to the request, which has the future: what is answered is freed at once.
        request.future.add_done_callback(partial(_forget, self._state, weakref.ref(request)))
        state = self._state
        with state.changed:
            self._check_open()
            if state.waiting + len(items) > self.options.max_queue:
                state.counts.refused += 1
                raise OverloadedError(
                    f"{state.waiting:,} texts wait and {len(items):,} are to come, expected at most "
                    f"{self.options.max_queue:,} together",
                    hint="ask again in a moment",
                )
            state.waiting += len(items)
            state.requests.add(request)
            state.counts.requests += 1
            state.arrive(request)
        return request.future

    async def ask(self, model: str, task: str, items: Sequence[Any], **options: Any) -> Answered:
        """The results of items, for a coroutine; see `submit`. A cancelled coroutine is taken out of the queue."""
        return await asyncio.wrap_future(self.submit(model, task, items, **options))

    def call(self, model: str | None, work: Callable[..., _T]) -> "Future[_T]":
        """Runs a function on the thread of the models, between two batches.

        Args:
            model: The name of the model that it takes; `None` if it takes none.
            work: The function.

        Raises:
            ArgumentError: There is no such model.
            OverloadedError: Too many calls wait.
        """
        if model is not None:
            self.check_model(model)
        future: Future[_T] = Future()
        with self._state.changed:
            self._check_open()
            if len(self._state.calls) >= self.options.max_queue:
                raise OverloadedError("too many calls wait", hint="ask again in a moment")
            self._state.calls.append((future, model, work))
            self._state.changed.notify_all()
        return future

    def check_model(self, name: str) -> None:
        """Refuses a name that is not one of the models'.

        Raises:
            ArgumentError: It is not.
        """
        if name not in self.models:
            raise ArgumentError(f"model is {name!r:.100}, expected one of {', '.join(self.models)}")

    def _check_open(self) -> None:
        if self._state.closed:
            raise MlxbertError("the engine is closed")


def _forget(state: _State, asked: "weakref.ref[Request]", future: "Future[Answered]") -> None:
    """Takes a cancelled request out of the queue."""
    request = asked()
    if request is not None and future.cancelled():
        with state.changed:
            state.ready = [entry for entry in state.ready if entry.request is not request]
            state.requests.discard(request)
            state.waiting -= request.unfinished
            request.unfinished = 0
            state.counts.abandoned += 1


def _stop(state: _State, threads: Sequence[threading.Thread]) -> None:
    with state.changed:
        state.closed = True
        state.changed.notify_all()
    if threading.current_thread() not in threads:  # they cannot wait for themselves, nor for each other
        for thread in threads:
            thread.join()


def _prepare_all(state: _State) -> None:
    """Splits texts into tokens while a batch is computed, until the engine ends."""
    while True:
        taken = None  # or the last task, and its model, would stay while this waits
        with state.changed:
            state.tokens.wait_for(lambda: (state.arriving and state.computing and not state.preparing) or state.ended)
            if state.ended:
                return
            taken = _next_to_prepare(state)
        if taken is not None:
            _prepare(state, *taken)


def _next_to_prepare(state: _State) -> tuple[Request, AnyTask] | None:
    """Takes the next request, under the lock; one whose model or task is not there is put aside, to open these."""
    request = state.arriving.popleft()
    task = state.tasks.get(request.key)
    if task is None:
        state.opening.append(request)
        state.changed.notify_all()
        return None
    state.tasks.move_to_end(request.key)
    state.preparing = request.key
    return request, task


def _prepare(state: _State, request: Request, task: AnyTask) -> None:
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
            return item if isinstance(item, InputError) else task.prepare(item)
        except Exception as problem:
            return problem

    with task.together([item for item in items if not isinstance(item, InputError)]):
        return [one(item) for item in items]


def _take(state: _State, request: Request, task: AnyTask, jobs: Sequence[Any]) -> None:
    """Puts jobs into the queue; and the request at the end of its own, if it has more items."""
    if request.over:
        return
    for number, job in enumerate(jobs, request.prepared):
        if isinstance(job, InputError):
            _settle(state, request, number, Failure(number, job))
        elif isinstance(job, BaseException):
            _fail(state, request, job)
            return
        else:
            tokens = job.tokens
            request.tokens += tokens
            if job.truncated:
                request.truncated.append(number)
            state.ready.append(Entry(request, number, task, job, tokens))
    request.prepared += len(jobs)
    if request.prepared < len(request.items):
        state.arrive(request)


def _settle(state: _State, request: Request, number: int, result: Any) -> None:
    """Takes the result of one item."""
    if not request.unfinished:  # cancelled, or failed
        return
    request.results[number] = result
    request.unfinished -= 1
    state.waiting -= 1
    if not request.unfinished:
        state.requests.discard(request)
        state.completions.append(partial(request.future.set_result, request.answered()))


def _fail(state: _State, request: Request, problem: BaseException) -> None:
    """Ends a request with an error, under the lock."""
    if not request.unfinished:  # answered, cancelled, or failed
        return
    state.requests.discard(request)
    state.ready = [entry for entry in state.ready if entry.request is not request]
    state.waiting -= request.unfinished
    state.counts.failed += not isinstance(problem, ArgumentError | InputError | MissingHeadError)
    request.unfinished = 0
    state.completions.append(partial(request.future.set_exception, problem))


def _fail_all(state: _State, problem: MlxbertError) -> None:
    """Ends everything that is not over with an error, under the lock; nothing is taken any more."""
    state.closed, state.ready = True, []
    for request in [*state.requests]:
        _fail(state, request, problem)
    for future, *_ in state.calls:
        if future.set_running_or_notify_cancel():
            state.completions.append(partial(future.set_exception, problem))
    state.calls.clear()


class _Owner:
    """The thread that loads models and computes batches."""

    def __init__(self, engine: Engine) -> None:
        # Not the engine itself, which ends when nobody else has it.
        self._refs, self._options, self._state = engine.models, engine.options, engine._state
        self._loaded = engine._loaded
        self._nested = 0.0  # seconds of computing, for what is computed between the batches of a long item

    def run(self) -> None:
        """Works until the engine is closed and everything is computed."""
        state = self._state
        try:
            while self._wait():
                self._step()
        finally:
            with state.locked():
                state.ended = True
                _fail_all(state, MlxbertError("the engine has ended"))  # if the thread itself fails
                state.changed.notify_all()
                state.tokens.notify_all()

    def _wait(self) -> bool:
        """Waits for something to do; unloads models meanwhile. Says whether there will be more."""
        state = self._state

        def pending() -> bool:
            return bool(state.ready or state.opening or state.calls)

        def preparable() -> bool:
            return bool(state.arriving and not state.preparing)

        def done() -> bool:
            return state.closed and not (state.arriving or state.preparing)

        while True:
            taken = None
            with state.changed:
                if not state.changed.wait_for(lambda: pending() or preparable() or done(), self._until_idle()):
                    idle = True
                elif pending() or not preparable():
                    return pending()
                else:
                    idle, taken = False, _next_to_prepare(state)
            if idle:
                self._unload_idle()
            if taken is not None:
                _prepare(state, *taken)

    def _step(self) -> None:
        """Computes one batch, or opens a model, or makes a call; in turn where all of these wait."""
        state = self._state
        with state.changed:
            call = state.calls.popleft() if state.calls else None
            request = state.opening.popleft() if state.opening else None
        if call is not None:
            self._call(*call)
        if request is not None:
            self._open(request)
        self._compute_next(long=True)

    def _call(self, future: "Future[Any]", name: str | None, work: Callable[..., Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work() if name is None else work(self._model(name).model))
        except BaseException as problem:
            future.set_exception(problem)

    def _open(self, request: Request) -> None:
        """Loads the model of a request and makes its task; then it is prepared."""
        state, (name, task, _) = self._state, request.key
        try:
            made = None if request.over else make_task(task, self._model(name).model, request.options)
        except BaseException as problem:
            with state.locked():
                _fail(state, request, problem)
            return
        with state.changed:
            if made is not None:
                state.tasks[request.key] = made
                while len(state.tasks) > _TASKS:
                    state.tasks.popitem(last=False)
                state.arriving.appendleft(request)

    def _compute_next(self, *, long: bool) -> None:
        """Computes the next batch, if there is one; an item with more tokens than a batch only if `long`."""
        state = self._state
        with state.changed:
            waiting = state.ready
            if not long:
                waiting = [entry for entry in waiting if entry.tokens <= self._budget(entry)]
            if not waiting:
                return
            now = time.monotonic()
            first = min(waiting, key=lambda entry: entry.request.served)
            chosen = choose(waiting, self._budget(first), now - PATIENCE)
            taken = set(map(id, chosen))
            state.ready = [entry for entry in state.ready if id(entry) not in taken]
            for entry in chosen:
                entry.request.served = now
            outside, state.computing = state.computing, True
            if state.arriving:
                state.tokens.notify_all()
        self._compute(chosen)
        state.computing = outside

    def _budget(self, entry: Entry) -> int:
        """Tokens of a batch of a model."""
        most = self._options.max_batch_tokens or default_batch_tokens()
        loaded = self._loaded.get(entry.request.key[0])
        found = loaded.budget if loaded is not None else 0.0
        return min(most, int(found or _FIRST))

    def _learn(self, loaded: _Loaded, tokens: int, seconds: float) -> None:
        """Makes batches of a model larger or smaller. One that is not full says nothing: it has its own fixed cost."""
        most = self._options.max_batch_tokens or default_batch_tokens()
        budget = loaded.budget or min(most, _FIRST)
        if 2 * tokens >= budget:
            loaded.budget = min(max(budget * (1.25 if seconds < WORK else 0.8), min(_SMALLEST, most)), most)

    def _compute(self, entries: Sequence[Entry]) -> None:
        """Computes entries together; alone, where they fail, so that only those that do are lost."""
        begun, nested = time.perf_counter(), self._nested
        try:
            results = self._results(entries)
        except BaseException as problem:  # whatever it is, this thread stays alive
            if len({id(entry.request) for entry in entries}) == 1:
                with self._state.locked():
                    _fail(self._state, entries[0].request, problem)
                return
        else:
            seconds = time.perf_counter() - begun
            self._nested, own = nested + seconds, seconds - (self._nested - nested)
            self._finish(entries, results, own)
            return
        for entry in entries:
            self._compute_again(entry)

    def _compute_again(self, entry: Entry) -> None:
        """Computes an entry alone, whose job may be used up in part."""
        if not entry.request.over:
            try:
                job = entry.task.prepare(entry.request.items[entry.number])
            except BaseException as problem:
                with self._state.locked():
                    _fail(self._state, entry.request, problem)
                return
            self._compute([replace(entry, job=job)])

    def _results(self, entries: Sequence[Entry]) -> list[Any]:
        task, jobs, budget = entries[0].task, [entry.job for entry in entries], self._budget(entries[0])
        if entries[0].tokens <= budget:
            task.batch_tokens = None
            with remembering(None):
                return task.compute(jobs)
        task.batch_tokens, first = budget, True

        def between(_: str, compute: Callable[[], Sequence[Any]]) -> Sequence[Any]:
            nonlocal first
            if not first:
                self._compute_next(long=False)
                task.batch_tokens = budget
            if entries[0].request.over:
                raise CancelledError
            first = False
            return compute()

        with remembering(between):
            return task.compute(jobs)

    def _finish(self, entries: Sequence[Entry], results: Sequence[Any], seconds: float) -> None:
        """Gives the results to those who asked."""
        tokens, name = sum(entry.tokens for entry in entries), entries[0].request.key[0]
        loaded = self._loaded.get(name)
        if loaded is not None:
            loaded.used = time.monotonic()
            self._learn(loaded, tokens, seconds)
        with self._state.locked():
            counts = self._state.counts
            counts.batches, counts.texts = counts.batches + 1, counts.texts + len(entries)
            counts.tokens, counts.busy = counts.tokens + tokens, counts.busy + seconds
            counts.truncated += sum(entry.job.truncated for entry in entries)
            counts.sizes[(len(entries) - 1).bit_length()] += 1
            for entry, result in zip(entries, results, strict=True):
                _settle(self._state, entry.request, entry.number, result)

    def _model(self, name: str) -> _Loaded:
        """A model, loaded if it is not; others make room for it."""
        if name not in self._loaded:
            ref = self._refs[name]
            size = _size(ref) if self._options.max_memory else 0
            while self._loaded and not self._fits(size):
                self._unload(next(iter(self._loaded)))
            if not self._fits(size):
                most = self._options.max_memory
                raise MlxbertError(f"{name} takes {size / 1e9:.2f} GB, expected at most {most} GB for all models")
            self._loaded[name] = _Loaded(load(ref), size)
        self._loaded.move_to_end(name)
        self._loaded[name].used = time.monotonic()
        return self._loaded[name]

    def _fits(self, size: int) -> bool:
        """Whether there is room for a model of this size, in bytes."""
        most = self._options.max_memory
        total = size + sum(one.size for one in self._loaded.values())
        return len(self._loaded) < self._options.max_models and (most is None or total <= most * 1e9)

    def _unload(self, name: str) -> None:
        """Forgets a model, once what is prepared for it is computed."""
        state = self._state
        with state.changed:
            for key in [key for key in state.tasks if key[0] == name]:
                del state.tasks[key]
            state.changed.wait_for(lambda: state.preparing is None or state.preparing[0] != name)
        while any(entry.request.key[0] == name for entry in state.ready):
            self._compute_next(long=True)
        del self._loaded[name]
        free_memory()
        _LOG.info("%s: unloaded", name)

    def _until_idle(self) -> float | None:
        """Seconds until a model will have been idle for too long; `None` if none will."""
        if self._options.idle_minutes is None or not self._loaded:
            return None
        return max(
            min(one.used for one in self._loaded.values()) + 60 * self._options.idle_minutes - time.monotonic(), 0
        )

    def _unload_idle(self) -> None:
        assert self._options.idle_minutes is not None  # or nobody would have been waited for
        since = time.monotonic() - 60 * self._options.idle_minutes
        for name in [name for name, one in self._loaded.items() if one.used <= since]:
            self._unload(name)


def _size(ref: ModelRef) -> int:
    """Bytes of the weights of a model, from the headers of its files."""
    use(ref.device)
    found = inspect(ref.source, revision=ref.revision, offline=ref.offline)
    return found.memory[dtype_name(choose_dtype(ref.dtype))]
