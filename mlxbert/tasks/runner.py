"""Runs tasks over many items and batches: windows, order, failures, and the thread that prepares the next window."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mlxbert.config import EncoderConfig
from mlxbert.errors import DeviceError, InputError, OutOfMemoryError
from mlxbert.machine.device import dispatch, hint_once, mx, nn, on_gpu, say_what_is_built
from mlxbert.machine.device_errors import DEFAULT_HINT, StoppedError, device_errors, errors_seen, free_memory
from mlxbert.nn.encoder import Batch
from mlxbert.other_libraries import not_one_of
from mlxbert.readers.stream import RecordStream, windows
from mlxbert.results.result import Failure
from mlxbert.text.batch import WINDOW, default_batch_tokens, make_batch, padded_length, padded_rows, plan
from mlxbert.text.encoding import Encoding
from mlxbert.text.usage import Usage

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Item = TypeVar("Item")
Job = TypeVar("Job")
Output = TypeVar("Output")
Result = TypeVar("Result")
T = TypeVar("T")
Arrays = TypeVar("Arrays")  # an MLX array, or several
_Window = tuple[list[Job | InputError], Iterator[Result | InputError]]

ON_ERROR = ("raise", "return")
# Lets a server compute short requests first, or abandon the work by an error. It is called before each batch, with
# `True`, and every few thousand parts of a long result, with `False`.
Pause = Callable[[bool], None]
_SMALLER = "a smaller `batch_tokens=`, where that is an option, avoids this"


def no_pause(batch: bool) -> None:
    """Does not pause."""


def check_on_error(on_error: str) -> None:
    """Raises ArgumentError if `on_error` is neither `raise` nor `return`."""
    if on_error not in ON_ERROR:
        raise not_one_of("on_error", on_error, ON_ERROR)


def run(
    items: Iterable[Item | InputError],
    prepare: Callable[[Item], Job],
    compute: Callable[[Sequence[Job]], Iterable[Result | InputError]],
    on_error: str,
    window: int = WINDOW,
    together: Callable[[Sequence[Item]], AbstractContextManager[None]] = lambda items: nullcontext(),
    *,
    usual: int = WINDOW,
    early: bool = True,
) -> Iterator[Result | Failure]:
    """Prepares and computes a window of items at a time, in constant memory.

    Args:
        items: Any number of items. If the reader of the items yields an InputError in place of an item, it is treated
            like an unusable item: it keeps its place, so that batches do not depend on which items could be read.
        prepare: Makes a job of an item; raises InputError if the item is unusable.
        compute: Returns one result per job, in order, or an error in its place. On a GPU, the call itself starts the
            first batch.
        on_error: `raise` (the error names the item, if there are several), or `return` a Failure in place of the
            result.
        window: The number of items that are prepared and computed together.
        together: Returns a context manager that prepares the items of a window together; `prepare` runs within it.
        usual: The number of items in a window on a CPU.
        early: Whether somebody may wait for the first results (nobody does if they go to a file). If so, the first
            window is as small as on a CPU, and its results do not wait for the next window: a caller who takes only a
            few results does not wait until thousands of texts are tokenized. The size grows only once, since each
            further size would create more batch shapes.
    """
    check_on_error(on_error)
    return _run(items, prepare, compute, on_error, together, window, usual, early)


def _run(
    items: Iterable[Item | InputError],
    prepare: Callable[[Item], Job],
    compute: Callable[[Sequence[Job]], Iterable[Result | InputError]],
    on_error: str,
    together: Callable[[Sequence[Item]], AbstractContextManager[None]],
    size: int,
    usual: int,
    early: bool,
) -> Iterator[Result | Failure]:
    if isinstance(items, RecordStream) and not items.waited_for:
        early = False
    is_single = False  # whether there is one item, which an error need not number

    def started() -> Iterator[tuple[_Window[Job, Result], bool]]:
        nonlocal is_single
        for number, (prepared, more) in enumerate(_ahead(items, prepare, together, size, usual, early)):
            is_single = number == 0 and len(prepared) == 1 and not more
            if on_error == "raise":  # no result after the first bad item is needed
                errors = (place for place, job in enumerate(prepared) if isinstance(job, InputError))
                prepared = prepared[: next(errors, len(prepared)) + 1]
            yield (prepared, iter(compute([job for job in prepared if not isinstance(job, InputError)]))), more

    index = 0
    for prepared, results in _one_behind(started(), at_once=early and usual < size):
        for place, job in enumerate(prepared, index):
            outcome = job if isinstance(job, InputError) else next(results)
            if not isinstance(outcome, InputError):
                yield outcome
            elif on_error == "raise":
                raise outcome if is_single else _numbered(outcome, place)
            else:
                yield Failure(place, outcome)
        index += len(prepared)
        del prepared, results  # frees the memory before another window is read


def _numbered(error: InputError, place: int) -> InputError:
    """Returns a copy of an error that names the item; a subclass's constructor may take other arguments."""
    copied = type(error).__new__(type(error))
    vars(copied).update(vars(error))
    copied.message = f"input {place}: {error.message}"
    copied.args = (copied.message,)
    return copied


