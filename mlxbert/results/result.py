"""What all results have in common, and what stands for one that failed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxbert.errors import MlxbertError
from mlxbert.results.json import Each, listed
from mlxbert.results.notebook import Shown


@dataclass(frozen=True, eq=False)
class Result(Shown):
    """Base of all results."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Result":
        """The result of values that `to_dict` gives, as a server sends them; what it leaves out may be among them."""
        import msgspec

        return msgspec.convert(values, cls)


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
