"""Which columns of the data hold the text, the second text and the label, guessed from names and types."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal, Protocol

from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.lines import uncompressed_name
from mlxbert.readers.rows import Row, Rows

# Usual names in small letters, spaces and hyphens as underscores. A name of an earlier group wins over the later ones;
# several of one group are ambiguous.
_TEXT = (
    "text",
    "sentence review content question body comment tweet utterance query document message input article post "
    "review_text review_body comment_text sentences texts",
    "title headline description summary subject",
)
PAIR_NAMES = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2"), ("text_a", "text_b")),
    *(("text1", "text2"), ("sentence_a", "sentence_b"), ("sentence_1", "sentence_2"), ("text_1", "text_2")),
    *(("text", "pair"), ("text", "text2"), ("text", "text_2"), ("text", "text_b"), ("text", "second")),
    *(("s1", "s2"), ("query", "passage"), ("query", "document"), ("question", "passage"), ("question", "sentence")),
    ("a", "b"),
)
# The same of a query and a text that answers it.
QUERY_NAMES = (
    *(("query", "text"), ("query", "answer"), ("query", "response"), ("question", "answer"), ("question", "text")),
    *(("question", "response"), ("query", "document"), ("query", "passage")),
)
_LABEL = (
    "label",
    "labels",
    "class category target sentiment intent score rating y classes categories tags emotion emotions topic stars "
    "polarity gold_label is_duplicate class_index class_label similarity similarity_score relatedness_score",
)
# Where the first usual name that the data have is taken: by task and role, in the order in which they are looked for.
ROLES = {
    "answer": {
        "text": "question query text",
        "pair": "context paragraph passage document pair",
        "label": "answers answer label",
    },
    "tag": {
        "label": "tags ner_tags upos spans entities labels pos_tags pos chunk_tags ner label",
        "text": "form words tokens text sentence",
    },
    "embed": {
        "text": "anchor query question text sentence sentence1 premise title",
        "positive": "positive positives",
        "negative": "negative negatives",
        "label": "score similarity similarity_score label relatedness_score is_duplicate",
    },
}
_NUMBERING = {"id", "idx", "index", "guid", "uid", "uuid", "row", "pair_id", "unnamed:_0", "__index_level_0__"}
_SAMPLE = 1000  # rows that are looked at
_PHRASE = 60  # characters from which on a name with spaces looks like a text
_LONG = 20  # mean length from which strings look like texts rather than labels, in characters


@dataclass(frozen=True)
class Columns:
    """The columns that are read.

    Attributes:
        text: The text.
        pair: The second text, `None` for single texts.
        label: The label, `None` where labels are not read.
        guessed: Which of these were guessed: `("text", "label")`.
        negatives: Those of texts that do not belong to the text.
    """

    text: str
    pair: str | None
    label: str | None
    guessed: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["texts", "pairs", "scored"]:
        """What related texts with these columns are; a label says how similar text and pair are."""
        return "scored" if self.label is not None else "texts" if self.pair is None else "pairs"

    def to_dict(self) -> dict[str, str]:
        """The columns by what they hold."""
        found = {"text": self.text, "pair": self.pair, "label": self.label}
        for number, column in enumerate(self.negatives, 1):
            found["negative" if len(self.negatives) == 1 else f"negative {number}"] = column
        return {role: column for role, column in found.items() if column is not None}


class Found(Protocol):
    """The columns that a task reads."""

    @property
    def guessed(self) -> tuple[str, ...]:
        """Which of them were guessed."""

    def to_dict(self) -> dict[str, str]:
        """The columns by what they hold."""


def find_columns(
    rows: Rows,
    *,
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
    labels: bool = True,
) -> Columns:
    """Finds what is not named: by usual names first, then by types, where only one column comes into question.

    A second text is looked for if neither text is named.

    Args:
        rows: The data.
        text_column: The column of the text.
        pair_column: The column of the second text.
        label_column: The column of the label.
        labels: Whether there must be labels.

    Raises:
        ArgumentError: A column is not there, or is named for two purposes.
        InputError: A column is not named and cannot be guessed, or a table seems to have no line with names.
    """
    try:
        found = _find(rows, text_column, pair_column, label_column, labels)
    except InputError:
        check_header(rows, rows.columns)
        raise
    check_header(rows, [column for role, column in found.to_dict().items() if role in found.guessed])
    return found


def find_usual_columns(rows: Rows, task: str, **named: str | None) -> Columns:
    """Finds the columns of question, context and answers (`answer`), or of words and tags (`tag`), by usual names.

    Of numbered columns (.conll) the first has the words and the last the tags.

    Args:
        rows: The data.
        task: `answer` or `tag`.
        **named: The columns that are named: `text_column` and so on.

    Raises:
        ArgumentError: A column is not there, or is named for two purposes.
        InputError: A column is not named, and none has a usual name.
    """
    given = {role: named.get(f"{role}_column") for role in ROLES[task]}
    check_named(given, rows.columns)
    if task == "tag" and len(rows.columns) == 1:
        raise InputError(
            f"{', '.join(rows.files)}: there is one column, {rows.columns[0]}; expected words and their tags",
            hint="columns of a .conll file are separated by tabs or by spaces",
        )
    found = {role: column for role, column in given.items() if column is not None}
    for role, usual in ROLES[task].items():
        if role not in found:
            rest = [column for column in rows.columns if column not in found.values()]
            found[role] = (_tagged(role, rest, rows, found) if task == "tag" else None) or _first(
                rest, usual, role, rows
            )
    guessed = tuple(role for role in ("text", "pair", "label") if role in given and given[role] is None)
    return Columns(found["text"], found.get("pair"), found["label"], guessed)


def _tagged(role: str, columns: Sequence[str], rows: Rows, found: Mapping[str, str]) -> str | None:
    """The column of words or tags where numbers, or spans, say which it is."""
    if columns and all(column.isdecimal() for column in columns):
        return columns[0 if role == "text" else -1]
    if role == "text" and "text" in columns and any(is_spans(row.values.get(found["label"])) for row in rows[:100]):
        return "text"  # next to spans, a list of tokens does not matter
    return None


def _first(columns: Sequence[str], usual: str, role: str, rows: Rows) -> str:
    """The column with the first usual name that there is."""
    found = first_usual(columns, usual)
    if found is None:
        raise InputError(
            f"{', '.join(rows.files)}: no column is called {' or '.join(usual.split()[:4])}; the data have: "
            f"{', '.join(rows.columns)}",
            hint="format='conll' reads a word and its tag in each line"
            if usual in ROLES["tag"].values() and all(name.endswith(".txt") for name in rows.files)
            else f"choose the column with {role}_column=",
        )
    return found


def first_usual(columns: Iterable[str], usual: str) -> str | None:
    """The column with the first of some usual names."""
    names = _by_name(columns)
    return next((names[name] for name in usual.split() if name in names), None)


def is_spans(value: object) -> bool:
    """Whether a value is a list of spans: mappings, or [start, end, label]."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(one, Mapping | list | tuple) for one in value)
    )


