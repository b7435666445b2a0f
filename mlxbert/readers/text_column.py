"""Guesses from names and values which column of the records holds the texts."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

# Groups of typical names, in lower case, with underscores for spaces and hyphens. A name of an earlier group wins over
# later groups; several names of one group are ambiguous.
TEXT = (
    "text",
    "sentence review content question body comment tweet utterance query document message input article post "
    "review_text review_body comment_text sentences texts",
    "title headline description summary subject",
)
_NUMBERING = {"id", "idx", "index", "guid", "uid", "uuid", "row", "pair_id", "unnamed:_0", "__index_level_0__"}
_LONG = 20  # mean length from which strings look like texts rather than labels, in characters


def text_columns(columns: Sequence[str], sample: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the columns that may hold the text.

    These are the columns with a typical name; if there are none, those with long strings; otherwise all with strings.
    """
    for group in TEXT:
        if fitting := [column for column in columns if plain_name(column) in group.split()]:
            return fitting
    lengths = {column: mean_length(column, sample) for column in without_numbering(columns)}
    strings = {column: length for column, length in lengths.items() if length is not None}
    return [column for column, length in strings.items() if length >= _LONG] or [*strings]


def plain_name(column: str) -> str:
    """Returns a column name in the spelling of the typical names, so that it can be compared with them."""
    return column.strip().lower().replace(" ", "_").replace("-", "_")


def without_numbering(columns: Iterable[str]) -> list[str]:
    """Returns the columns without those that only number the records."""
    return [column for column in columns if plain_name(column) not in _NUMBERING]


def mean_length(column: str, records: Sequence[Mapping[str, Any]]) -> float | None:
    """Returns the mean length of a column's strings; `None` if not all are strings, or if all look like numbers."""
    values = [value for record in records if (value := record.get(column)) is not None]
    if not values or not all(isinstance(value, str) for value in values):
        return None
    if all(value.strip().replace(".", "").lstrip("-").isdecimal() for value in values):
        return None
    return mean(map(len, values))
