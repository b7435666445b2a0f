"""The base of all results, and `Failure`, which takes the place of a result that failed."""

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
        """Makes a result of the values from `to_dict`, as sent by a server; omitted fields may be present, too."""
        import msgspec

        return msgspec.convert(values, cls)


@dataclass(frozen=True)
class Failure(Shown):
    """Takes the place of a result whose input was unusable.

    Attributes:
        index: The index of the input in the stream, from 0.
        error: The error of the input.
    """

    index: int
    error: MlxbertError

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """`{"index": …, "error": …}`."""
        return {"index": self.index, "error": self.error.message}