def _find(
    rows: Rows, text_column: str | None, pair_column: str | None, label_column: str | None, labels: bool
) -> Columns:
    given = {"text": text_column, "pair": pair_column, "label": label_column}
    check_named(given, rows.columns)
    text, pair, label = text_column, pair_column, label_column
    rest = [column for column in rows.columns if column not in given.values()]
    if text is None and pair is None:
        text, pair = usual_pair(rest)
    elif text is None:
        text = _partner(rest, pair)
    rest = [column for column in rest if column not in (text, pair)]
    if text is None:
        labelled = "" if label_column else " ".join(_LABEL)
        texts = [column for column in rest if plain_name(column) not in labelled.split()]
        text = _usual(texts, _TEXT, "text", rows) or _by_type(texts, rows)
        rest.remove(text)
    if label is None and labels:
        label = find_label(rest, rows)
    found = {"text": text, "pair": pair, "label": label}
    guessed = tuple(role for role, column in found.items() if column is not None and given[role] is None)
    return Columns(text, pair, label, guessed)


def find_label(columns: Sequence[str], rows: Rows) -> str:
    """The column of the label: by its usual names, or the only one.

    Args:
        columns: Those that come into question.
        rows: The data.

    Raises:
        InputError: There is none, or several come into question.
    """
    return _usual(columns, _LABEL, "label", rows) or _last_one(columns, rows)


def check_named(given: Mapping[str, str | None], columns: Sequence[str]) -> None:
    """Refuses names of columns that are not there, and a column that is named for two purposes.

    Args:
        given: The column of each role; `None` where it is not named.
        columns: Those of the data.

    Raises:
        ArgumentError: See above.
    """
    named = {role: column for role, column in given.items() if column is not None}
    for role, column in named.items():
        if column not in columns:
            raise ArgumentError(
                f"there is no column {column!r}, the data have: {', '.join(columns)}",
                hint=f"choose the column with {role}_column=",
            )
    if len({*named.values()}) < len(named):
        raise ArgumentError(f"one column is named for two purposes: {', '.join(named.values())}")


