"""Which columns of the data hold the words and their tags, guessed from names."""

from collections.abc import Mapping, Sequence
from typing import Any

from mlxbert.data.columns import Columns, check_named
from mlxbert.errors import InputError
from mlxbert.readers.rows import Rows

# Usual names; the earlier ones win.
_WORDS = ("form", "words", "tokens", "text", "sentence")
_TAGS = ("tags", "ner_tags", "upos", "spans", "entities", "labels", "pos_tags", "pos", "chunk_tags", "ner", "label")
_SAMPLE = 100  # rows in which spans are looked for


def find_tag_columns(rows: Rows, *, text_column: str | None = None, label_column: str | None = None) -> Columns:
    """Finds the columns of the words, or the text, and of the tags, or the spans, where they are not named.

    Of numbered columns (.conll) the first has the words and the last the tags; others are known by usual names.

    Raises:
        ArgumentError: A named column is not there, or is named twice.
        InputError: A column cannot be guessed.
    """
    given = {"text": text_column, "label": label_column}
    check_named(given, rows.columns)
    rest = [column for column in rows.columns if column not in given.values()]
    label = label_column or _usual(rest, _TAGS, "label", rows)
    rest = [column for column in rest if column != label]
    if len(rows.columns) == 1:
        raise InputError(
            f"{', '.join(rows.files)}: there is one column, {label}; expected words and their tags",
            hint="columns of a .conll file are separated by tabs or by spaces",
        )
    if text_column is None and "text" in rest and any(is_spans(row.values.get(label)) for row in rows[:_SAMPLE]):
        rest = ["text"]  # beside spans, a list of tokens does not matter
    text = text_column or _usual(rest, _WORDS, "text", rows)
    return Columns(text, None, label, tuple(role for role, column in given.items() if column is None))


def _usual(columns: Sequence[str], names: Sequence[str], role: str, rows: Rows) -> str:
    numbered = [column for column in columns if column.isdecimal()]
    if numbered and len(numbered) == len(columns):
        return numbered[0 if role == "text" else -1]
    known = {column.strip().lower(): column for column in columns}
    found = next((known[name] for name in names if name in known), None)
    if found is None:
        conll = all(name.endswith(".txt") for name in rows.files)
        raise InputError(
            f"{', '.join(rows.files)}: no column is called {' or '.join(names[:4])}; the data have: "
            f"{', '.join(rows.columns)}",
            hint="format='conll' reads a word and its tag in each line"
            if conll
            else f"choose the column with {role}_column=",
        )
    return found


def is_spans(value: Any) -> bool:
    """Whether a value is a list of spans: mappings, or [start, end, label]."""
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(one, Mapping | list | tuple) for one in value)
    )
