"""Reads the data for evaluating retrieval, queries, documents, and which documents answer which query."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.durable_files import to_path
from mlxbert.errors import InputError
from mlxbert.mac_files import is_system_file
from mlxbert.readers.stream import Record
from mlxbert.train.data.labelled_rows import LabelledRows, read_rows
from mlxbert.train.data.labelled_texts import check_text, get_value
from mlxbert.train.data.related_texts import read_group

CORPUS, QUERIES, QRELS = "corpus.jsonl", "queries.jsonl", "qrels"
Judgement = tuple[str, str, float]  # query, document, grade of relevance


def read_beir(folder: Path, split: str) -> tuple[dict[str, str], dict[str, str], list[Judgement], tuple[str, ...]]:
    """Reads the documents and the queries of a BEIR folder by their identifiers, the judgements, and the paths."""
    qrels = folder / QRELS / f"{split}.tsv"
    if not qrels.is_file():
        splits = sorted(path.stem for path in (folder / QRELS).glob("*.tsv") if not is_system_file(path.name))
        raise InputError(
            f"{qrels}: no such file",
            hint=f"choose another split with `split=`: {', '.join(splits)}"
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


_LAYOUTS = "a BEIR folder (corpus.jsonl, queries.jsonl, qrels/test.tsv), or records with query, positives and negatives"
_LOG = logging.getLogger("mlxbert")


@dataclass(frozen=True)
class Retrieval:
    """Queries, documents and judgements."""

    queries: Mapping[str, str]  # the queries by their identifiers
    documents: Mapping[str, str]  # the documents by their identifiers
    # The grades of relevance by query and document: above 0 for a relevant document, and higher for a more relevant
    # one. Documents without a judgement are not relevant.
    judgements: Mapping[str, Mapping[str, float]]
    files: tuple[str, ...]  # the files that the data were read from


def read_retrieval(source: str | Path | Iterable[Any], *, split: str = "test", **how: Any) -> Retrieval:
    """Reads the data for evaluating retrieval.

    Documents and queries without text are left out with a warning, and so are judgements of unknown ones.

    Args:
        source: A BEIR folder: `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`),
            `qrels/test.tsv` (`query-id`, `corpus-id`, `score`, with a header). Or any other source that `read_rows`
            accepts, such as .jsonl, with records `{"query": …, "positives": […], "negatives": […]}`; the documents are
            then the positives and negatives of all records.
    """
    if not isinstance(source, str | Path) or not (folder := to_path(source, "data")).is_dir():
        return _of_groups(read_rows(source, **how))
    if (folder / CORPUS).is_file():
        return _checked(str(folder), *read_beir(folder, split))
    raise InputError(f"{folder}: the folder has no {CORPUS}, expected {_LAYOUTS}")


def _of_groups(rows: LabelledRows) -> Retrieval:
    """Converts query groups to documents, queries and judgements; documents and queries are numbered from 1."""
    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    judgements: list[Judgement] = []
    for row in rows:
        try:
            group = read_group(row.values)
        except InputError as problem:
            raise InputError(f"{row.where}: {problem.message}", hint=problem.hint) from None
        query = queries.setdefault(group.query, str(len(queries) + 1))
        for texts, grade in ((group.positives, 1.0), (group.negatives, 0.0)):
            for text in texts:
                judgements.append((query, documents.setdefault(text, str(len(documents) + 1)), grade))
    return _checked(", ".join(rows.files), _by_number(documents), _by_number(queries), judgements, rows.files)


def _by_number(numbers: Mapping[str, str]) -> dict[str, str]:
    return {number: text for text, number in numbers.items()}


def _checked(
    name: str,
    documents: Mapping[str, str],
    queries: Mapping[str, str],
    judgements: list[Judgement],
    files: tuple[str, ...],
) -> Retrieval:
    """Returns the data without unusable documents, queries and judgements; warnings count what is left out."""
    texts, used_queries = ({key: text for key, text in part.items() if text.strip()} for part in (documents, queries))
    usable = [judgement for judgement in judgements if judgement[0] in used_queries and judgement[1] in texts]
    for left_out, what in (
        (len(documents) - len(texts), "documents without text"),
        (len(queries) - len(used_queries), "queries without text"),
        (len(judgements) - len(usable), "judgements of queries or documents that are missing or have no text"),
    ):
        if left_out:
            _LOG.warning("%s: %s are left out (%s)", name, what, f"{left_out:,}")
    for kept, what in ((texts, "document"), (used_queries, "query")):
        if not kept:
            raise InputError(f"{name}: no {what} has text")
    if not any(grade > 0 for _, _, grade in usable):
        hint = (
            "no usable judgement has a grade above 0"
            if usable
            else "no judgement names both a known query and a known document"
        )
        raise InputError(f"{name}: no document is relevant to any query", hint=hint)
    return Retrieval(used_queries, texts, judged_by_query(usable), files)