def check_header(rows: Rows, columns: Sequence[str]) -> None:
    """Refuses a table whose first record was taken for the names of its columns.

    Args:
        rows: The data.
        columns: The names that may be values.

    Raises:
        InputError: It was.
    """
    if not all(uncompressed_name(name).endswith((".csv", ".tsv")) for name in rows.files):
        return
    named = (name for group in (*_TEXT, *_LABEL, *map(" ".join, PAIR_NAMES)) for name in group.split())
    usual = {name for name in named if len(name) > 1}  # single letters are often labels
    for column in columns:
        phrase = len(column) > _PHRASE and " " in column
        if phrase or (plain_name(column) not in usual and any(row.values.get(column) == column for row in rows)):
            said = "looks like a text" if phrase else "is also a value in it"
            raise InputError(
                f"{', '.join(rows.files)}, line 1: the name of column {column!r:.70} {said}: is there no header?",
                hint="the first line must name the columns, such as text,label; if it does, choose them with "
                "text_column= and label_column=",
            )


def plain_name(column: str) -> str:
    """A name of a column as the usual names are written."""
    return column.strip().lower().replace(" ", "_").replace("-", "_")


def _by_name(columns: Iterable[str]) -> dict[str, str]:
    return {plain_name(column): column for column in columns}


def usual_pair(
    columns: Sequence[str],
    tables: Iterable[tuple[str, str]] = PAIR_NAMES,
    first: str | None = None,
    second: str | None = None,
) -> tuple[str, str] | tuple[None, None]:
    """Two columns with usual names.

    Args:
        columns: Those of the data.
        tables: Usual names of both; the earlier ones win.
        first: The first column, where it is named: the second is then its usual partner. The same for `second`.
        second: The second column.
    """
    names = _by_name(columns)
    for one, other in tables:
        a, b = names.get(one, first), names.get(other, second)
        if first in (None, a) and second in (None, b) and a is not None and b is not None and a != b:
            return a, b
    return None, None


def _partner(columns: Sequence[str], pair: str | None) -> str | None:
    """The usual first text of a second one."""
    names = _by_name(columns)
    return next((names[a] for a, b in PAIR_NAMES if pair is not None and b == plain_name(pair) and a in names), None)


def _usual(columns: Sequence[str], groups: Sequence[str], role: str, rows: Rows) -> str | None:
    for group in groups:
        found = [column for column in columns if plain_name(column) in group.split()]
        if len(found) > 1:
            raise _unclear(role, rows, f"several columns may be the {role}: {', '.join(found)}")
        if found:
            return found[0]
    return None


def _by_type(columns: Sequence[str], rows: Rows) -> str:
    """The only column of long strings, or else the only one of strings."""
    sample = rows[:_SAMPLE]
    lengths = {column: _length(column, sample) for column in columns if plain_name(column) not in _NUMBERING}
    strings = {column: length for column, length in lengths.items() if length is not None}
    long = [column for column, length in strings.items() if length >= _LONG] or [*strings]
    if len(long) != 1:
        said = f"several columns may be the text: {', '.join(long)}" if long else "no column has texts"
        raise _unclear("text", rows, said)
    return long[0]


def _length(column: str, rows: Sequence[Row]) -> float | None:
    """The mean length of the strings of a column; `None` if some are not strings, or all look like numbers."""
    values = [value for row in rows if (value := row.values.get(column)) is not None]
    if not values or not all(isinstance(value, str) for value in values):
        return None
    if all(value.strip().replace(".", "").lstrip("-").isdecimal() for value in values):
        return None
    return mean(map(len, values))


def _last_one(columns: Sequence[str], rows: Rows) -> str:
    columns = [column for column in columns if plain_name(column) not in _NUMBERING]
    if len(columns) != 1:
        said = f"several columns may be the label: {', '.join(columns)}" if columns else "there is no column of labels"
        raise _unclear("label", rows, said)
    return columns[0]


def _unclear(role: str, rows: Rows, said: str) -> InputError:
    return InputError(
        f"{', '.join(rows.files)}: {said}; the data have: {', '.join(rows.columns)}",
        hint=f"choose the column with {role}_column=",
    )
