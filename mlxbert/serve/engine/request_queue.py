"""What an engine still has to compute: requests, and which of their texts go into the next batch."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mlxbert.results.brief import Brief
from mlxbert.serve.engine.answer_memory import Budget, Claim
from mlxbert.tasks.catalogue import TaskEntry
from mlxbert.tasks.options import TaskOptions
from mlxbert.tasks.task import PreparedItem, Task

AnyTask = Task[Any, Any, Any, Any]
_SIZE = 2**24  # bytes of the results of a batch, at most, unless one alone has more


class Key(NamedTuple):
    """What requests have in common whose items are computed in the same batches.

    What differs from item to item is part of the item, as the query is part of a pair that is scored.
    """

    model: str
    entry: TaskEntry
    options: TaskOptions


@dataclass(frozen=True)
class Answered(Brief):
    """What an engine gives for a request.

    Attributes:
        results: The results of the task in the order of the items; a `Failure` for an item that cannot be used.
        tokens: Of all items together, special tokens included.
        truncated: The numbers of the items that were truncated to fit the model.
    """

    results: Sequence[Any]
    tokens: int
    truncated: Sequence[int]


@dataclass(eq=False)
class Request:
    """What a caller has asked for.

    Attributes:
        key: What it can share batches with.
        items: What is to be computed.
        served: When it came, or last got a batch, in seconds of the monotonic clock.
        future: Gets the results.
        results: Those that are known.
        unfinished: How many are not.
        prepared: How many items have been made into jobs.
        tokens: See `Answered`; so is `truncated`.
        budget: What it may take; `None` for any amount.
        claim: What it has taken, once it is known how much that may be.
        size: Bytes of the results of what is prepared.
    """

    key: Key
    items: Sequence[Any]
    served: float
    budget: Budget | None = None
    future: "Future[Answered]" = field(default_factory=Future)
    results: list[Any] = field(default_factory=list)
    unfinished: int = 0
    prepared: int = 0
    tokens: int = 0
    truncated: list[int] = field(default_factory=list)
    claim: Claim | None = None
    size: int = 0

    def __post_init__(self) -> None:
        self.results, self.unfinished = [None] * len(self.items), len(self.items)

    @property
    def over(self) -> bool:
        """Whether nothing more is to be done: it is answered, cancelled, or failed."""
        return not self.unfinished or self.future.done()

    def answered(self) -> Answered:
        """What the caller gets."""
        return Answered(self.results, self.tokens, sorted(self.truncated))


@dataclass(frozen=True, eq=False)
class QueuedItem:
    """An item of a request, ready to be computed.

    Attributes:
        request: The request.
        number: Which of its items it is.
        task: Computes it.
        job: The item, prepared.
        tokens: How many tokens its encodings have.
        size: Bytes of its result.
    """

    request: Request
    number: int
    task: AnyTask
    job: PreparedItem[Any]
    tokens: int
    size: int = 0


def choose(entries: Sequence[QueuedItem], budget: Callable[[QueuedItem], int], overdue: float) -> list[QueuedItem]:
    """Which entries are computed next: of one key, similar in length, and together within bounds of tokens and bytes.

    The request that has got nothing for the longest time decides on the key. Short ones come first; but what has waited
    since before `overdue` comes before them.

    Args:
        entries: Those that wait, in the order in which they came; at least one.
        budget: The tokens of a batch with an entry; a longer one is computed alone.
        overdue: In seconds of the monotonic clock.
    """
    first = min(entries, key=lambda entry: entry.request.served)
    same = [entry for entry in entries if entry.request.key == first.request.key]
    if first.request.served > overdue:
        first = min(same, key=lambda entry: entry.tokens)
    same.sort(key=lambda entry: abs(entry.tokens - first.tokens))  # stable: of equal ones the oldest first
    chosen, total, size, most = [first], first.tokens, first.size, budget(first)
    for entry in same:
        if entry is not first and total + entry.tokens <= most and size + entry.size <= _SIZE:
            chosen.append(entry)
            total, size = total + entry.tokens, size + entry.size
    return chosen
