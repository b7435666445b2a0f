"""Many items and many batches: windows, order, failures, and the thread that prepares the next window."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mlxbert.config import EncoderConfig
from mlxbert.counterparts import not_one_of
from mlxbert.errors import DeviceError, InputError, OutOfMemoryError
from mlxbert.machine.device import dispatch, hint_once, mx, nn, on_gpu, say_what_is_built
from mlxbert.machine.device_errors import DEFAULT_HINT, device_errors, errors_seen, free_memory
from mlxbert.nn.encoder import Batch
from mlxbert.readers.stream import windows
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
_Window = tuple[list[Job | InputError], Iterator[Result]]

# Takes a key of a batch and what computes its outputs; returns them, perhaps those of an interrupted run.
Remember = Callable[[str, Callable[[], Sequence[Any]]], Sequence[Any]]
ON_ERROR = ("raise", "return")
_SMALLER = "a smaller batch_tokens=, where that is an option, avoids this"


@dataclass
class _SharedOutputs:
    """Where outputs of batches come from, and where results go.

    Attributes:
        how: May know the outputs of an interrupted run; `None` where nothing does.
        computes: Whether the next batch has to be computed: those that are known come first.
        on_window: See `remembering`; `None` if somebody may wait for the first results.
        pause: See `remembering`.
    """

    how: Remember | None
    computes: bool
    on_window: Callable[[int], None] | None = None
    pause: Callable[[], None] = lambda: None


_memory: ContextVar[_SharedOutputs] = ContextVar("memory", default=_SharedOutputs(None, computes=True))  # noqa: B039


def check_on_error(on_error: str) -> None:
    """Refuses an `on_error` that is neither `raise` nor `return`."""
    if on_error not in ON_ERROR:
        raise not_one_of("on_error", on_error, ON_ERROR)


def run(
    items: Iterable[Item | InputError],
    prepare: Callable[[Item], Job],
    compute: Callable[[Sequence[Job]], Iterable[Result]],
    on_error: str,
    window: int = WINDOW,
    together: Callable[[Sequence[Item]], AbstractContextManager[None]] = lambda items: nullcontext(),
    *,
    usual: int = WINDOW,
    early: bool = True,
) -> Iterator[Result | Failure]:
    """Prepares and computes a window of items at a time, in constant memory.

    Args:
        items: Any number of items. An InputError among them, from whoever reads the items, fails like an item that
            cannot be used: it keeps its place, so that batches do not depend on what could be read.
        prepare: Makes a job of an item; raises InputError if the item cannot be used.
        compute: One result per job, in their order; on a GPU, its first batch starts at the call.
        on_error: `raise` (an error that says which item it is, if there are several), or `return` a Failure in place of
            the result.
        window: How many items are prepared and computed together.
        together: Prepares what can be prepared for all items of a window at once; it is there for `prepare`.
        usual: How many items a window has on a CPU.
        early: Whether somebody may wait for the first results. The first window then has the size of a CPU's, and its
            results do not wait for the next window: whoever takes only a few of them does not wait until thousands of
            texts are tokenized. Growing in more steps would make more shapes. Nobody waits for results in a file.
    """
    check_on_error(on_error)
    return _run(items, prepare, compute, on_error, together, _Sizes(window, usual, early))


@dataclass(frozen=True)
class _Sizes:
    """How many items windows have; see `run` and `windows`."""

    size: int
    usual: int
    early: bool

    @property
    def grows(self) -> bool:
        """Whether the first window is smaller than others."""
        return self.early and self.usual < self.size


def _run(
    items: Iterable[Item | InputError],
    prepare: Callable[[Item], Job],
    compute: Callable[[Sequence[Job]], Iterable[Result]],
    on_error: str,
    together: Callable[[Sequence[Item]], AbstractContextManager[None]],
    sizes: _Sizes,
) -> Iterator[Result | Failure]:
    on_window = _memory.get().on_window
    if on_window is not None:
        sizes = replace(sizes, early=False)
        if WINDOW % sizes.size:
            on_window(sizes.size)

    def started() -> Iterator[tuple[_Window[Job, Result], bool]]:
        for prepared, more in _ahead(items, prepare, together, sizes):
            if on_error == "raise":  # no result after the first bad item is needed
                found = (place for place, job in enumerate(prepared) if isinstance(job, InputError))
                prepared = prepared[: next(found, len(prepared)) + 1]
            yield (prepared, iter(compute([job for job in prepared if not isinstance(job, InputError)]))), more

    index = 0
    for prepared, results in _one_behind(started(), at_once=sizes.grows):
        alone = index == 0 and len(prepared) == 1
        for place, job in enumerate(prepared, index):
            if not isinstance(job, InputError):
                yield next(results)
            elif on_error == "raise":
                raise job if alone else InputError(f"input {place}: {job.message}", hint=job.hint)
            else:
                yield Failure(place, job)
        index += len(prepared)
        del prepared, results  # not while another window is read


def _one_behind(windows: Iterable[tuple[T, bool]], *, at_once: bool) -> Iterator[T]:
    """Windows, each with whether there are more at hand; on a GPU, one is given when the next one has been started.

    Args:
        windows: The windows.
        at_once: Whether the first one is given without that.
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
    sizes: _Sizes,
) -> Iterator[tuple[list[Job | InputError], bool]]:
    """Windows of jobs, each prepared on another thread while the one before is computed; and whether more are at hand.

    The items themselves are read on this thread: an iterable may be bound to the thread that made it.
    """

    def prepare_all(window: list[Item | InputError]) -> list[Job | InputError]:
        with together([item for item in window if not isinstance(item, InputError)]):
            return [_prepared(item, prepare) for item in window]

    with ExitStack() as stack:
        thread: Executor | None = None
        waiting: list[Future[list[Job | InputError]]] = []
        for window, more in windows(items, sizes.size, sizes.usual, early=sizes.early):
            if not more and not waiting:  # nothing to compute meanwhile: a thread would gain nothing
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
            problem.hint = "a value is missing: leave it out (in pandas with .dropna()), or pass on_error='return'"
        return problem


