"""What all results have in common, and what stands for one that failed."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mlxbert.errors import MlxbertError
from mlxbert.results.html import Shown


@dataclass(frozen=True, eq=False)
class Result(Shown):
    """Base of all results."""

    def to_dict(self) -> dict[str, Any]:
        """The result as plain dicts and lists, as the command line prints it; whether it was cut is counted there."""
        return without_counted(asdict(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Result":
        """The result of values that `to_dict` gives, as a server sends them; what it leaves out may be among them."""
        import msgspec

        return msgspec.convert(values, cls)


Each = Callable[[Sequence[Any], Callable[[Any], Any]], Any]  # parts and the JSON of each → a list of it


def listed(parts: Sequence[Any], show: Callable[[Any], Any]) -> list[Any]:
    """The JSON of parts, all in memory."""
    return [show(part) for part in parts]


class PartedResult(Result, ABC):
    """Base of results that may have very many parts, whose JSON a server makes one after the other."""

    @abstractmethod
    def to_dict(self, each: Each = listed) -> dict[str, Any]:
        """See `Result.to_dict`; `each` makes the lists of parts."""


def without_counted(values: dict[str, Any]) -> dict[str, Any]:
    """The values without those that the command line counts, and without a number of unknown tokens that is 0."""
    left_out = {"truncated", "only_unknown"} | ({"unknown_tokens"} if not values.get("unknown_tokens") else set())
    return {name: value for name, value in values.items() if name not in left_out}


def without_none(values: dict[str, Any]) -> dict[str, Any]:
    """The values without those that are `None`."""
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Failure(Shown):
    """Stands in the place of a result whose input could not be used.

    Attributes:
        index: Place of the input in the stream, from 0.
        error: Why.
    """

    index: int
    error: MlxbertError

    def to_dict(self) -> dict[str, Any]:
        """`{"index": …, "error": …}`."""
        return {"index": self.index, "error": self.error.message}
