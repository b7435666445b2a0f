"""The thread that owns the models of an engine: it loads and unloads them, and computes batches."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace
from typing import Any

from mlxbert.errors import InputError, MissingHeadError, MlxbertError, ModelChangedError
from mlxbert.folders.fingerprint import hash_model
from mlxbert.folders.inspect import inspect_headers
from mlxbert.loading import load
from mlxbert.machine.device import choose_dtype, clear_when_thread_ends, dtype_name, use
from mlxbert.machine.device_errors import free_memory
from mlxbert.model import Model
from mlxbert.results.result import Failure
from mlxbert.serve.engine.engine_state import EngineState
from mlxbert.serve.engine.next_batch import AnyTask, Key, QueuedItem, Request, choose
from mlxbert.serve.engine.serving_options import EngineOptions
from mlxbert.serve.engine.tokenizing import next_to_prepare, prepare
from mlxbert.text.batch import default_batch_tokens
from mlxbert.weights.find_model import find_model
from mlxbert.weights.model_folder import ModelFolder
from mlxbert.weights.model_source import ModelRef

_LOG = logging.getLogger("mlxbert.serve")
_MAX_TASKS = 256  # cached tasks with their options; the least recently used are discarded
_FIRST, _SMALLEST = 512, 256  # tokens in the first batch of a model, and minimum for a slow model
_LARGE = 2**20  # bytes of a result that takes as long to compute as several batches
BATCH_SECONDS, OVERTAKEN_SECONDS = 0.15, 0.25  # duration of a batch; how long shorter requests may go first


@dataclass
class Loaded:
    """A model in memory."""

    model: Model
    size: int  # the size of its weights in bytes; 0 if there is no memory limit
    used: float = 0.0  # the time of the last use, in seconds of the monotonic clock
    budget: float = 0.0  # the number of tokens in a batch that takes about `BATCH_SECONDS`; 0 if not measured yet


class ModelThread:
    """The thread that loads models and computes batches."""

    def __init__(self, refs: Mapping[str, ModelRef], options: EngineOptions, state: EngineState) -> None:
        self._refs, self._options, self._state = refs, options, state
        self.loaded: OrderedDict[str, Loaded] = OrderedDict()  # the models in memory, least recently used first
        # Called with the name and the model after a model whose files have changed is reloaded.
        self.on_change: Callable[[str, Model], object] = lambda name, model: None
        self._fingerprints: dict[str, str] = {}  # the fingerprints of all models that were ever loaded
        self._nested = 0.0  # seconds of all batches, from which batches nested in a long item are subtracted

    def run(self) -> None:
        """Runs until the engine is closed and everything is computed."""
        state = self._state
        clear_when_thread_ends()
        try:
            while self._wait():
                self._step()
        finally:
            with state.locked():
                state.ended = True
                state.fail_all(MlxbertError("the engine has stopped"))  # if the thread itself fails
                state.changed.notify_all()
                state.tokens.notify_all()
                state.tasks.clear()
            self.loaded.clear()

    def _wait(self) -> bool:
        """Waits for work, and unloads idle models meanwhile. Returns whether there is work; false ends the thread."""
        state = self._state

        def pending() -> bool:
            return bool(state.ready or state.opening or state.calls)

        def preparable() -> bool:
            return bool(state.arriving and not state.preparing)

        def done() -> bool:
            return state.closed and not (state.arriving or state.preparing or state.gated)

        while True:
            request = None
            with state.changed:
                if not state.changed.wait_for(lambda: pending() or preparable() or done(), self._until_idle()):
                    idle = True
                elif pending() or not preparable():
                    return pending()
                else:
                    idle, request = False, next_to_prepare(state)
            if idle:
                self._unload_idle()
            if request is not None:
                prepare(state, *request)

    def _step(self) -> None:
        """Runs one waiting call, opens the model of one waiting request, and computes one batch."""
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
        """Loads the model of a request and makes its task, so that the request can be tokenized next."""
        state = self._state
        try:
            task = None if request.over else _make_task(request.key, self._model(request.key.model).model)
        except BaseException as problem:
            with state.locked():
                state.fail(request, problem)
            return
        with state.changed:
            if task is not None:
                state.tasks[request.key] = task
                while len(state.tasks) > _MAX_TASKS:
                    state.tasks.popitem(last=False)
                state.arriving.appendleft(request)

    def _compute_next(self, *, long: bool) -> None:
        """Computes the next batch, if there is one. Items too large for a batch must wait unless `long` is true."""
        state = self._state
        with state.changed:
            waiting = state.ready
            if not long:
                waiting = [entry for entry in waiting if entry.tokens <= self._budget(entry) and entry.size <= _LARGE]
            if not waiting:
                return
            now = time.monotonic()
            chosen = choose(waiting, self._budget, now - OVERTAKEN_SECONDS)
            chosen_ids = set(map(id, chosen))
            state.ready = [entry for entry in state.ready if id(entry) not in chosen_ids]
            for entry in chosen:
                entry.request.served = now
            outside, state.computing = state.computing, True
            if state.arriving:
                state.tokens.notify_all()
        self._compute(chosen)
        state.computing = outside

    def _budget(self, entry: QueuedItem) -> int:
        limit = self._options.max_batch_tokens or default_batch_tokens()
        loaded = self.loaded.get(entry.request.key.model)
        measured = loaded.budget if loaded is not None else 0.0
        return min(limit, int(measured or _FIRST))

    def _learn(self, loaded: Loaded, tokens: int, seconds: float) -> None:
        """Adjusts the batch size of a model to the duration of a batch.

        Batches that are less than half full are ignored, since their duration consists mainly of fixed costs.
        """
        limit = self._options.max_batch_tokens or default_batch_tokens()
        budget = loaded.budget or min(limit, _FIRST)
        if 2 * tokens >= budget:
            loaded.budget = min(max(budget * (1.25 if seconds < BATCH_SECONDS else 0.8), min(_SMALLEST, limit)), limit)

    def _compute(self, entries: Sequence[QueuedItem]) -> None:
        """Computes entries together or, if that fails, one by one, so that only the failing entries are lost."""
        begun, nested = time.perf_counter(), self._nested
        try:
            results = self._results(entries)
        except BaseException as problem:  # no error may end this thread
            if isinstance(problem, InputError):  # one of the items
                if len(entries) == 1:
                    with self._state.locked():
                        number = entries[0].number
                        self._state.settle(entries[0].request, number, Failure(number, problem))
                    return
            elif len({id(entry.request) for entry in entries}) == 1:
                with self._state.locked():
                    self._state.fail(entries[0].request, problem)
                return
        else:
            seconds = time.perf_counter() - begun
            self._nested, own_seconds = nested + seconds, seconds - (self._nested - nested)
            self._finish(entries, results, own_seconds)
            return
        for entry in entries:
            self._compute_again(entry)

    def _compute_again(self, entry: QueuedItem) -> None:
        """Computes an entry alone, with a new job, since the old one may be partly consumed."""
        if not entry.request.over:
            try:
                job = entry.task.job(entry.request.items[entry.number])
            except BaseException as problem:
                with self._state.locked():
                    self._state.fail(entry.request, problem)
                return
            self._compute([replace(entry, job=job)])

    def _results(self, entries: Sequence[QueuedItem]) -> list[Any]:
        task, jobs, budget = entries[0].task, [entry.job for entry in entries], self._budget(entries[0])

        long, large = entries[0].tokens > budget, max(entry.size for entry in entries) > _LARGE

        def pause(batch: bool) -> None:
            if not (long if batch else large):
                return
            before = task.batch_tokens
            self._compute_next(long=False)
            task.batch_tokens = before
            if all(entry.request.over for entry in entries):
                raise CancelledError

        task.batch_tokens = budget if long else None
        return task.compute(jobs, pause)

    def _finish(self, entries: Sequence[QueuedItem], results: Sequence[Any], seconds: float) -> None:
        tokens, name = sum(entry.tokens for entry in entries), entries[0].request.key.model
        loaded = self.loaded.get(name)
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
                self._state.settle(entry.request, entry.number, result)

    def _model(self, name: str) -> Loaded:
        """Returns a model. Loads it on first use, and unloads other models to make room for it."""
        if name not in self.loaded:
            ref = self._refs[name]
            changed = self._is_changed(name, find_model(ref)) if name in self._fingerprints else False
            size = _size(ref) if self._options.max_memory else 0
            while self.loaded and not self._fits(size):
                self._unload(next(iter(self.loaded)))
            if not self._fits(size):
                limit = self._options.max_memory
                raise MlxbertError(
                    f"the weights of {name} take {size / 1e9:.2f} GB, expected at most {limit} GB for all models"
                )
            model = load(ref)
            self.loaded[name] = Loaded(model, size)
            self._fingerprints[name] = hash_model(model.files)
            if changed:
                self.on_change(name, model)
        self.loaded.move_to_end(name)
        self.loaded[name].used = time.monotonic()
        return self.loaded[name]

    def _is_changed(self, name: str, files: ModelFolder) -> bool:
        """Whether the files of a model have changed since it was first loaded.

        Raises ModelChangedError if they have, unless the options accept changed files.
        """
        before, current = self._fingerprints[name], hash_model(files)
        if current == before:
            return False
        message = f"{name}: the files of the model have changed (fingerprint {before[:12]} before, {current[:12]} now)"
        if not self._options.reload_changed:
            raise ModelChangedError(message, hint="restart the server, or use `reload_changed=True`")
        _LOG.warning("%s; the new files are used", message)
        return True

    def _fits(self, size: int) -> bool:
        limit = self._options.max_memory
        total = size + sum(loaded.size for loaded in self.loaded.values())
        return len(self.loaded) < self._options.max_models and (limit is None or total <= limit * 1e9)

    def _unload(self, name: str) -> None:
        """Unloads a model after computing all items that are prepared for it."""
        state = self._state
        with state.changed:
            for key in [key for key in state.tasks if key.model == name]:
                del state.tasks[key]
            state.changed.wait_for(lambda: state.preparing is None or state.preparing.model != name)
        while any(entry.request.key.model == name for entry in state.ready):
            self._compute_next(long=True)
        del self.loaded[name]
        free_memory()
        _LOG.info("%s: unloaded", name)

    def _until_idle(self) -> float | None:
        """Returns how many seconds remain until an idle model must be unloaded; `None` if there is no such limit."""
        if self._options.idle_minutes is None or not self.loaded:
            return None
        return max(
            min(loaded.used for loaded in self.loaded.values()) + 60 * self._options.idle_minutes - time.monotonic(), 0
        )

    def _unload_idle(self) -> None:
        assert self._options.idle_minutes is not None  # otherwise the wait has no timeout
        since = time.monotonic() - 60 * self._options.idle_minutes
        for name in [name for name, loaded in self.loaded.items() if loaded.used <= since]:
            self._unload(name)


def _make_task(key: Key, model: Model) -> AnyTask:
    try:
        return key.entry.make(model, key.options)
    except MissingHeadError as problem:  # callers know the name in the key, not the path
        message = problem.message.removeprefix(f"{model.source}: ")
        raise MissingHeadError(f"{key.model}: {message}", hint=problem.hint) from None


def _size(ref: ModelRef) -> int:
    """Returns the size of a model's weights in bytes, from the headers of its files."""
    use(ref.device)
    report = inspect_headers(replace(ref, adapter=None))
    return report.memory[dtype_name(choose_dtype(ref.dtype, wide_range=report.config.wide_range))]
