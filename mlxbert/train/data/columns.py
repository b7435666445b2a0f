"""Guesses from names and types which columns hold the inputs of a task.

`USUAL` lists the usual column names of each task, and `Search` finds the role of each column of a file.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.text_column import TEXT, mean_length, plain_name, text_columns, without_numbering
from mlxbert.readers.text_lines import uncompressed_name
from mlxbert.train.data.labelled_rows import LabelledRows, read_rows

_PAIRS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text_a", "text_b")),
    *(("text1", "text2"), ("sentence_a", "sentence_b"), ("sentence_1", "sentence_2"), ("text_1", "text_2")),
    *(("text", "pair"), ("text", "text2"), ("text", "text_2"), ("text", "text_b"), ("text", "second")),
    *(("s1", "s2"), ("query", "passage"), ("query", "document"), ("question", "passage"), ("question", "sentence")),
    ("a", "b"),
)
# Pairs of a query and an answering text.
_QUERIES = (
    *(("query", "text"), ("query", "answer"), ("query", "response"), ("question", "answer"), ("question", "text")),
    *(("question", "response"), ("query", "document"), ("query", "passage")),
)
_LABEL = (
    "label",
    "labels",
    "class category target sentiment intent score rating y classes categories tags emotion emotions topic stars "
    "polarity gold_label is_duplicate class_index class_label similarity similarity_score relatedness_score",
)
_SAMPLE = 1000  # rows
_DATE = re.compile(r"\d{4}([-/.])\d\d?\1\d\d?(?!\d)|\d\d?([-/.])\d\d?\2\d{4}(?!\d)")
_FEW, _MOST_DISTINCT = 20, 0.9  # rows that say nothing about labels; the share of distinct labels
_PHRASE = 60  # characters: a longer name with spaces looks like a text


@dataclass(frozen=True)
class Usual:
    """The usual names of the columns of a task."""

    # Maps each role to groups of usual names; earlier groups win. A group is a string of names separated by spaces. The
    # roles are searched in this order.
    roles: Mapping[str, Sequence[str]]
    # The usual names of two columns that belong together, the text and its pair; earlier pairs win.
    pairs: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> set[str]:
        groups = [*(group for groups in self.roles.values() for group in groups), *map(" ".join, self.pairs)]
        return {name for group in groups for name in group.split()}


_BOTH = (*_QUERIES, *_PAIRS)
USUAL = {
    "classify": Usual({"text": TEXT, "pair": (), "label": _LABEL}, _PAIRS),
    "answer": Usual(
        {
            "text": ["question", "query", "text"],
            "pair": ["context", "paragraph", "passage", "document", "pair"],
            "label": ["answers", "answer", "label"],
        }
    ),
    "tag": Usual(
        {
            "label": [
                *("tags", "ner_tags", "upos", "spans", "entities", "labels"),
                *("pos_tags", "pos", "chunk_tags", "ner", "label"),
            ],
            "text": ["form", "words", "tokens", "text", "sentence"],
        }
    ),
    "embed": Usual(
        {
            "text": ["anchor", "query", "question", "text", "sentence", "sentence1", "premise", "title"],
            "pair": ["positive", "positives"],
            "negative": ["negative", "negatives"],
            "label": ["score", "similarity", "similarity_score", "label", "relatedness_score", "is_duplicate"],
        },
        (*_BOTH, ("title", "text"), ("title", "body"), ("question", "context")),
    ),
    "rerank": Usual({"query": (), "text": (), "label": _LABEL}, _BOTH),
}
_ORDER = ("query", "text", "pair", "label", "negative")  # the order in which roles are listed


@dataclass(frozen=True)
class ColumnNames:
    """The columns to read."""

    text: str
    pair: str | None  # the column of the second text, `None` for single texts
    label: str | None  # the column of the label, `None` if labels are not read
    guessed: tuple[str, ...] = ()  # the roles whose columns were guessed, such as `("text", "label")`
    negatives: tuple[str, ...] = ()  # the columns of negatives: texts that do not belong to the text

    @property
    def kind(self) -> Literal["texts", "pairs", "scored"]:
        """The kind of the data: `scored` (the label is the similarity of text and pair), `pairs`, or single `texts`."""
        return "scored" if self.label is not None else "texts" if self.pair is None else "pairs"

    def to_dict(self) -> dict[str, str]:
        columns = {"text": self.text, "pair": self.pair, "label": self.label}
        for number, column in enumerate(self.negatives, 1):
            columns["negative" if len(self.negatives) == 1 else f"negative {number}"] = column
        return {role: column for role, column in columns.items() if column is not None}


class TaskColumns(Protocol):
    """The columns that hold the data of a task."""

    @property
    def guessed(self) -> tuple[str, ...]:
        """The roles whose columns were guessed."""

    def to_dict(self) -> dict[str, str]:
        """Returns a dict that maps each role to its column."""


class Search:
    """Finds the columns of a task: the user may name some, and the others are recognized by their usual names.

    Args:
        task: A key of `USUAL`.
        named: The columns named by the user: `text_column` and so on.
    """

    def __init__(self, rows: LabelledRows, task: str, named: Mapping[str, str | None]) -> None:
        self.rows, self.usual = rows, USUAL[task]
        by_role = {role: named.get(f"{role}_column") for role in self.usual.roles}
        # The columns found so far, by role.
        self.found = {role: column for role, column in by_role.items() if column is not None}
        self._named = {*self.found}
        for role, column in self.found.items():
            if column not in rows.columns:
                raise ArgumentError(
                    f"the data has no column {column!r}, expected one of {', '.join(rows.columns)}",
                    hint=f"choose the column with `{role}_column=`",
                )
        if len({*self.found.values()}) < len(self.found):
            raise ArgumentError(
                f"the columns are {', '.join(self.found.values())}, expected a different column for each option"
            )

    @property
    def rest(self) -> list[str]:
        """The columns that have no role yet."""
        return [column for column in self.rows.columns if column not in self.found.values()]

    @property
    def guessed(self) -> tuple[str, ...]:
        """The roles whose columns the user did not name."""
        return tuple(role for role in _ORDER if role in self.found and role not in self._named)

    def take(self, role: str, columns: Sequence[str] | None = None) -> bool:
        """Gives a role to the column that has one of its usual names; returns whether there is such a column."""
        columns = self.rest if columns is None else columns
        for group in self.usual.roles[role]:
            fitting = [column for column in columns if plain_name(column) in group.split()]
            if fitting:
                self._take_only(role, fitting)
                return True
        return False

    def take_pair(self, first: str, second: str, *, any_name: bool = False) -> bool:
        """Gives roles to two columns with the usual names of a pair; returns whether there are such columns.

        If the user named one of the two columns, the other one must have the name that usually goes with it, unless
        `any_name` is true.
        """
        named_a, named_b = self.found.get(first), self.found.get(second)
        names = {plain_name(column): column for column in [*self.rest, named_a, named_b] if column is not None}
        for usual_a, usual_b in self.usual.pairs:
            a = names.get(usual_a, named_a if any_name else None)
            b = names.get(usual_b, named_b if any_name else None)
            if a is not None and b is not None and a != b and named_a in (None, a) and named_b in (None, b):
                self.found |= {first: a, second: b}
                return True
        return False

    def take_label(self) -> None:
        """Finds the column of the label: the one with a usual name, or the only column that is left."""
        if not self.take("label"):
            columns = [column for column in without_numbering(self.rest) if self._may_be_labels(column)]
            self._take_only("label", columns, "no column has labels")

    def _may_be_labels(self, column: str) -> bool:
        """Whether the values of a column can be classes or numbers: neither dates nor a text of its own in each row."""
        values = [str(value) for row in self.rows[:_SAMPLE] if (value := row.values.get(column)) is not None]
        if values and all(map(_DATE.match, values)):
            return False
        few = len(values) < _FEW or len({*values}) <= _MOST_DISTINCT * len(values)
        return few or mean_length(column, [row.values for row in self.rows[:_SAMPLE]]) is None

    def take_text(self, columns: Sequence[str]) -> None:
        """Finds the column of the text by its usual name or, if no column has one, by the length of its strings.

        In the latter case, it is the only column with long strings or, if there are none, the only one with strings.
        """
        sample = [row.values for row in self.rows[:_SAMPLE]]
        self._take_only("text", text_columns(columns, sample), "no column is known to contain the texts")

    def _take_only(self, role: str, columns: Sequence[str], message_if_none: str = "") -> None:
        if len(columns) != 1:
            message = f"the {role} column may be {' or '.join(columns)}" if columns else message_if_none
            missing = f"each record also needs a {role}, for example in a column called {role}"
            hint = f"choose the column with `{role}_column=`" if columns or self.rest else missing
            raise self.refused(message, hint, columns)
        self.found[role] = columns[0]

    def refused(self, message: str, hint: str, named: Collection[str] = ()) -> InputError:
        """Makes the error for data whose columns cannot be found.

        The error lists the columns of the data, unless the message already names all of them. `named` are the columns
        that the message names.
        """
        have = f" (columns: {', '.join(self.rows.columns)})" if {*self.rows.columns} - {*named} else ""
        return InputError(f"{', '.join(self.rows.files)}: {message}{have}", hint=hint)

    def check_header(self, columns: Iterable[str] | None = None) -> None:
        """Raises InputError if a table probably lacks a header, so that its first record was read as the header.

        By default, the names of the guessed columns are checked.
        """
        tables = all(uncompressed_name(name).endswith((".csv", ".tsv")) for name in self.rows.files)
        numbers = [*map(str, range(1, len(self.rows.columns) + 1))]  # the columns of a table without a header
        if not tables or [*self.rows.columns] == numbers:
            return
        names = USUAL["classify"].names | self.usual.names
        usual_names = {name for name in names if len(name) > 1}  # single letters are often labels
        for column in [self.found[role] for role in self.guessed] if columns is None else columns:
            phrase = len(column) > _PHRASE and " " in column
            value = plain_name(column) not in usual_names and any(row.values.get(column) == column for row in self.rows)
            if phrase or value:
                where = f"{', '.join(self.rows.files)}, line 1: the column name {column!r:.70}"
                reason = "looks like a text" if phrase else "is also a value in this column"
                raise InputError(
                    f"{where} {reason}, so the file may have no header",
                    hint="if line 1 is data, `no_header=True` names the columns 1, 2 and so on; if line 1 is "
                    "a header, choose the columns with `text_column=` and `label_column=`",
                )

    def columns(self, negatives: tuple[str, ...] = ()) -> ColumnNames:
        """The columns found so far."""
        columns = self.found
        return ColumnNames(columns["text"], columns.get("pair"), columns.get("label"), self.guessed, negatives)


def find_columns(rows: LabelledRows, *, labels: bool = True, **named: str | None) -> ColumnNames:
    """Finds the columns of labelled texts by their usual names, or by their types if only one column fits.

    A second text is looked for only if the user named neither `text_column` nor `pair_column`.
    """
    search = Search(rows, "classify", named)
    try:
        if "text" not in search.found and not search.take_pair("text", "pair"):
            label_names = set() if "label" in search.found else {name for group in _LABEL for name in group.split()}
            search.take_text([column for column in search.rest if plain_name(column) not in label_names])
        if labels and "label" not in search.found:
            search.take_label()
    except InputError:
        search.check_header(rows.columns)
        raise
    search.check_header()
    return search.columns()


def find_text_columns(records: Iterable[Mapping[str, Any]]) -> tuple[ColumnNames, tuple[str, ...]]:
    """Finds the columns of texts without labels (see `find_columns`); also returns the names of all columns."""
    rows = read_rows(records)
    return find_columns(rows, labels=False), rows.columns


def find_usual_columns(rows: LabelledRows, task: str, **named: str | None) -> ColumnNames:
    """Finds the columns of the task `answer` (question, context, answers) or `tag` (words, tags) by their usual names.

    If the columns are numbered (.conll), the first one holds the words and the last one holds the tags.
    """
    search = Search(rows, task, named)
    if task == "tag" and len(rows.columns) == 1:
        raise InputError(
            f"{', '.join(rows.files)}: the only column is {rows.columns[0]}, expected columns of words and tags",
            hint="separate the columns of a .conll file by tabs or spaces",
        )
    for role, names in search.usual.roles.items():
        if role in search.found or (task == "tag" and _take_tagged(search, role)) or search.take(role):
            continue
        lines = task == "tag" and all(name.endswith(".txt") for name in rows.files)
        hint = "use `format='conll'` if each line has a word and its tag"
        raise search.refused(
            f"no column is called {' or '.join(names[:4])}",
            hint if lines else f"choose the column with `{role}_column=`",
        )
    return search.columns()


def _take_tagged(search: Search, role: str) -> bool:
    """Finds the column of words (role `text`) or of tags if columns are numbered, or if the tags are spans.

    Returns whether the role has a column now, possibly one that was found earlier.
    """
    rest = search.rest
    if rest and all(column.isdecimal() for column in rest):
        search.found[role] = rest[0 if role == "text" else -1]
    elif role == "text" and "text" in rest and _has_spans(search):
        search.found[role] = "text"  # spans refer to the text, not to a list of tokens
    return role in search.found


def _has_spans(search: Search) -> bool:
    return any(is_spans(row.values.get(search.found["label"])) for row in search.rows[:100])


def is_spans(value: object) -> bool:
    """Whether a value is a list of spans, each of which is a mapping or `[start, end, label]`."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(span, Mapping | list | tuple) for span in value)
    )
