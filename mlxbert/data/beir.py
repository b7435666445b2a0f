"""Reads a BEIR folder: `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mlxbert.data.labelled_texts import check_text, get_value
from mlxbert.durable_files import is_system_file
from mlxbert.errors import InputError
from mlxbert.readers.labelled_rows import read_rows
from mlxbert.readers.stream import Record

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
Judgement = tuple[str, str, float]  # query, document, grade of relevance


def read_beir(folder: Path, split: str) -> tuple[dict[str, str], dict[str, str], list[Judgement], tuple[str, ...]]:
    """Reads the documents (title and text, joined by a space), the queries and the judgements of a BEIR folder.

    Args:
        folder: The BEIR folder.
        split: The split whose judgements are read: `test` for `qrels/test.tsv`.

    Returns:
        The documents and the queries by their identifiers, the judgements, and the paths of the files.
    """
    qrels = folder / QRELS / f"{split}.tsv"
    if not qrels.is_file():
        splits = sorted(path.stem for path in (folder / QRELS).glob("*.tsv") if not is_system_file(path.name))
        raise InputError(
            f"{qrels}: no such file",
            hint=f"choose another split with split=: {', '.join(splits)}"
            if splits
            else "the judgements of a split are in a file such as qrels/test.tsv",
        )
    files = (folder / CORPUS, folder / QUERIES, qrels)
    documents, queries = (_identified(path) for path in files[:2])
    judgements = [_judgement(row) for row in read_rows(qrels)]
    return documents, queries, judgements, tuple(map(str, files))


def _identified(path: Path) -> dict[str, str]:
    """Reads a .jsonl file; maps the `_id` of each row to its title and text, joined by a space."""
    texts: dict[str, str] = {}
    for row in read_rows(path):
        name = _name(row, "_id")
        if name in texts:
            raise InputError(f"{row.where}: _id {name!r:.60} occurs twice")
        texts[name] = " ".join(part for part in (_text(row, "title"), _text(row, "text")) if part)
    return texts


def _text(row: Record, key: str) -> str:
    """Returns the title or the text of a row. Either may be empty, but only the title may be missing."""
    value = row.values.get(key) if key == "title" else _value(row, key)
    if value is None or value == "" or (isinstance(value, str) and value.isspace()):
        return ""
    try:
        return check_text(value, key).strip()
    except InputError as problem:
        raise row.located(problem) from None


def _judgement(row: Record) -> Judgement:
    query, document = (_name(row, key) for key in ("query-id", "corpus-id"))
    return query, document, read_grade(_value(row, "score"), row.where)


def read_grade(value: Any, place: str) -> float:
    """Converts a grade of relevance to a number; raises InputError if it is not a finite number."""
    try:
        grade = float(value)
        if abs(grade) < float("inf"):
            return grade
    except (TypeError, ValueError):
        pass
    raise InputError(f"{place}: the judgement is {value!r:.60}, expected a number")


def _name(row: Record, key: str) -> str:
    value = _value(row, key)
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise InputError(f"{row.where}: {key!r} is {value!r:.60}, expected an identifier")
    return str(value)


def _value(row: Record, key: str) -> Any:
    try:
        return get_value(row.values, key)
    except InputError as problem:
        raise row.located(problem) from None


def judged_by_query(judgements: Iterable[Judgement]) -> Mapping[str, Mapping[str, float]]:
    """Groups judgements by query and document; if a document has several grades for a query, the highest counts."""
    by_query: dict[str, dict[str, float]] = {}
    for query, document, grade in judgements:
        grades = by_query.setdefault(query, {})
        grades[document] = max(grade, grades.get(document, grade))
    return by_query