def in_halves(items: Sequence[Item], compute: Callable[[Sequence[Item]], Output]) -> list[Output]:
    """`compute` of some items; of parts of them, each half as many, where the device has too little memory for all.

    Returns:
        What it gives, for each part in their order.
    """
    several = len(items) > 1
    try:
        with device_errors(_SMALLER if several else DEFAULT_HINT):
            return [compute(items)]
    except OutOfMemoryError:
        if not several:
            raise
    free_memory()  # not while the error is handled: it may hold arrays of what failed
    hint_once(f"the device had too little memory for a batch, which is computed in parts; {_SMALLER}")
    middle = len(items) // 2
    return [*in_halves(items[:middle], compute), *in_halves(items[middle:], compute)]


def run_batches(
    encodings: Sequence[Encoding],
    forward: Callable[[Batch, list[int]], Arrays],
    read: Callable[[Any, list[int]], Sequence[Output]],
    config: EncoderConfig,
    batch_tokens: int | None,
    usage: Usage | None = None,
    mine: Callable[[], bool] = lambda: True,
    *,
    by_row: bool = True,
) -> Iterator[Output]:
    """Computes batches of encodings; gives the outputs in the order of the encodings, each when it is known.

    A GPU gets the first batch at once, and each following one before the one in front of it is read. A batch for which
    the memory does not suffice is computed in halves. A GPU's batches may have more rows than encodings.

    Args:
        encodings: The inputs of the model.
        forward: Takes a batch and the numbers of its encodings, returns lazy arrays. The batch may have more rows than
            these; what the arrays have for them is dropped.
        read: Takes these arrays, evaluated, and the numbers; returns one output for each. For a batch that another
            process computes, it takes `None`.
        config: The encoder's facts: its longest input, its padding.
        batch_tokens: Tokens per batch, padding included; `None` for the default.
        usage: Counts what is computed.
        mine: Asked once for each batch, in their order: whether this process computes it.
        by_row: Whether the first axis of the arrays of `forward` is that of the batch. If not, they hold nothing for
            rows that are padding.
    """
    lengths = [padded_length(len(encoding), config.max_length) for encoding in encodings]
    most = default_batch_tokens() if batch_tokens is None else batch_tokens
    order = sorted(plan(lengths, most), key=min)  # those with the first encodings come first
    batches = _BatchOrder(encodings, order, forward, read, config, most, usage, mine, by_row)
    batches.start_ahead(0)
    return batches.outputs()


