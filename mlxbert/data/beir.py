"""A folder of BEIR: `corpus.jsonl`, `queries.jsonl` and `qrels/SPLIT.tsv`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mlxbert.data.labelled_texts import check_text, get_value
from mlxbert.errors import InputError
from mlxbert.files import is_system_file
from mlxbert.readers.labelled_rows import read_rows
from mlxbert.readers.stream import Record

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
Judgement = tuple[str, str, float]  # the query, the document, how well it answers


def read_beir(folder: Path, split: str) -> tuple[dict[str, str], dict[str, str], list[Judgement], tuple[str, ...]]:
    """Documents (title and text, a space between them), queries, judgements, and the files these are from.

    Args:
        folder: The folder.
        split: Whose judgements are read: `test` for `qrels/test.tsv`.
    """
    judged = folder / QRELS / f"{split}.tsv"
    if not judged.is_file():
        found = sorted(path.stem for path in (folder / QRELS).glob("*.tsv") if not is_system_file(path.name))
        raise InputError(f"{judged}: no such file, there are judgements of: {', '.join(found) or 'nothing'}")
    files = (folder / CORPUS, folder / QUERIES, judged)
    documents, queries = (_identified(path) for path in files[:2])
    judgements = [_placed(row) for row in read_rows(judged)]
    return documents, queries, judgements, tuple(map(str, files))


def _identified(path: Path) -> dict[str, str]:
    """The texts of a file by their identifiers; a text may be empty."""
    found: dict[str, str] = {}
    for row in read_rows(path):
        name = _name(row, "_id")
        if name in found:
            raise InputError(f"{row.where}: _id {name!r:.60} is there twice")
        found[name] = " ".join(part for part in (_text(row, "title"), _text(row, "text")) if part)
    return found


def _text(row: Record, key: str) -> str:
    """A title, which may be missing, or a text."""
    value = row.values.get(key) if key == "title" else _value(row, key)
    if value is None or value == "" or (isinstance(value, str) and value.isspace()):
        return ""
    try:
        return check_text(value, key).strip()
    except InputError as problem:
        raise row.located(problem) from None


def _placed(row: Record) -> Judgement:
    query, document = (_name(row, key) for key in ("query-id", "corpus-id"))
    return query, document, read_grade(_value(row, "score"), row.where)


def read_grade(value: Any, place: str) -> float:
    """How well a document answers a query, as a number."""
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
    """Judgements by query and document; of several for one document the highest counts."""
    found: dict[str, dict[str, float]] = {}
    for query, document, grade in judgements:
        of_query = found.setdefault(query, {})
        of_query[document] = max(grade, of_query.get(document, grade))
    return found
