"""Texts with related texts, from rows: pairs, triplets, lists of positives and negatives, scored pairs, texts alone."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mlxbert.data.columns import PAIR_NAMES, QUERY_NAMES, check_header, check_named, plain_name, usual_pair
from mlxbert.data.labelled import first_problem, get_text, get_value, plain, to_number
from mlxbert.data.ranking.groups import NEGATIVES, POSITIVES, texts_of
from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.rows import Row, Rows

Kind = Literal["texts", "pairs", "scored"]
# Usual names, the earlier ones win.
_POSITIVE, _NEGATIVE = ("positive", POSITIVES), ("negative", NEGATIVES)
_TEXT = ("anchor", "query", "question", "text", "sentence", "sentence1", "premise", "title")
_PAIRS = (*QUERY_NAMES, *PAIR_NAMES, ("title", "text"), ("title", "body"), ("question", "context"))
_SCORE = ("score", "similarity", "similarity_score", "label", "relatedness_score", "is_duplicate")
_SAMPLE, _LONG = 100, 20  # rows in which other columns of texts are looked for; characters of a text, on average


@dataclass(frozen=True)
class RelatedColumns:
    """The columns that are read.

    Attributes:
        text: The text, or query.
        pair: Texts that belong to it; `None` for texts alone.
        negatives: Columns of texts that do not.
        label: How similar text and pair are; `None` where all pairs belong together.
        guessed: Which of these were guessed.
    """

    text: str
    pair: str | None = None
    negatives: tuple[str, ...] = ()
    label: str | None = None
    guessed: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """What the records are."""
        return "scored" if self.label is not None else "texts" if self.pair is None else "pairs"

    def to_dict(self) -> dict[str, str]:
        """The columns by what they hold."""
        found = {"text": self.text, "pair": self.pair, "label": self.label}
        found |= dict(zip(_numbered(self.negatives), self.negatives, strict=True))
        return {role: column for role, column in found.items() if column is not None}


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


def _numbered(columns: Sequence[str]) -> list[str]:
    """What columns of negatives are called: `negative`, or where there are several, by their numbers."""
    return ["negative"] if len(columns) == 1 else [f"negative {number + 1}" for number in range(len(columns))]


def find_related_columns(
    rows: Rows,
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    negative_column: str | None = None,
    label_column: str | None = None,
) -> RelatedColumns:
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
    names = {plain_name(column): column for column in rows.columns if column not in given.values()}
    negatives = (negative_column,) if negative_column is not None else _negatives(names)
    positive = next((names[name] for name in _POSITIVE if name in names), None)
    text, pair = _pair(rows, names, text_column, pair_column or positive)
    label = label_column
    if label is None and pair is not None and not negatives and (positive is None or pair_column is not None):
        label = next((names[name] for name in _SCORE if name in names and names[name] not in (text, pair)), None)
    if pair is None and (what := label_column or next(iter(negatives), None)):
        raise InputError(
            f"{', '.join(rows.files)}: there is {what!r}, and no column of the texts that belong to {text!r}",
            hint="choose it with pair_column=",
        )
    found = {"text": text, "pair": pair, "label": label, "negative": negatives[0] if negatives else None}
    guessed = tuple(role for role, column in found.items() if column is not None and given[role] is None)
    check_header(rows, [column for role, column in found.items() if column is not None and role in guessed])
    return RelatedColumns(text, pair, () if label is not None else negatives, label, guessed)


def _negatives(names: Mapping[str, str]) -> tuple[str, ...]:
    """The column of negatives, or the columns `negative_1`, `negative_2` and so on."""
    if named := next((names[name] for name in _NEGATIVE if name in names), None):
        return (named,)
    return tuple(column for name, column in names.items() if re.fullmatch(r"negative_\d+", name))


def _pair(rows: Rows, names: Mapping[str, str], text: str | None, pair: str | None) -> tuple[str, str | None]:
    """The columns of the text and of what belongs to it; `None` for texts alone."""
    if pair is None and text is None:
        first, second = usual_pair([*names.values()], _PAIRS)
        if first is not None:
            return first, second
    rest = [column for column in names.values() if column != pair]
    usual = next((names[name] for name in _TEXT if names.get(name) in rest), None)
    found = text or usual or (rest[0] if len(rest) == 1 else None)
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


def read_related(rows: Sequence[Row], columns: RelatedColumns) -> list[Related]:
    """The records of rows. A column of positives or negatives holds a text or a list of texts.

    Raises:
        InputError: A text or a score is missing or of the wrong type, or a text is a negative of itself; the message
            begins with the place of the first such row, and counts the others.
    """
    found: list[Related] = []
    problems: list[InputError] = []
    for row in rows:
        try:
            found.append(_related(row, columns))
        except InputError as problem:
            problems.append(InputError(f"{row.place}: {problem.message}", hint=problem.hint))
    if problems:
        raise first_problem(problems)
    return found


def _related(row: Row, columns: RelatedColumns) -> Related:
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
