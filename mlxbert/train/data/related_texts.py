"""Reads texts with related texts: query groups, pairs, triplets, lists of positives and negatives, and single texts."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mlxbert.durable_files import from_json
from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.stream import Record
from mlxbert.readers.text_column import plain_name
from mlxbert.train.data.columns import ColumnNames, Search
from mlxbert.train.data.labelled_rows import LabelledRows
from mlxbert.train.data.labelled_texts import (
    check_text,
    get_text,
    get_value,
    labelled_rows,
    plain,
    read_each,
    to_number,
)

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


_SAMPLE, _LONG = 100, 20  # rows in which other columns of texts are looked for; their average length


@dataclass(frozen=True, slots=True)
class Related:
    """A text, texts that belong to it, and texts that do not."""

    text: str  # the text, or query
    # Texts that belong to the text. There are none if the data are single texts, and exactly one if there is a score.
    positives: tuple[str, ...]
    negatives: tuple[str, ...]  # texts that do not belong to the text
    label: float | None  # the similarity of the text and its positive, if there is a score
    place: str  # where the record begins: `train.csv, line 17`

    @property
    def key(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        return self.text, self.positives, self.negatives

    @property
    def group(self) -> str:
        """The text: records with the same text are never split between training and validation data."""
        return self.text

    @property
    def names(self) -> tuple[str, ...]:
        return ()


def find_related_columns(rows: LabelledRows, **named: str | None) -> ColumnNames:
    """Finds, by their usual names, the columns that the user did not name.

    A column `positive` is read unless the user named `pair_column`. Other second texts are looked for only if the user
    named neither `text_column` nor `pair_column`. If only one column holds texts, the data are single texts. The
    columns `negative_1`, `negative_2`, … are all read. A score is read if the user named its column, or if there is
    neither a column `positive` nor a column of negatives.
    """
    search = Search(rows, "embed", named)
    roles = search.found
    if "negative" in roles and "label" in roles:
        raise ArgumentError(
            "`negative_column` and `label_column` cannot be combined",
            hint=f"use either the negatives in {roles['negative']!r} or the scores in {roles['label']!r}",
        )
    negatives = _negatives(search)
    positive = "pair" not in roles and search.take("pair")
    if "text" not in roles and ("pair" in roles or not search.take_pair("text", "pair")):
        _take_text(search, [column for column in search.rest if column not in negatives])
    if "label" not in roles and "pair" in roles and not negatives and not positive:
        search.take("label")
    if "pair" not in roles and (extra := roles.get("label") or next(iter(negatives), None)):
        raise InputError(
            f"{', '.join(rows.files)}: column {extra!r} needs pairs of texts, but the only text column found is "
            f"{roles['text']!r}",
            hint="choose the column of second texts with `pair_column=`",
        )
    search.check_header()
    return search.columns(() if "label" in roles else negatives)


def _negatives(search: Search) -> tuple[str, ...]:
    """Finds the columns of negatives: a single column, or `negative_1`, `negative_2` and so on."""
    if "negative" not in search.found and not search.take("negative"):
        several = tuple(column for column in search.rest if re.fullmatch(r"negative_\d+", plain_name(column)))
        search.found |= {"negative": several[0]} if several else {}
        return several
    return (search.found["negative"],)


def _take_text(search: Search, columns: Sequence[str]) -> None:
    """Finds the column of the text among `columns`.

    Raises InputError if there is none, or if another column also holds long texts although there is no second text.
    """
    if not search.take("text", columns) and len(columns) == 1 and "negative" not in search.guessed:
        search.found["text"] = columns[0]
    text = search.found.get("text")
    long_texts = [] if "pair" in search.found else [column for column in columns if _is_text(search.rows, column)]
    if text is None or {*long_texts} - {text}:
        search.check_header(search.rows.columns)
        raise search.refused(
            f"the columns of texts cannot be guessed, because texts are in {' and '.join(map(repr, long_texts))}"
            if long_texts
            else "no column is known to contain the texts",
            "choose the columns with `text_column=` and `pair_column=`, or only `text_column=` for single texts",
            long_texts,
        )


def _is_text(rows: LabelledRows, column: str) -> bool:
    values = [row.values.get(column) for row in rows[:_SAMPLE]]
    texts = [value for value in values if isinstance(value, str)]
    return bool(texts) and sum(map(len, texts)) >= _LONG * len(texts)


def read_related(rows: Sequence[Record], columns: ColumnNames) -> list[Related]:
    """Reads the records of rows. A column of positives or negatives holds one text or a list of texts."""
    if columns.label is not None:
        rows = labelled_rows(rows, columns.label)
    return read_each(rows, lambda row: _related(row, columns))


def _related(row: Record, columns: ColumnNames) -> Related:
    text = get_text(row.values, columns.text)
    if columns.pair is None:
        return Related(text, (), (), None, row.where)
    if columns.label is not None:
        score = to_number(plain(get_value(row.values, columns.label)), columns.label)
        return Related(text, (get_text(row.values, columns.pair),), (), score, row.where)
    positives = texts_of(row.values, columns.pair)
    if not positives:
        raise InputError(f"{columns.pair!r} is missing or empty, expected a text or a list of texts")
    for column in columns.negatives:
        if plain_name(column) != NEGATIVES:  # a list of negatives may be missing, the third text of a triplet may not
            get_value(row.values, column)
    negatives = tuple(text for column in columns.negatives for text in texts_of(row.values, column))
    shared = next((negative for negative in negatives if negative in positives), None)
    if shared is not None:
        raise InputError(f"the text {shared!r:.60} is both in {columns.pair!r} and among the negatives")
    return Related(text, positives, negatives, None, row.where)
