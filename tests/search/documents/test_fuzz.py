"""Any bytes are read, or refused with an UnreadableError; lines of texts are lines of their files."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mlxbert.search.documents.document import UnreadableError
from mlxbert.search.documents.document_kinds import read_documents
from tests.helpers.cells import quick
from tests.helpers.papers import docx, paragraph, pdf
from tests.search.documents.test_documents import CALENDAR, MAIL, ORG, PAGE, RECORDS, SRT
from tests.search.documents.test_office import EPUB, MHTML, ODS, ODT, PPTX, RTF, XLSX

PICTURE = b" ![](data:image/png;base64," + b"iVBORw0K" * 30 + b")"
NESTED = MAIL.replace(b"\n--B--", b"\n--B\nContent-Type: message/rfc822\n\n" + MAIL)
SEEDS = {
    "text": b"one\r\ntwo\n", "markdown": b"---\ntitle: a\n---\n# A" + PICTURE + b"\n```\nx\n```\nB\n---\n",
    "rst": b"===\nA\n===\nB\n--\n",
    "code": b"class A:\n  def f(x):\n", "html": PAGE.encode(), "pdf": pdf("One", "Two", title="T"),
    "word": docx(paragraph("Top", "Heading1"), paragraph("text")), "mail": b"From a\n" + MAIL + b"\nFrom b\n" + NESTED,
    "notebook": b'{"cells": [{"cell_type": "markdown", "source": ["# A"]}, {"source": 1}, {}]}',
    "spreadsheet": XLSX, "spreadsheet of OpenDocument": ODS, "slides": PPTX, "opendocument": ODT, "epub": EPUB,
    "rtf": RTF, "mhtml": MHTML, "org": ORG.encode(), "calendar": CALENDAR.encode(), "subtitles": SRT.encode(),
}  # fmt: skip
LINES = ("text", "markdown", "rst", "code")


def mutated(seed: bytes) -> st.SearchStrategy[bytes]:
    """The bytes with a part replaced by others, or by another part; or any bytes."""
    place = st.integers(0, len(seed))
    part = st.binary(max_size=20) | st.tuples(place, place).map(lambda ends: seed[min(ends) : max(ends)])
    changed = st.tuples(place, place, part).map(lambda it: seed[: min(it[:2])] + it[2] + seed[max(it[:2]) :])
    return changed | st.binary(max_size=200)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", SEEDS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes(kind: str, data: st.DataObject) -> None:
    raw = data.draw(mutated(SEEDS[kind]))
    try:
        found = [*read_documents("a", raw, kind.partition(" ")[0])]
    except UnreadableError:
        return
    for document in found:
        document.text.encode()
        starts = [one.start for one in document.headings]
        assert starts == sorted(starts) and all(0 <= start < len(document.text) for start in starts)
        assert all(one.level >= 1 and one.text for one in document.headings)
        assert (
            [*document.pages] == sorted(document.pages) and (document.first_line == 1) == (kind in (*LINES, "org"))
        ) or kind == "subtitles"


@pytest.mark.parametrize("name", RECORDS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_as_records(tmp_path: Path, name: str, data: st.DataObject) -> None:
    (path := tmp_path / name).write_bytes(data.draw(mutated(RECORDS[name])))
    try:
        for document in read_documents(path, b"", "records"):
            document.text.encode()
            assert all(isinstance(one, str | int | float | bool | None) for one in document.fields.values())
    except UnreadableError:
        pass


@pytest.mark.parametrize("kind", LINES)
@quick(100)
@given(lines=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n")), min_size=2))
def test_lines_stay(kind: str, lines: list[str]) -> None:
    lines = [line.replace("\ufeff", "") for line in lines]
    (found,) = read_documents("a", "\r\n".join(lines).encode(), kind)
    assert found.text.split("\n") == lines
