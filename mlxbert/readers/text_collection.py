"""Many texts in memory, each with its record.

Shapes: N texts, W values per vector.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mlxbert.lazy_numpy import NDArray, np
from mlxbert.readers.stream import Record

Vectors: TypeAlias = "NDArray[np.float32]"


@dataclass
class TextCollection:
    """Many texts in memory."""

    texts: list[str] = field(default_factory=list)  # the N texts
    records: list[Record] = field(default_factory=list)
    # The index of each text in the input, from 0, which also counts unusable inputs.
    places: list[int] = field(default_factory=list)
    vectors: "Vectors | None" = None  # the vectors, (N, W), if they are given; otherwise `None`
    text_name: str = "text"  # the field or column of the texts
    failed: int = 0  # the number of unusable inputs
    sources: tuple[str, ...] = ()  # the files that the texts come from
    names: Sequence[str] = ()  # the place of each text, if it is a passage of an index: `notes/a.md:3`

    def row(self, number: int) -> dict[str, Any]:
        """Returns the values of a text's record, and the text."""
        return {**self.records[number].values, self.text_name: self.texts[number]}

    def json_row(self, number: int) -> dict[str, Any]:
        """Returns the row of a text with values of JSON."""
        return self.records[number].as_json() | {self.text_name: self.texts[number]}

    def described(self, number: int) -> dict[str, Any]:
        """Returns what JSON says about a text: its index in the input, the values of its record, and the text."""
        place = {"index": self.places[number]}
        return {**place, **self.json_row(number), **place}
