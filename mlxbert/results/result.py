"""The base class of all results, and `Failure`, which takes the place of the result of an unusable input."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mlxbert.errors import MlxbertError
from mlxbert.results.json import Each, listed
from mlxbert.results.notebook import Shown


@dataclass(frozen=True, eq=False)
class Result(Shown):
    """Base class of all results."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Result":
        """Makes a result from the output of `to_dict`; fields that `to_dict` omits may also be present."""
        import msgspec

        return msgspec.convert(values, cls)


@dataclass(frozen=True)
class Failure(Shown):
    """Takes the place of the result of an unusable input.

    Attributes:
        index: The index of the input in the stream, from 0.
        error: The error that says why the input is unusable.
    """

    index: int
    error: MlxbertError

    def to_dict(self, each: Each[Any] = listed) -> dict[str, Any]:
        """Returns `{"index": …, "error": …}`."""
        return {"index": self.index, "error": self.error.message}
