"""Many items and many batches: windows, order, failures, and the thread that prepares the next window."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from mlxbert.config import EncoderConfig
from mlxbert.errors import ArgumentError, InputError, OutOfMemoryError
from mlxbert.machine.device import hint_once, mx
from mlxbert.machine.faults import USUAL, device_errors
from mlxbert.nn.encoder import Batch
from mlxbert.readers.live import Live
from mlxbert.results.result import Failure
from mlxbert.text.batch import WINDOW, Usage, default_batch_tokens, make_batch, padded_length, plan
from mlxbert.text.encoding import Encoding

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

Item = TypeVar("Item")
Job = TypeVar("Job")
Output = TypeVar("Output")
Result = TypeVar("Result")

# Takes a key of a batch and what computes its outputs; returns them, perhaps those of an interrupted run.
Remember = Callable[[str, Callable[[], Sequence[Any]]], Sequence[Any]]
# Takes the number of rows of a batch and what computes their outputs; returns those, see `Turns.take`.
Take = Callable[[int, Callable[[], Sequence[Any]]], Sequence[Any]]
_remember: ContextVar[Remember | None] = ContextVar("remember", default=None)
ON_ERROR = ("raise", "return")
_SMALLER = "a smaller batch_tokens=, where that is an option, avoids this"
_TOGETHER = 2**21  # characters of a window, so that its memory is bounded; 512 usual texts have far fewer


def check_on_error(on_error: str) -> None:
    """Refuses an `on_error` that is neither `raise` nor `return`."""
    if on_error not in ON_ERROR:
        raise ArgumentError(f"on_error is {on_error!r}, expected one of {', '.join(ON_ERROR)}")


def run(
    items: Iterable[Item | InputError],
    prepare: Callable[[Item], Job],
    compute: Callable[[Sequence[Job]], Iterable[Result]],
    on_error: str,
    window: int = WINDOW,
) -> Iterator[Result | Failure]:
    """Prepares and computes a window of items at a time, in constant memory.

    Args:
        items: Any number of items. An InputError among them, from whoever reads the items, fails like an item that
            cannot be used: it keeps its place, so that batches do not depend on what could be read.
        prepare: Makes a job of an item; raises InputError if the item cannot be used.
        compute: One result per job, in their order.
        on_error: `raise` (an error that says which item it is, if there are several), or `return` a Failure in place of
            the result.
        window: How many items are prepared and computed together.
    """
    check_on_error(on_error)
    return _run(items, prepare, compute, on_error, window)


def _run(
    items: Iterable[Item | InputError],
    prepare: Callable[[Item], Job],
    compute: Callable[[Sequence[Job]], Iterable[Result]],
    on_error: str,
    size: int,
) -> Iterator[Result | Failure]:
    index = 0
    for prepared in filter(None, _ahead(items, prepare, size)):
        alone = index == 0 and len(prepared) == 1
        if on_error == "raise":  # no result after the first bad item is needed
            bad = next((place for place, job in enumerate(prepared) if isinstance(job, InputError)), len(prepared) - 1)
            prepared = prepared[: bad + 1]
        results = iter(compute([job for job in prepared if not isinstance(job, InputError)]))
        for place, job in enumerate(prepared, index):
            if not isinstance(job, InputError):
                yield next(results)
            elif on_error == "raise":
                raise job if alone else InputError(f"input {place}: {job.message}", hint=job.hint)
            else:
                yield Failure(place, job)
        index += len(prepared)


def _ahead(
    items: Iterable[Item | InputError], prepare: Callable[[Item], Job], size: int
) -> Iterator[list[Job | InputError]]:
    """Windows of jobs, each prepared on another thread while the one before is computed.

    The items themselves are read on this thread: an iterable may be bound to the thread that made it.
    """

    def prepare_all(window: list[Item | InputError]) -> list[Job | InputError]:
        return [_prepared(item, prepare) for item in window]

    with ExitStack() as stack:
        thread: Executor | None = None
        waiting: list[Future[list[Job | InputError]]] = []
        for window, more in windows(items, size):
            if not more and not waiting:  # nothing to compute meanwhile: a thread would gain nothing
                yield prepare_all(window)
                continue
            if thread is None:
                from concurrent.futures import ThreadPoolExecutor

                thread = stack.enter_context(ThreadPoolExecutor(1, "mlxbert-tokenizing"))
            waiting.append(thread.submit(prepare_all, window))
            while len(waiting) > more:
                yield waiting.pop(0).result()
        for last in waiting:
            yield last.result()


def windows(items: Iterable[Item], size: int) -> Iterator[tuple[list[Item], bool]]:
    """Consecutive items, at most `size` at a time, and whether to read on before they are computed.

    A window ends early where its texts are long together, where the source would have to be waited for, and before it
    fails. After a long text the next window is shorter: so that windows also begin at every multiple of `size`, from
    where an interrupted run resumes.
    """
    ready = items.ready if isinstance(items, Live) else None
    window: list[Item] = []
    length, seen = 0, set[int]()  # of its texts; many questions may have the same context
    try:
        for number, item in enumerate(items, 1):
            window.append(item)
            for text in item if isinstance(item, tuple) else (item,):
                if isinstance(text, str) and id(text) not in seen:
                    seen.add(id(text))
                    length += len(text)
            more = ready is None or ready()
            if number % size == 0 or not more or length > _TOGETHER:
                yield window, more
                window, length, seen = [], 0, set()
    except Exception:
        yield window, False
        raise
    if window:
        yield window, False


def _prepared(item: Item | InputError, prepare: Callable[[Item], Job]) -> Job | InputError:
    if isinstance(item, InputError):
        return item
    try:
        return prepare(item)
    except InputError as problem:
        return problem


def in_halves(items: Sequence[Item], compute: Callable[[Sequence[Item]], Output]) -> list[Output]:
    """`compute` of some items; of parts of them, each half as many, where the device has too little memory for all.

    Returns:
        What it gives, for each part in their order.

    Raises:
        DeviceError: The device failed otherwise, or has too little memory for one item.
    """
    several = len(items) > 1
    try:
        with device_errors(_SMALLER if several else USUAL):
            return [compute(items)]
    except OutOfMemoryError:
        if not several:
            raise
    mx.clear_cache()  # not while the error is handled: it may hold arrays of what failed
    hint_once(f"the device had too little memory for a batch, which is computed in parts; {_SMALLER}")
    middle = len(items) // 2
    return [*in_halves(items[:middle], compute), *in_halves(items[middle:], compute)]


def compute_all(rows: int, compute: Callable[[], Sequence[Any]]) -> Sequence[Any]:
    """A `Take` of a process that computes every batch."""
    return compute()


def run_batches(
    encodings: Sequence[Encoding],
    compute: Callable[[Batch, list[int]], Sequence[Output]],
    config: EncoderConfig,
    batch_tokens: int | None,
    usage: Usage | None = None,
    take: Take = compute_all,
) -> Iterator[Output]:
    """Runs `compute` on batches of encodings; yields its outputs in the order of the encodings, each when it is known.

    A batch for which the memory does not suffice is computed in halves.

    Args:
        encodings: The inputs of the model.
        compute: Takes a batch and the numbers of its encodings, returns one output for each.
        config: The encoder's facts: its longest input, its padding.
        batch_tokens: Tokens per batch, padding included; `None` for the default.
        usage: Counts what is computed.
        take: Called once for each batch; computes its outputs, or leaves them to another process.

    Raises:
        DeviceError: The device failed, or has too little memory for one encoding.
    """
    outputs: dict[int, Output] = {}
    following = 0
    lengths = [padded_length(len(encoding), config.max_length) for encoding in encodings]
    groups = plan(lengths, default_batch_tokens() if batch_tokens is None else batch_tokens)
    known = _remember.get()

    def computed(group: list[int]) -> Sequence[Output]:
        if usage is not None:
            usage.add([len(encodings[number]) for number in group], max(lengths[number] for number in group))
        return take(len(group), lambda: [*chain.from_iterable(in_halves(group, forward))])

    def forward(group: Sequence[int]) -> Sequence[Output]:
        return compute(make_batch([encodings[number] for number in group], config), [*group])

    for group in sorted(groups, key=min):  # those with the first encodings come first
        if known is None:
            found = computed(group)
        else:
            ids = [encodings[number].ids for number in group]
            found = known(hashlib.sha256(repr(ids).encode()).hexdigest(), partial(computed, group))
        outputs.update(zip(group, found, strict=True))
        while following in outputs:
            yield outputs.pop(following)
            following += 1


@contextmanager
def remembering(how: Remember | None) -> Iterator[None]:
    """Meanwhile, the outputs of all batches come from a function, which may know some of them; in order."""
    token = _remember.set(how)
    try:
        yield
    finally:
        _remember.reset(token)