def _one_behind(windows: Iterable[tuple[T, bool]], *, at_once: bool) -> Iterator[T]:
    """Yields the windows; on a GPU, each only after the next one has been started.

    Args:
        windows: The windows, each with a flag: whether another one is available at once.
        at_once: Whether the first window is yielded without waiting for the next one.
    """
    waiting: list[T] = []
    try:
        for window, more in windows:
            waiting.append(window)
            while len(waiting) > (more and on_gpu()) or (waiting and at_once):
                at_once = False
                yield waiting.pop(0)
    except Exception:
        yield from waiting
        raise
    yield from waiting


def _ahead(
    items: Iterable[Item | InputError],
    prepare: Callable[[Item], Job],
    together: Callable[[Sequence[Item]], AbstractContextManager[None]],
    size: int,
    usual: int,
    early: bool,
) -> Iterator[tuple[list[Job | InputError], bool]]:
    """Yields windows of jobs, each with a flag: whether another one is available.

    A second thread prepares the windows ahead of time. The items themselves are read on the calling thread: an iterable
    may be bound to the thread that created it.
    """

    def prepare_all(window: list[Item | InputError]) -> list[Job | InputError]:
        with together([item for item in window if not isinstance(item, InputError)]):
            return [_prepared(item, prepare) for item in window]

    with ExitStack() as stack:
        thread: Executor | None = None
        waiting: list[Future[list[Job | InputError]]] = []
        for window, more in windows(items, size, usual, early=early):
            if not more and not waiting:  # nothing to compute meanwhile: a thread has no benefit
                yield prepare_all(window), False
                continue
            if thread is None:
                from concurrent.futures import ThreadPoolExecutor

                thread = stack.enter_context(ThreadPoolExecutor(1, "mlxbert-tokenizing"))
            waiting.append(thread.submit(prepare_all, window))
            while len(waiting) > more:
                yield waiting.pop(0).result(), bool(waiting)
        while waiting:
            yield waiting.pop(0).result(), bool(waiting)


def _prepared(item: Item | InputError, prepare: Callable[[Item], Job]) -> Job | InputError:
    if isinstance(item, InputError):
        return item
    try:
        return prepare(item)
    except InputError as problem:
        if item is None or type(item).__name__ == "NAType" or (isinstance(item, float) and math.isnan(item)):
            problem.hint = "a value is missing: leave it out (in pandas with .dropna()), or pass `on_error='return'`"
        return problem


def in_halves(
    items: Sequence[Item], compute: Callable[[Sequence[Item]], Output], *, again: bool = True
) -> list[Output]:
    """Calls `compute` with all items. If the device runs out of memory, computes each half separately, recursively.

    If macOS stops the work, each half is computed once more; a single item, too.

    Args:
        compute: Returns the output of some of the items.

    Returns:
        The outputs in order: one for all items, or one for each part that is computed separately.
    """
    several = len(items) > 1
    try:
        with device_errors(_SMALLER if several else DEFAULT_HINT):
            return [compute(items)]
    except (OutOfMemoryError, StoppedError) as problem:
        stopped, hint = isinstance(problem, StoppedError), problem.hint
        if not (again if stopped else several):
            raise
    free_memory()  # outside the handler: the exception may hold arrays of the failed batch
    if stopped:
        hint_once(f"macOS stopped the work on a batch, so it is computed again, in parts; {hint}")
    else:
        hint_once(f"the device had too little memory for a batch, so it is computed in parts; {_SMALLER}")
    middle = len(items) // 2
    parts = [items[:middle], items[middle:]] if several else [items]
    return [output for part in parts for output in in_halves(part, compute, again=again and not stopped)]


