"""An engine: models that any number of threads, or coroutines, ask at the same time.

A model belongs to one thread. The engine owns that thread, on which models are loaded and batches computed, and a
second one, on which texts are split into tokens. Whatever waits for the same model, task and options goes into common
batches, each a few tens of milliseconds of work. An item with more tokens than that is computed in several batches,
between which shorter items are let through.
"""

import asyncio
import json
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from mlxbert.counterparts import not_one_of
from mlxbert.errors import ArgumentError, MlxbertError, OverloadedError
from mlxbert.model import Model
from mlxbert.serve.engine.answer_memory import Budget
from mlxbert.serve.engine.model_thread import ModelThread
from mlxbert.serve.engine.request_queue import Answered, Key, Request
from mlxbert.serve.engine.serving_options import EngineOptions
from mlxbert.serve.engine.shared_state import EngineCounts, EngineState
from mlxbert.serve.engine.tokenizing import prepare_all
from mlxbert.tasks.catalogue import find_task
from mlxbert.tasks.options import TaskOptions
from mlxbert.weights.model_source import BUILTIN, ModelRef

_T = TypeVar("_T")
_DEFAULTS = EngineOptions()
_OPTIONS_BYTES = 262_144  # of the options of a request: those of the latest tasks are kept


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
        options: EngineOptions = _DEFAULTS,
    ) -> None:
        given = (models,) if isinstance(models, str) else models
        named = given if isinstance(given, Mapping) else {name: name for name in given}
        self.models = {name: ref if isinstance(ref, ModelRef) else ModelRef(ref) for name, ref in named.items()}
        if not self.models:
            raise ArgumentError("there are no models, expected at least one")
        self.options, self._state = options, EngineState()
        owner = ModelThread(
            self.models, options, self._state
        )  # which does not have the engine, or that would never end
        self._loaded, self._owner = owner.loaded, owner
        threads = (
            threading.Thread(target=owner.run, name="mlxbert-engine", daemon=True),
            threading.Thread(target=prepare_all, args=(self._state,), name="mlxbert-engine-tokens", daemon=True),
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
                self._state.fail_all(MlxbertError("the engine is closed"))
        self._stop()

    @property
    def closed(self) -> bool:
        """Whether nothing is taken any more."""
        return self._state.closed

    @property
    def counts(self) -> EngineCounts:
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

    def watch(self, on_change: Callable[[str, Model], object]) -> None:
        """Has a function called, on the thread of the models, with each model that is loaded with changed files.

        Args:
            on_change: Takes the name of the model, and the model. It should not refer to the engine.
        """
        self._owner.on_change = on_change

    def submit(
        self, model: str, task: str, items: Sequence[Any], *, budget: Budget | None = None, **options: Any
    ) -> "Future[Answered]":
        """Asks for the results of items, from any thread.

        Args:
            model: The name of one of the models.
            task: The name of a task of `mlxbert.tasks.catalogue.CATALOGUE`, which says what its items are.
            items: Any number of items: texts, or pairs of texts, of which the first is the query or the question.
            budget: The memory that the results may take, of a server; `None` for any amount. Results that would take
                more are an error, and while too little is free, the request waits.
            options: The options of the task, as its function has them; the engine itself decides on the size of
                batches.

        Returns:
            A future. Its errors are those of the task's function; an item that cannot be used is a `Failure` among the
            results. Cancelled before it is done, it is taken out of the queue.

        Raises:
            ArgumentError: There is no such model or task, an option is unknown or not allowed, or the options are too
                large.
            OverloadedError: Too many texts wait.
        """
        self.check_model(model)
        entry = find_task(task)
        return self.enqueue(Key(model, entry, entry.read_options(options)), items, budget)

    def enqueue(self, key: Key, items: Sequence[Any], budget: Budget | None = None) -> "Future[Answered]":
        """Asks for the results of items with options that are checked; see `submit`."""
        _check_plain(key.options)
        if isinstance(items, str):
            raise ArgumentError(f"items is {items!r:.60}, expected a list of texts")
        if len(items) > self.options.max_queue:
            raise ArgumentError(f"{len(items):,} texts, expected at most {self.options.max_queue:,} at once")
        request = Request(key, items, time.monotonic(), budget)
        if not items:
            request.future.set_result(request.answered())
            return request.future
        # Nothing that stays refers to the request, which has the future: what is answered is freed at once.
        request.future.add_done_callback(partial(self._state.forget, weakref.ref(request)))
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
            raise not_one_of("model", name, self.models)

    def _check_open(self) -> None:
        if self._state.closed:
            raise MlxbertError("the engine is closed")


def _check_plain(options: TaskOptions) -> None:
    """Refuses options that cannot be compared with those of other requests, or take much memory."""
    try:
        size = len(json.dumps(vars(options)).encode())
        hash(options)
    except (TypeError, ValueError, RecursionError) as problem:
        raise ArgumentError(f"options are not all texts, numbers, or lists of these: {problem}") from None
    if size > _OPTIONS_BYTES:
        raise ArgumentError(f"options take {size:,} bytes as JSON, expected at most {_OPTIONS_BYTES:,}")


def _stop(state: EngineState, threads: Sequence[threading.Thread]) -> None:
    with state.changed:
        state.closed = True
        state.changed.notify_all()
    if threading.current_thread() not in threads:  # they cannot wait for themselves, nor for each other
        for thread in threads:
            if thread.is_alive():  # a signal may come before it is started; then it has compiled nothing
                thread.join()
