"""Records of a query with the texts that answer it and those that do not."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mlxbert.data.labelled_texts import check_text, get_text, plain
from mlxbert.errors import InputError
from mlxbert.files import from_json

QUERY, POSITIVES, NEGATIVES = "query", "positives", "negatives"


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """A query with its texts.

    Attributes:
        query: The query.
        positives: Texts that answer it.
        negatives: Texts that do not.
    """

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]


def has_groups(columns: Sequence[str]) -> bool:
    """Whether rows with these columns are such records."""
    return POSITIVES in columns or NEGATIVES in columns


def read_group(values: Mapping[str, Any], query_column: str = QUERY) -> QueryGroup:
    """The query and the texts of a record; a text alone stands for a list with it, and equal ones for one.

    Args:
        values: The fields of a record: the query, and `positives`, `negatives` or both.
        query_column: The field of the query.
    """
    query = get_text(values, query_column)
    positives, negatives = (texts_of(values, name) for name in (POSITIVES, NEGATIVES))
    if not positives and not negatives:
        said = f"expected {POSITIVES!r}, {NEGATIVES!r} or both"
        raise InputError(f"there is no text for the query {query!r:.60}, {said}")
    known = {*positives}
    both = next((text for text in negatives if text in known), None)
    if both is not None:
        raise InputError(f"the text {both!r:.60} is among {POSITIVES!r} and among {NEGATIVES!r} of one query")
    return QueryGroup(query, positives, negatives)


def texts_of(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The texts of a field: none, one or a list of them, also one in JSON as a table holds it; equal ones once."""
    given = plain(values.get(name))
    if isinstance(given, str) and given.startswith("[") and given.endswith("]"):
        with suppress(ValueError):
            given = from_json(given)
    texts = [] if given is None else given if isinstance(given, list | tuple) else [given]
    for text in texts:
        check_text(text, name)
    return tuple(dict.fromkeys(texts))
