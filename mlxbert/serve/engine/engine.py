"""The engine: models that any number of threads or coroutines can call at the same time.

A model belongs to one thread. The engine owns that thread, which loads models and computes batches, and a second
thread, which tokenizes texts. Items that wait for the same model, task and options share batches, each a few tens of
milliseconds of work. A longer item is computed in several batches, and shorter items are computed in between.
"""

import asyncio
import json
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar, overload

from mlxbert.errors import ArgumentError, MlxbertError, OverloadedError
from mlxbert.model import Model
from mlxbert.other_libraries import not_one_of
from mlxbert.serve.engine.engine_state import EngineCounts, EngineState
from mlxbert.serve.engine.model_thread import ModelThread
from mlxbert.serve.engine.next_batch import Answered, Key, Request
from mlxbert.serve.engine.result_memory import Budget
from mlxbert.serve.engine.serving_options import EngineOptions
from mlxbert.serve.engine.tokenizing import prepare_all
from mlxbert.tasks.catalogue import find_task
from mlxbert.tasks.options import TaskOptions
from mlxbert.weights.model_source import BUILTIN, ModelRef

if TYPE_CHECKING:
    from mlxbert.results.embed import Embedding, SparseEmbedding, TokenVectors, Words
    from mlxbert.results.result import Failure
    from mlxbert.results.text_relations import NextSentence
    from mlxbert.results.text_results import Answer, Classification, FillMask, Regression, Replaced, Tagged
    from mlxbert.tasks.query_ranking import Scored

_T = TypeVar("_T")
_P = ParamSpec("_P")
_Future: TypeAlias = "Future[Answered[_T | Failure]]"
_DEFAULTS = EngineOptions()
_MAX_OPTIONS = 262_144  # bytes of a request's options, which the engine keeps for recent tasks


def _awaited(submit: Callable[_P, "Future[_T]"]) -> Callable[_P, Coroutine[Any, Any, _T]]:
    @wraps(submit, assigned=())
    async def ask(*arguments: _P.args, **options: _P.kwargs) -> _T:
        """Computes items for a coroutine (see `submit`). Cancelling the coroutine takes the request off the queue."""
        return await asyncio.wrap_future(submit(*arguments, **options))

    return ask


