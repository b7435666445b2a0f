"""A folder of SMART, as the Cranfield collection comes: documents `.all`, queries `.qry`, judgements `qrel`.

What the numbers of Cranfield's judgements mean: `cranqrel` has Cleverdon's codes, 1 for a complete answer to 4 for
minimum interest, and -1; `QRelsCorrectedforTRECeval` has them in TREC's order, 4 for a complete answer to 1, and 5
where the other file has -1. These are one document per query: the paper whose author asked the question. Of all, its
text has the most words in common with the query. So it counts as the most relevant one, as in the TREC file, and both
files say the same.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from mlxbert.data.beir import Judgement, read_grade
from mlxbert.errors import InputError
from mlxbert.files import is_system_file
from mlxbert.readers.inputs import open_source
from mlxbert.readers.lines import Lines

_FIELD = re.compile(r"\.([A-Z])(?:\s+(.*))?")
_CODES = {"1": 4.0, "2": 3.0, "3": 2.0, "4": 1.0, "-1": 5.0}  # to grades
_TREC, _CODED = 4, 3  # columns of judgements
_LAYOUT = "a folder of SMART has the documents in NAME.all, the queries in NAME.qry, the judgements in a file NAMEqrel"


def is_smart(folder: Path) -> bool:
    """Whether a folder has the files of SMART."""
    return any(name.endswith(".qry") for name in _names(folder).values())


def _names(folder: Path) -> dict[Path, str]:
    """The files of a folder, and their names in small letters."""
    try:
        files = [path for path in sorted(folder.iterdir()) if path.is_file() and not is_system_file(path.name)]
    except OSError as problem:
        raise InputError(f"{folder}: cannot be read ({problem.strerror})") from None
    return {path: path.name.lower() for path in files}


def read_smart(folder: Path) -> tuple[dict[str, str], dict[str, str], list[Judgement], tuple[str, ...]]:
    """Documents (title and text), queries, judgements, and the files these are from.

    Judgements count queries in the order of their file, from 1, whatever number the query has there. Where there are
    files of judgements in both layouts, that of TREC (`query 0 document grade`) is read.

    Args:
        folder: The folder.

    Raises:
        InputError: A file is missing or damaged, or a number of a document occurs twice.
    """
    names = _names(folder)
    documents = _only(folder, "documents", [path for path, name in names.items() if ".all" in name])
    queries = _only(folder, "queries", [path for path, name in names.items() if name.endswith(".qry")])
    judged = [path for path, name in names.items() if "qrel" in name and "readme" not in name]
    chosen = max(judged, key=lambda path: len(next(_lines(path), ("", []))[1]), default=None)
    if chosen is None:
        raise InputError(f"{folder}: there are no judgements", hint=_LAYOUT)
    texts: dict[str, str] = {}
    for place, number, text in _records(documents):
        if number in texts:
            raise InputError(f"{place}: the document {number!r:.60} is there twice")
        texts[number] = text
    asked = {str(place): text for place, (_, _, text) in enumerate(_records(queries), 1)}
    return texts, asked, [*_judgements(chosen)], tuple(map(str, (documents, queries, chosen)))


def _only(folder: Path, what: str, found: list[Path]) -> Path:
    if len(found) != 1:
        said = ", ".join(path.name for path in found) or "none"
        raise InputError(f"{folder}: expected one file of {what}, found: {said}", hint=_LAYOUT)
    return found[0]


def _records(path: Path) -> Iterator[tuple[str, str, str]]:
    """Where each record stands, its number, and its title and text in one line."""
    place, number, fields, field = "", "", dict[str, list[str]](), ""
    with open_source(path, pipes=False) as file:
        for line, text in enumerate(Lines(str(path), file), 1):
            mark = _FIELD.fullmatch(text)
            if mark is not None and mark[1] == "I":
                if place:
                    yield place, number, _joined(fields)
                place, number, fields, field = f"{path}, line {line}", (mark[2] or "").strip(), {}, ""
                if not number:
                    raise InputError(f"{place}: .I without a number")
            elif not place and text.strip():
                raise InputError(f"{path}, line {line}: {text!r:.60}, expected .I and a number", hint=_LAYOUT)
            elif mark is not None and not (field == "W" and mark[1] in fields):
                field = mark[1]  # a field that is there already, within a text, is a damaged line of Cranfield's
                fields[field] = [mark[2] or ""]
            elif mark is None and field:
                fields[field].append(text)
    if not place:
        raise InputError(f"{path}: there are no records", hint=_LAYOUT)
    yield place, number, _joined(fields)


def _joined(fields: dict[str, list[str]]) -> str:
    """The title and the text; a text that begins with its title has it once."""
    title, text = (" ".join(" ".join(fields.get(field, ())).split()) for field in "TW")
    return text if text.startswith(title) else f"{title} {text}".strip()


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The place and the columns of each line that is not blank."""
    with open_source(path, pipes=False) as file:
        for number, line in enumerate(Lines(str(path), file), 1):
            if line.strip():
                yield f"{path}, line {number}", line.split()


def _judgements(path: Path) -> Iterator[Judgement]:
    width = 0
    for place, columns in _lines(path):
        width = width or len(columns)
        if len(columns) != width or width not in (_TREC, _CODED):
            raise InputError(f"{place}: {len(columns)} columns, expected query, 0, document and grade, as TREC has it")
        if width == _TREC:
            yield columns[0], columns[2], read_grade(columns[3], place)
        elif columns[2] not in _CODES:
            raise InputError(f"{place}: the code is {columns[2]!r:.60}, expected 1 to 4, or -1, as Cranfield has it")
        else:
            yield columns[0], columns[1], _CODES[columns[2]]
