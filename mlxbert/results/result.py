"""What all results have in common, and what stands for one that failed."""

from dataclasses import dataclass
from typing import Any

from mlxbert.errors import MlxbertError
from mlxbert.results.html import Shown
from mlxbert.results.json import Each, listed


@dataclass(frozen=True, eq=False)
class Result(Shown):
    """Base of all results."""


@dataclass(frozen=True)
class Failure(Shown):
    """Stands in the place of a result whose input could not be used.

    Attributes:
        index: Place of the input in the stream, from 0.
        error: Why.
    """

    index: int
    error: MlxbertError

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """`{"index": …, "error": …}`."""
        return {"index": self.index, "error": self.error.message}