class Engine:
    """Models that any number of threads and coroutines can call at the same time.

    Example:
        >>> with mlxbert.Engine(["builtin"]) as engine:
        ...     future = engine.submit("builtin", "embed", ["A man eats.", "It rains."])
        ...     future.result().results[0].embedding  # (384,)

    Args:
        models: Names or references of the models, keyed by the names that callers use; or a list of names. A model is
            loaded when it is first used.
        options: Limits of batches, queue and memory.

    Raises:
        ArgumentError: There are no models.
    """

    def __init__(
        self, models: Mapping[str, str | ModelRef] | Iterable[str] = (BUILTIN,), options: EngineOptions = _DEFAULTS
    ) -> None:
        names = (models,) if isinstance(models, str) else models
        named = names if isinstance(names, Mapping) else {name: name for name in names}
        self.models = {name: ref if isinstance(ref, ModelRef) else ModelRef(ref) for name, ref in named.items()}
        if not self.models:
            raise ArgumentError("`models` is empty, expected at least one model")
        self.options, self._state = options, EngineState()
        # The thread has no reference to the engine, which would keep it alive forever.
        owner = ModelThread(self.models, options, self._state)
        self._loaded, self._owner = owner.loaded, owner
        threads = (
            threading.Thread(target=owner.run, name="mlxbert-engine", daemon=True),
            threading.Thread(target=prepare_all, args=(self._state,), name="mlxbert-engine-tokens", daemon=True),
        )
        # A thread that has used MLX must end before the interpreter does (see `clear_when_thread_ends`).
        self._stop = weakref.finalize(self, _stop, self._state, threads)
        for thread in threads:
            thread.start()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self, *, drain: bool = True) -> None:
        """Closes the engine after all accepted requests are computed; without `drain`, pending requests fail.

        A closed engine accepts no requests.
        """
        if not drain:
            with self._state.locked():
                self._state.fail_all(MlxbertError("the engine is closed"))
        self._stop()

    @property
    def closed(self) -> bool:
        """Whether the engine is closed."""
        return self._state.closed

    @property
    def counts(self) -> EngineCounts:
        """Counts of the engine's work so far."""
        return self._state.counts

    @property
    def loaded(self) -> Mapping[str, int]:
        """The size in bytes of each loaded model's weights (0 without a memory limit), least recently used first."""
        return {name: model.size for name, model in [*self._loaded.items()]}

    @property
    def waiting(self) -> int:
        """The number of waiting texts."""
        return self._state.waiting

    def watch(self, on_change: Callable[[str, Model], object]) -> None:
        """Sets the function that the model thread calls after it reloads a model whose files have changed.

        Args:
            on_change: Takes the name of the model and the model. It should not refer to the engine.
        """
        self._owner.on_change = on_change

    # Written by scripts/signatures.py.
    # fmt: off
    @overload
    def submit(self, model: str, task: Literal["embed"], items: Sequence[Any], **options: Any) -> "_Future[Embedding]": ...  # noqa: E501
    @overload
    def submit(self, model: str, task: Literal["embed-words", "embed_words"], items: Sequence[Any], **options: Any) -> "_Future[Words]": ...  # noqa: E501
    @overload
    def submit(self, model: str, task: Literal["embed-sparse", "embed_sparse"], items: Sequence[Any], **options: Any) -> "_Future[SparseEmbedding]": ...  # noqa: E501
    @overload
    def submit(self, model: str, task: Literal["embed-tokens", "embed_tokens"], items: Sequence[Any], **options: Any) -> "_Future[TokenVectors]": ...  # noqa: E501
    @overload
    def submit(self, model: str, task: Literal["classify"], items: Sequence[Any], **options: Any) -> "_Future[Classification | Regression]": ...  # noqa: E501
    @overload
    def submit(self, model: str, task: Literal["tag"], items: Sequence[Any], **options: Any) -> "_Future[Tagged]": ...
    @overload
    def submit(self, model: str, task: Literal["answer"], items: Sequence[Any], **options: Any) -> "_Future[Answer]": ...  # noqa: E501
    @overload
    def submit(self, model: str, task: Literal["rerank"], items: Sequence[Any], **options: Any) -> "_Future[Scored]": ...  # noqa: E501
    @overload
    def submit(self, model: str, task: Literal["fill-mask", "fill_mask"], items: Sequence[Any], **options: Any) -> "_Future[FillMask]": ...  # noqa: E501
    @overload
    def submit(self, model: str, task: Literal["next-sentence", "next_sentence"], items: Sequence[Any], **options: Any) -> "_Future[NextSentence]": ...  # noqa: E501
    @overload
    def submit(self, model: str, task: Literal["replaced"], items: Sequence[Any], **options: Any) -> "_Future[Replaced]": ...  # noqa: E501
    # fmt: on
    # Written by hand.
    @overload
    def submit(self, model: str, task: str, items: Sequence[Any], **options: Any) -> "Future[Answered[Any]]": ...

    def submit(
        self, model: str, task: str, items: Sequence[Any], *, budget: Budget | None = None, **options: Any
    ) -> "Future[Answered[Any]]":
        """Submits items to be computed, from any thread.

        Args:
            model: The name of one of the models.
            task: The name of a task or its function. Its entry in `mlxbert.tasks.catalogue.CATALOGUE` says what an item
                is.
            items: Any number of items: texts, or pairs of texts with the query or question first.
            budget: The memory that the results may take, for a server; `None` for no limit. Larger results are an
                error. The request waits while too little memory is free.
            options: The options of the task's function, except for batch sizes, which the engine decides on.

        Returns:
            A future. Its errors are the errors of the task's function; an unusable item becomes a `Failure` among the
            results. Cancelling the future removes the request from the queue.

        Raises:
            ArgumentError: The model or task does not exist, an option is unknown or not allowed, or the options are too
                large.
            OverloadedError: Too many texts are waiting.
        """
        self.check_model(model)
        entry = find_task(task)
        return self.enqueue(Key(model, entry, entry.read_options(options)), items, budget)

    def enqueue(self, key: Key, items: Sequence[Any], budget: Budget | None = None) -> "Future[Answered[Any]]":
        """Submits items with options that are already checked (see `submit`)."""
        _check_plain(key.options)
        if isinstance(items, str):
            raise ArgumentError(f"`items` is {items!r:.60}, expected a list of texts")
        if len(items) > self.options.max_queue:
            raise ArgumentError(
                f"the request has {len(items):,} texts, expected at most {self.options.max_queue:,} at once"
            )
        request = Request(key, items, time.monotonic(), budget)
        if not items:
            request.future.set_result(request.answered())
            return request.future
        # Nothing long-lived refers to the request, which holds the future: answered requests are freed at once.
        request.future.add_done_callback(partial(self._state.forget, weakref.ref(request)))
        state = self._state
        with state.changed:
            self._check_open()
            if state.waiting + len(items) > self.options.max_queue:
                state.counts.refused += 1
                raise OverloadedError(
                    f"the queue has no room for {len(items):,} more texts, because {state.waiting:,} of at most "
                    f"{self.options.max_queue:,} texts are already waiting",
                    hint="try again in a moment",
                )
            state.waiting += len(items)
            state.requests.add(request)
            state.counts.requests += 1
            state.arrive(request)
        return request.future

    ask = _awaited(submit)

    def call(self, model: str | None, work: Callable[..., _T]) -> "Future[_T]":
        """Runs a function on the model thread, between two batches.

        Args:
            model: The name of the model to pass to the function; `None` for a function without arguments.
            work: The function.

        Raises:
            ArgumentError: The model does not exist.
            OverloadedError: Too many calls are waiting.
        """
        if model is not None:
            self.check_model(model)
        future: Future[_T] = Future()
        with self._state.changed:
            self._check_open()
            if len(self._state.calls) >= self.options.max_queue:
                raise OverloadedError("too many calls are waiting", hint="try again in a moment")
            self._state.calls.append((future, model, work))
            self._state.changed.notify_all()
        return future

    def check_model(self, name: str) -> None:
        """Checks the name of a model.

        Raises:
            ArgumentError: There is no model with this name.
        """
        if name not in self.models:
            raise not_one_of("model", name, self.models)

    def _check_open(self) -> None:
        if self._state.closed:
            raise MlxbertError("the engine is closed")


def _check_plain(options: TaskOptions) -> None:
    """Raises ArgumentError if options take too much memory, or are not plain values that can be compared.

    The options are compared because requests with equal options share batches.
    """
    try:
        size = len(json.dumps(vars(options)).encode())
        hash(options)
    except (TypeError, ValueError, RecursionError) as problem:
        raise ArgumentError(f"an option is not a text, a number, or a list of texts or numbers ({problem})") from None
    if size > _MAX_OPTIONS:
        raise ArgumentError(f"the options take {size:,} bytes as JSON, expected at most {_MAX_OPTIONS:,}")


def _stop(state: EngineState, threads: Sequence[threading.Thread]) -> None:
    with state.changed:
        state.closed = True
        state.changed.notify_all()
    if threading.current_thread() not in threads:  # a thread cannot join itself, nor can the threads join each other
        for thread in threads:
            if thread.ident is not None:  # a signal may arrive before the thread is started
                thread.join()