def run_batches(
    encodings: Sequence[Encoding],
    forward: Callable[[Batch, list[int]], Arrays],
    read: Callable[[Any, list[int]], Sequence[Output]],
    config: EncoderConfig,
    batch_tokens: int | None,
    usage: Usage | None = None,
    *,
    by_row: bool = True,
    pause: Pause = no_pause,
) -> Iterator[Output]:
    """Computes batches of encodings; yields the outputs in the order of the encodings, each as soon as it is known.

    A GPU gets the first batch at once, and each further batch before the outputs of the previous one are read. A batch
    that does not fit into memory, or that macOS stops, is computed in halves. On a GPU, batches may have more rows than
    encodings.

    Args:
        forward: Takes a batch and the indices of its encodings, returns lazy arrays. The batch may have padding
            rows after the encodings; their outputs are dropped.
        read: Takes the evaluated arrays and the indices; returns one output for each index.
        config: The configuration of the encoder, for its maximum length and its padding.
        batch_tokens: Tokens per batch, padding included; `None` for the default.
        by_row: Whether the rows of the batch are the first axis of the arrays from `forward`. If not, the
            arrays must contain nothing for padding rows.
    """
    lengths = [padded_length(len(encoding), config.max_length) for encoding in encodings]
    limit = default_batch_tokens() if batch_tokens is None else batch_tokens
    order = sorted(plan(lengths, limit), key=min)  # the batch with the first encoding comes first
    batches = _BatchOrder(encodings, order, forward, read, config, limit, usage, by_row, pause)
    batches.start_ahead(0)
    return batches.outputs()


class _BatchOrder(Generic[Arrays, Output]):
    """Starts and reads batches in order (see `run_batches`)."""

    def __init__(
        self,
        encodings: Sequence[Encoding],
        groups: Sequence[list[int]],
        forward: Callable[[Batch, list[int]], Arrays],
        read: Callable[[Any, list[int]], Sequence[Output]],
        config: EncoderConfig,
        batch_tokens: int,
        usage: Usage | None,
        by_row: bool,
        pause: Pause,
    ) -> None:
        self._encodings, self._groups, self._config, self._usage = encodings, groups, config, usage
        self._batch_tokens, self._by_row = batch_tokens, by_row
        self._forward, self._read, self._pause = forward, read, pause
        self._broken: DeviceError | None = None
        self._begun = 0  # batches that a GPU was to start before their turn
        self._ahead: dict[int, Arrays] = {}  # arrays that a GPU computes before the turn of their batch
        self._errors = errors_seen()
        say_what_is_built("inference")

    def _shape(self, group: Sequence[int]) -> tuple[int, int]:
        length = padded_length(max(len(self._encodings[index]) for index in group), self._config.max_length)
        return padded_rows(len(group), length, self._batch_tokens), length

    def _lazy(self, group: Sequence[int]) -> Arrays:
        """Returns the lazy outputs of `forward` for a group; padding rows repeat its first input.

        Padding rows without tokens would cause NaN in the softmax over their keys, and would need a mask even if no
        other row is padded.
        """
        encodings, (rows, _) = [self._encodings[index] for index in group], self._shape(group)
        batch = make_batch([*encodings, *encodings[:1] * (rows - len(group))], self._config)
        arrays = self._forward(batch, [*group])
        if rows == len(group) or not self._by_row:
            return arrays
        unpadded: Arrays = nn.utils.tree_map(lambda array: array[: len(group)], arrays)
        return unpadded

    def start_ahead(self, number: int) -> None:
        """Starts a batch before its turn if it has to be computed on a GPU, unless the GPU has failed."""
        if not (on_gpu() and self._is_well()):
            return
        if not self._begun <= number < len(self._groups):
            return
        self._begun = number + 1
        try:
            with device_errors(wait=False):
                self._ahead[number] = self._lazy(self._groups[number])
                dispatch(self._ahead[number])
        except Exception as problem:
            # After another device error, even earlier results could be wrong. Other failures are retried in their turn.
            if isinstance(problem, DeviceError) and not isinstance(problem, OutOfMemoryError | StoppedError):
                self._broken = problem

    def _is_well(self) -> bool:
        return errors_seen() == self._errors

    def _finished(self, arrays: Arrays, group: Sequence[int]) -> Sequence[Output]:
        mx.eval(arrays)
        return self._read(arrays, [*group])

    def _computed(self, number: int) -> Sequence[Output]:
        if self._broken is not None:
            raise self._broken
        group = self._groups[number]
        if self._usage is not None:
            rows, length = self._shape(group)
            self._usage.add([len(self._encodings[index]) for index in group], length, rows)
        started = self._ahead.pop(number, None)
        if started is not None:
            if self._is_well():
                with suppress(OutOfMemoryError, StoppedError), device_errors(_SMALLER, wait=False):
                    return self._finished(started, group)
            started = None
            free_memory()  # the batch started after this one may use the memory, or be the one that failed
        return [*chain.from_iterable(in_halves(group, lambda part: self._finished(self._lazy(part), part)))]

    def outputs(self) -> Iterator[Output]:
        """Yields the outputs in the order of the encodings."""
        outputs: dict[int, Output] = {}
        following = 0
        for number, group in enumerate(self._groups):
            self.start_ahead(number)
            self.start_ahead(number + 1)
            self._pause(True)
            outputs.update(zip(group, self._computed(number), strict=True))
            while following in outputs:
                yield outputs.pop(following)
                following += 1
