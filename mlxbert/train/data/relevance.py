"""Reads queries, texts and the relevance of each text: the training data of cross-encoders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlxbert.errors import InputError
from mlxbert.readers.stream import Record
from mlxbert.train.data.columns import Search
from mlxbert.train.data.labelled_rows import LabelledRows
from mlxbert.train.data.labelled_texts import (
    LabelledText,
    get_text,
    get_value,
    labelled_rows,
    plain,
    read_each,
    to_number,
)
from mlxbert.train.data.related_texts import NEGATIVES, POSITIVES, QUERY, has_groups, read_group


class JudgedPair(LabelledText):
    """A query (`text`), a text (`pair`), and the relevance of the text, from 0 to 1 (`label`)."""

    __slots__ = ()
    label: float

    @property
    def group(self) -> str:
        """The query: pairs with the same query are never split between training and validation data."""
        return self.text


@dataclass(frozen=True)
class RelevanceColumns:
    """The columns to read."""

    query: str
    # The column of the text; `None` if rows have `positives` and `negatives` instead of a text and a label.
    text: str | None
    label: str | None  # the column of the label; `None` if `text` is `None`
    guessed: tuple[str, ...] = ()  # the roles whose columns were guessed

    @property
    def groups(self) -> bool:
        """Whether the rows are query groups, with `positives` and `negatives` instead of a text and a label."""
        return self.text is None

    def to_dict(self) -> dict[str, str]:
        """Returns the columns by role: `query`, `text` and `label`, or `query`, `positives` and `negatives`."""
        if self.text is None or self.label is None:
            return {QUERY: self.query, POSITIVES: POSITIVES, NEGATIVES: NEGATIVES}
        return {QUERY: self.query, "text": self.text, "label": self.label}

    def fit(self, rows: LabelledRows) -> bool:
        return has_groups(rows.columns) if self.groups else {*self.to_dict().values()} <= {*rows.columns}


def find_relevance_columns(rows: LabelledRows, **named: str | None) -> RelevanceColumns:
    """Finds the columns by their usual names.

    Rows with a column `positives` or `negatives` are query groups, unless the user named a column of texts or labels.
    """
    search = Search(rows, "rerank", named)
    roles = search.found
    if has_groups(rows.columns) and not {"text", "label"} & roles.keys():
        return RelevanceColumns(roles.get("query", QUERY), None, None, () if "query" in roles else ("query",))
    if not {"query", "text"} <= roles.keys() and not search.take_pair("query", "text", any_name=True):
        raise search.refused(
            "the columns of query and text cannot be guessed", "choose them with `query_column=` and `text_column=`"
        )
    if "label" not in roles:
        search.take_label()
    search.check_header()
    return RelevanceColumns(roles["query"], roles["text"], roles["label"], search.guessed)


def read_judged(rows: Sequence[Record], columns: RelevanceColumns, max_score: float = 1.0) -> list[JudgedPair]:
    """Reads the pairs of rows. A query group yields a pair for each positive (label 1) and each negative (label 0).

    All labels are divided by `max_score`, the largest possible one.
    """
    if columns.label is not None:
        rows = labelled_rows(rows, columns.label)
    pairs = read_each(rows, lambda row: _group(row, columns) if columns.groups else [_single(row, columns, max_score)])
    return [pair for row_pairs in pairs for pair in row_pairs]


def _group(row: Record, columns: RelevanceColumns) -> list[JudgedPair]:
    group = read_group(row.values, columns.query)
    labelled = ((text, label) for texts, label in ((group.positives, 1.0), (group.negatives, 0.0)) for text in texts)
    return [JudgedPair(group.query, text, label, row.where) for text, label in labelled]


def _single(row: Record, columns: RelevanceColumns, max_score: float) -> JudgedPair:
    assert columns.text is not None and columns.label is not None
    query, text = (get_text(row.values, column) for column in (columns.query, columns.text))
    return JudgedPair(query, text, _label(row.values, columns.label, max_score), row.where)


def _label(values: Mapping[str, Any], column: str, max_score: float) -> float:
    value = plain(get_value(values, column))
    if isinstance(value, bool):
        return float(value)
    number = to_number(value, column)
    if not 0 <= number <= max_score:
        raise InputError(
            f"{column!r} is {number:g}, expected a number from 0 to {max_score:g}",
            hint="for scores from 0 to 5, give `max_score=5`" if number >= 0 else None,
        )
    return number / max_score
