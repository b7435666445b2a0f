"""The requests of an engine, and the choice of the items for the next batch."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from mlxbert.results.short_repr import Brief
from mlxbert.serve.engine.result_memory import Budget, MemoryClaim
from mlxbert.tasks.catalogue import TaskEntry
from mlxbert.tasks.options import TaskOptions
from mlxbert.tasks.task import PreparedItem, Task

_Result = TypeVar("_Result")
AnyTask = Task[Any, Any, Any, Any]
_MAX_SIZE = 2**24  # bytes of the results of a batch, unless a single item has more


class Key(NamedTuple):
    """Identifies requests whose items can share batches.

    Whatever may differ within a batch is not in the key but in the items, such as the query of a pair to score.
    """

    model: str
    entry: TaskEntry
    options: TaskOptions


@dataclass(frozen=True)
class Answered(Brief, Generic[_Result]):
    """The answer of an engine to a request.

    Attributes:
        results: The results of the task in the order of the items; a `Failure` for an unusable item.
        tokens: The number of tokens of all items, including special tokens.
        truncated: The indices of the items that were truncated to fit the model.
    """

    results: Sequence[_Result]
    tokens: int
    truncated: Sequence[int]


@dataclass(eq=False)
class Request:
    """A request of a caller."""

    key: Key  # the key, which is equal for requests that can share batches
    items: Sequence[Any]  # the items to compute
    served: float  # the time when the request arrived, or when its last batch began, in seconds of the monotonic clock
    budget: Budget | None = None  # the memory that the results may take; `None` for no limit
    future: "Future[Answered[Any]]" = field(default_factory=Future)  # receives the answer
    results: list[Any] = field(default_factory=list)  # the results by item; `None` for an unfinished item
    unfinished: int = 0  # the number of unfinished items
    prepared: int = 0  # the number of items that have been tokenized
    tokens: int = 0  # see `Answered`
    truncated: list[int] = field(default_factory=list)  # see `Answered`
    claim: MemoryClaim | None = None  # the claimed memory, once the maximum size of the results is known
    size: int = 0  # the size of the results of the prepared items in bytes

    def __post_init__(self) -> None:
        self.results, self.unfinished = [None] * len(self.items), len(self.items)

    @property
    def over(self) -> bool:
        return not self.unfinished or self.future.done()

    def answered(self) -> Answered[Any]:
        return Answered(self.results, self.tokens, sorted(self.truncated))


@dataclass(frozen=True, eq=False)
class QueuedItem:
    """An item of a request, ready to be computed."""

    request: Request
    number: int  # the index of the item in the request
    task: AnyTask  # the task that computes the item
    job: PreparedItem[Any]
    tokens: int  # the number of tokens of its encodings
    size: int = 0  # the size of its result in bytes


def choose(entries: Sequence[QueuedItem], budget: Callable[[QueuedItem], int], overdue: float) -> list[QueuedItem]:
    """Chooses entries with the same key and similar lengths for the next batch, within limits of tokens and bytes.

    The request that was served least recently decides on the key. Short entries come first, unless that request was
    last served before `overdue`. The `budget` of an entry is the maximum number of tokens in its batch; an entry with
    more tokens is computed alone.
    """
    first = min(entries, key=lambda entry: entry.request.served)
    same = [entry for entry in entries if entry.request.key == first.request.key]
    if first.request.served > overdue:
        first = min(same, key=lambda entry: entry.tokens)
    same.sort(key=lambda entry: abs(entry.tokens - first.tokens))  # stable: of equal lengths the oldest first
    chosen, total, size, limit = [first], first.tokens, first.size, budget(first)
    for entry in same:
        if entry is not first and total + entry.tokens <= limit and size + entry.size <= _MAX_SIZE:
            chosen.append(entry)
            total, size = total + entry.tokens, size + entry.size
    return chosen
