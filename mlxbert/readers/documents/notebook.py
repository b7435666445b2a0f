"""Jupyter notebooks: the text and the code of their cells, without outputs."""

import json
from collections.abc import Iterator

from mlxbert.readers.documents.document import Document, Heading, UnreadableError
from mlxbert.readers.documents.encodings import decode
from mlxbert.readers.documents.markdown import markdown_headings

_BETWEEN = "\n\n"


def read_notebook(data: bytes, name: str) -> Iterator[Document]:
    """Reads the notebook as one document."""
    source_text, problems = decode(data)
    try:
        notebook = json.loads(source_text, parse_int=float)  # integers in outputs may have any number of digits
    except ValueError as problem:
        raise UnreadableError(f"is not valid JSON ({problem})") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise UnreadableError("is not a notebook, because the list of cells is missing")
    texts: list[str] = []
    headings: list[Heading] = []
    start = 0
    for cell in cells:
        source = cell.get("source") if isinstance(cell, dict) else None
        lines = source if isinstance(source, list) else [source]
        text = "".join(line for line in lines if isinstance(line, str)).strip("\n")
        if text:
            if cell.get("cell_type") == "markdown":
                headings += (Heading(start + part.start, part.level, part.text) for part in markdown_headings(text))
            texts.append(text)
            start += len(text) + len(_BETWEEN)
    yield Document(_BETWEEN.join(texts), headings=tuple(headings), problems=problems)
