"""Texts with related texts, from rows: pairs, triplets, lists of positives and negatives, scored pairs, texts alone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mlxbert.data.columns import (
    PAIR_NAMES,
    QUERY_NAMES,
    ROLES,
    Columns,
    check_header,
    check_named,
    first_usual,
    plain_name,
    usual_pair,
)
from mlxbert.data.groups import NEGATIVES, texts_of
from mlxbert.data.labelled import get_text, get_value, plain, read_each, to_number
from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.rows import Row, Rows

_ROLES = ROLES["embed"]
_PAIRS = (*QUERY_NAMES, *PAIR_NAMES, ("title", "text"), ("title", "body"), ("question", "context"))
_SAMPLE, _LONG = 100, 20  # rows in which other columns of texts are looked for; characters of a text, on average


@dataclass(frozen=True, slots=True)
class Related:
    """A text, the texts that belong to it, and texts that do not.

    Attributes:
        text: The text, or query.
        positives: Texts that belong to it; none for a text alone. One, if there is a score.
        negatives: Texts that do not.
        label: How similar the text and its pair are, if that is known.
        place: Where the record begins: `train.csv, line 17`.
    """

    text: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    label: float | None
    place: str

    @property
    def key(self) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
        """What makes two records the same input."""
        return self.text, self.positives, self.negatives

    @property
    def group(self) -> str:
        """The text: all records of a query are in the training data, or all in the validation data."""
        return self.text

    @property
    def names(self) -> tuple[str, ...]:
        """No labels."""
        return ()


def find_related_columns(
    rows: Rows,
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    negative_column: str | None = None,
    label_column: str | None = None,
) -> Columns:
    """Finds the columns that are not named, by usual names.

    A second text is looked for if neither text is named. Data with one column of texts are texts alone. Several columns
    `negative_1`, `negative_2`, … are all read. A score is read where it is named, and otherwise where there is neither
    a column `positive` nor negatives.

    Raises:
        ArgumentError: A column is not there, is named for two purposes, or a score and negatives are both named.
        InputError: The columns of texts cannot be found, or a table seems to have no line with names.
    """
    given = {"text": text_column, "pair": pair_column, "negative": negative_column, "label": label_column}
    check_named(given, rows.columns)
    if negative_column is not None and label_column is not None:
        raise ArgumentError(f"columns {negative_column!r} of negatives and {label_column!r} of scores are both named")
    names = [column for column in rows.columns if column not in given.values()]
    negatives = (negative_column,) if negative_column is not None else _negatives(names)
    positive = first_usual(names, _ROLES["positive"])
    text, pair = _pair(rows, names, text_column, pair_column or positive)
    label = label_column
    if label is None and pair is not None and not negatives and (positive is None or pair_column is not None):
        label = first_usual([name for name in names if name not in (text, pair)], _ROLES["label"])
    if pair is None and (what := label_column or next(iter(negatives), None)):
        raise InputError(
            f"{', '.join(rows.files)}: there is {what!r}, and no column of the texts that belong to {text!r}",
            hint="choose it with pair_column=",
        )
    found = {"text": text, "pair": pair, "label": label, "negative": negatives[0] if negatives else None}
    guessed = tuple(role for role, column in found.items() if column is not None and given[role] is None)
    check_header(rows, [column for role, column in found.items() if column is not None and role in guessed])
    return Columns(text, pair, label, guessed, () if label is not None else negatives)


def _negatives(columns: Sequence[str]) -> tuple[str, ...]:
    """The column of negatives, or the columns `negative_1`, `negative_2` and so on."""
    if named := first_usual(columns, _ROLES["negative"]):
        return (named,)
    return tuple(column for column in columns if re.fullmatch(r"negative_\d+", plain_name(column)))


def _pair(rows: Rows, columns: Sequence[str], text: str | None, pair: str | None) -> tuple[str, str | None]:
    """The columns of the text and of what belongs to it; `None` for texts alone."""
    if pair is None and text is None:
        first, second = usual_pair(columns, _PAIRS)
        if first is not None:
            return first, second
    rest = [column for column in columns if column != pair]
    found = text or first_usual(rest, _ROLES["text"]) or (rest[0] if len(rest) == 1 else None)
    others = [] if pair is not None or text is not None else [column for column in rest if _is_text(rows, column)]
    if found is None or {*others} - {found}:
        said = "cannot be guessed" if found is None else f"may be {' and '.join(map(repr, others))}, or one alone"
        raise InputError(
            f"{', '.join(rows.files)}: the columns of texts {said}; the data have: {', '.join(rows.columns)}",
            hint="choose the columns with text_column= and pair_column=; text_column= alone for texts alone",
        )
    return found, pair


def _is_text(rows: Rows, column: str) -> bool:
    values = [row.values.get(column) for row in rows[:_SAMPLE]]
    texts = [value for value in values if isinstance(value, str)]
    return bool(texts) and sum(map(len, texts)) >= _LONG * len(texts)


def read_related(rows: Sequence[Row], columns: Columns) -> list[Related]:
    """The records of rows. A column of positives or negatives holds a text or a list of texts.

    Raises:
        InputError: A text or a score is missing or of the wrong type, or a text is a negative of itself; the message
            begins with the place of the first such row, and counts the others.
    """
    return read_each(rows, lambda row: _related(row, columns))


def _related(row: Row, columns: Columns) -> Related:
    text = get_text(row.values, columns.text)
    if columns.pair is None:
        return Related(text, (), (), None, row.place)
    if columns.label is not None:
        score = to_number(plain(get_value(row.values, columns.label)), columns.label)
        return Related(text, (get_text(row.values, columns.pair),), (), score, row.place)
    positives = texts_of(row.values, columns.pair)
    if not positives:
        raise InputError(f"{columns.pair!r} is missing or empty, expected a text or a list of texts")
    for column in columns.negatives:
        if plain_name(column) != NEGATIVES:  # a list of them may be missing, the third text of a triplet may not
            get_value(row.values, column)
    negatives = tuple(text for column in columns.negatives for text in texts_of(row.values, column))
    both = next((negative for negative in negatives if negative in positives), None)
    if both is not None:
        raise InputError(f"the text {both!r:.60} is both in {columns.pair!r} and among the negatives")
    return Related(text, positives, negatives, None, row.place)