class _BatchOrder(Generic[Arrays, Output]):
    """Batches that are started and read in their order; see `run_batches`."""

    def __init__(
        self,
        encodings: Sequence[Encoding],
        groups: Sequence[list[int]],
        forward: Callable[[Batch, list[int]], Arrays],
        read: Callable[[Any, list[int]], Sequence[Output]],
        config: EncoderConfig,
        batch_tokens: int,
        usage: Usage | None,
        mine: Callable[[], bool],
        by_row: bool,
    ) -> None:
        self._encodings, self._groups, self._config, self._usage = encodings, groups, config, usage
        self._batch_tokens, self._by_row = batch_tokens, by_row
        self._forward, self._read, self._mine, self._memory = forward, read, mine, _memory.get()
        self._broken: DeviceError | None = None
        self._own: dict[int, bool] = {}  # whether this process computes a batch
        self._ahead: dict[int, Arrays] = {}  # what a GPU has been given before its turn
        self._errors = errors_seen()
        say_what_is_built("inference")

    def _is_own(self, number: int) -> bool:
        if number not in self._own:
            self._own[number] = self._mine()
        return self._own[number]

    def _shape(self, group: Sequence[int]) -> tuple[int, int]:
        """The rows and the length of the batch of a group."""
        length = padded_length(max(len(self._encodings[one]) for one in group), self._config.max_length)
        return padded_rows(len(group), length, self._batch_tokens), length

    def _lazy(self, group: Sequence[int]) -> Arrays:
        """What `forward` gives for a group; rows that are padding repeat its first input.

        A row without tokens would give NaN in a softmax over its keys, and would need a mask where nothing is padded.
        """
        encodings, (rows, _) = [self._encodings[one] for one in group], self._shape(group)
        batch = make_batch([*encodings, *encodings[:1] * (rows - len(group))], self._config)
        found = self._forward(batch, [*group])
        if rows == len(group) or not self._by_row:
            return found
        own: Arrays = nn.utils.tree_map(lambda array: array[: len(group)], found)
        return own

    def start_ahead(self, number: int) -> None:
        """Starts a batch before its turn, on a GPU that has not failed and where it will have to be computed."""
        if not (self._memory.computes and on_gpu() and self._is_well()):
            return
        if number in self._own or number >= len(self._groups):
            return
        try:
            with device_errors(wait=False):
                if self._is_own(number):
                    self._ahead[number] = self._lazy(self._groups[number])
                    dispatch(self._ahead[number])
        except Exception as problem:
            # Of another error the results in front of it could be wrong. What else fails is computed again in its turn.
            if isinstance(problem, DeviceError) and not isinstance(problem, OutOfMemoryError):
                self._broken = problem

    def _is_well(self) -> bool:
        """Whether all that was started is computed, as far as is known."""
        return errors_seen() == self._errors

    def _finished(self, found: Arrays, group: Sequence[int]) -> Sequence[Output]:
        mx.eval(found)
        return self._read(found, [*group])

    def _computed(self, number: int) -> Sequence[Output]:
        self._memory.computes = True
        if self._broken is not None:
            raise self._broken
        group = self._groups[number]
        if self._usage is not None:
            rows, length = self._shape(group)
            self._usage.add([len(self._encodings[one]) for one in group], length, rows)
        if not self._is_own(number):
            return self._read(None, group)
        started = self._ahead.pop(number, None)
        if started is not None:
            if self._is_well():
                with suppress(OutOfMemoryError), device_errors(_SMALLER, wait=False):
                    return self._finished(started, group)
            started = None
            free_memory()  # another batch that was started may have needed it, or have failed instead of this one
        return [*chain.from_iterable(in_halves(group, lambda some: self._finished(self._lazy(some), some)))]

    def outputs(self) -> Iterator[Output]:
        """The outputs in the order of the encodings."""
        known: dict[int, Output] = {}
        following = 0
        for number, group in enumerate(self._groups):
            self.start_ahead(number)
            self.start_ahead(number + 1)
            known.update(zip(group, self._remembered(number), strict=True))
            while following in known:
                yield known.pop(following)
                following += 1

    def _remembered(self, number: int) -> Sequence[Output]:
        if self._memory.how is None:
            return self._computed(number)
        ids = [self._encodings[one].ids for one in self._groups[number]]
        return self._memory.how(hashlib.sha256(repr(ids).encode()).hexdigest(), partial(self._computed, number))


def breathe() -> None:
    """Called every few thousand parts of a result: a server computes for others meanwhile, or gives the result up."""
    _memory.get().pause()


@contextmanager
def remembering(
    how: Remember | None, on_window: Callable[[int], None] | None = None, pause: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Meanwhile, the outputs of all batches come from a function, which may know some of them; in order.

    Args:
        how: The function; `None` if nothing is known.
        on_window: For results that go to a file in parts of `WINDOW` results: is called with the size of windows if
            `WINDOW` is not a multiple of it. Parts have to end with windows, since an interrupted run resumes after a
            part. The first window then has the size of the others.
        pause: Is called by `breathe`.
    """
    token = _memory.set(_SharedOutputs(how, computes=how is None, on_window=on_window, pause=pause))
    try:
        yield
    finally:
        _memory.reset(token)
