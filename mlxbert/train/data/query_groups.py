"""Reads query groups, each of which is a query with texts that answer it and texts that do not."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mlxbert.durable_files import from_json
from mlxbert.errors import InputError
from mlxbert.train.data.labelled_texts import check_text, get_text, plain

QUERY, POSITIVES, NEGATIVES = "query", "positives", "negatives"


@dataclass(frozen=True, slots=True)
class QueryGroup:
    """A query, the texts that answer it, and texts that do not."""

    query: str
    positives: tuple[str, ...]  # texts that answer the query
    negatives: tuple[str, ...]  # texts that do not answer the query


def has_groups(columns: Sequence[str]) -> bool:
    """Whether rows with these columns are query groups."""
    return POSITIVES in columns or NEGATIVES in columns


def read_group(values: Mapping[str, Any], query_column: str = QUERY) -> QueryGroup:
    """Reads the query and the texts of a record. A field may hold a single text or a list; duplicates are dropped."""
    query = get_text(values, query_column)
    positives, negatives = (texts_of(values, name) for name in (POSITIVES, NEGATIVES))
    if not positives and not negatives:
        expected = f"expected texts in {POSITIVES!r} or {NEGATIVES!r}"
        raise InputError(f"the query {query!r:.60} has no texts, {expected}")
    positive_set = {*positives}
    shared = next((text for text in negatives if text in positive_set), None)
    if shared is not None:
        raise InputError(f"the text {shared!r:.60} is in both {POSITIVES!r} and {NEGATIVES!r} of the query")
    return QueryGroup(query, positives, negatives)


def texts_of(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Returns the texts of a field without duplicates; the field holds a text, a list, or a list written as JSON."""
    value = plain(values.get(name))
    if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
        with suppress(ValueError):
            value = from_json(value)
    texts = [] if value is None else value if isinstance(value, list | tuple) else [value]
    for text in texts:
        check_text(text, name)
    return tuple(dict.fromkeys(texts))
