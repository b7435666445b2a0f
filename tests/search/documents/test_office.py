"""Spreadsheets, slides, OpenDocument texts, books, rich text and web archives; files made to harm, and any bytes."""

import io
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from mlxbert.search.documents.document import UnreadableError
from mlxbert.search.documents.document_kinds import read_documents
from tests.helpers.cases import together
from tests.helpers.cells import quick
from tests.helpers.office import (
    ENCRYPTED,
    OLE,
    PICTURE,
    core,
    epub,
    ods,
    open_document,
    pptx,
    references,
    replaced,
    shape,
    xlsx,
    zipped,
)
from tests.helpers.papers import docx, paragraph, pdf
from tests.search.documents.test_documents import (
    BOMB,
    CALENDAR,
    MAIL,
    ORG,
    PAGE as HTML,
    RECORDS,
    SRT,
    assert_unreadable,
    headings,
    only,
    read,
)

pytestmark = pytest.mark.usefixtures("here")
AUTHOR_AND_DATE = {"author": "Ann", "date": "2024-05-06T07:08:09+00:00"}
ROWS: list[list[object]] = [
    ["Stock in May"], [], ["Name", "Price", "Since"], ["Lamp", 12.5, (45292,)], ["Desk", 1200, ""], [],
    ["", True, "a\nb"],
]  # fmt: skip
XLSX = xlsx({"Prices &amp; more": ROWS, "Low": [["secret"]]}, hidden="Low", title="T", author="Ann")
ODS = ods({"Prices": [["Name", "Price", "City"], ["Lamp", 12.5, "Oslo"]], "Empty": []}, title="T", author="Ann")
PPTX = pptx(
    shape("1", "sldNum") + shape("a point") + shape("First one", "title"),
    PICTURE,
    "<p:graphicFrame><a:tbl><a:tr><a:tc><a:p><a:t>a</a:t></a:p></a:tc><a:tc><a:p><a:t>b</a:t></a:p></a:tc></a:tr></a:tbl>"
    "</p:graphicFrame><p:grpSp>" + shape("in a group") + "</p:grpSp>",
    notes={1: shape("say this", "body") + shape("1", "sldNum")}, title="T", author="Ann",
)  # fmt: skip
ODT = open_document(
    '<text:h text:outline-level="1">Top</text:h><text:p>A <text:span>big</text:span><text:s/>one'
    "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>A note.</text:p></text:note-body>"
    "</text:note>, &lt;b&gt;<office:annotation><text:p>COMMENT</text:p></office:annotation>.</text:p>"
    "<text:tracked-changes><text:p>GONE</text:p></text:tracked-changes>"
    "<text:list><text:list-item><text:p>x</text:p></text:list-item><text:list-item>"
    '<text:p>y</text:p></text:list-item></text:list><text:h text:outline-level="9">Deep</text:h><table:table>'
    "<table:table-row>"
    "<table:table-cell><text:p>1</text:p></table:table-cell><table:table-cell><text:p>2</text:p></table:table-cell>"
    "</table:table-row></table:table>",
    title="T &amp; U", author="Ann",
)  # fmt: skip
DC = "<dc:title>The book</dc:title><dc:creator>Ann</dc:creator><dc:creator>Bo</dc:creator><dc:language>en</dc:language>"
DC += "<dc:date>in spring</dc:date><dc:date>2009</dc:date>"
PAGE = "<html><head><title/></head><body>{}</body></html>"
EPUB = epub(
    {"b.xhtml": PAGE.format("<h1>One</h1><p>text"), "a%20b.xhtml": PAGE.format("<h2>Two</h2>more")}, metadata=DC
)
RTF = (
    rb"{\rtf1\ansi\ansicpg1252\deff0{\fonttbl{\f0\fcharset0 Arial;}{\f1\fcharset204 Arial;}}{\info"
    rb"{\title The \'fc title}{\author Ann}{\creatim\yr2023\mo1\dy2}{\revtim\yr2024\mo5\dy6}}"
    rb"One \u26085?\u-10179?\u-8704?{\b  bold}\par "
    rb"{\f1\'c6\'e6}{\footnote a note}{\pict\pngblip 89504e47}{\field{\*\fldinst{HYPERLINK "
    rb'"http://x.org"}}{\fldrslt link}}}'
)
MHTML = (
    b"From: <Saved by Blink>\nSnapshot-Content-Location: https://x.org/page\nDate: Mon, 6 May 2024 09:08:09 +0200\n"
    b'MIME-Version: 1.0\nContent-Type: multipart/related; type="text/html"; boundary="B"\n\n--B\n'
    b"Content-Type: text/html\nContent-Transfer-Encoding: quoted-printable\nContent-Location: https://x.org/page\n\n"
    b"<meta charset=3Dutf-8><title>T</title><h1>Gr=C3=BC=C3=9Fe</h1><p>The text\n--B\nContent-Type: image/png\n"
    b"Content-Transfer-Encoding: base64\n\niVBORw0K\n--B\nContent-Type: text/html\n\n<p>A frame\n--B--\n"
)


def test_spreadsheets() -> None:
    sheet, hidden = read("a.xlsx", XLSX)
    assert sheet.text == (
        "Prices & more\n\nStock in May\n\nName | Price | Since\n"
        "Name: Lamp; Price: 12.5; Since: 2024-01-01\nName: Desk; Price: 1200\n\n"
        "Price: TRUE; Since: a b"
    )
    assert (sheet.place, hidden.place, hidden.text) == ("sheet Prices & more", "sheet Low", "Low\n\nsecret")
    assert (sheet.title, dict(sheet.fields)) == ("T", AUTHOR_AND_DATE)
    sheet = only("a.ods", ODS)
    assert sheet.text == "Prices\n\nName | Price | City\nName: Lamp; Price: 12.5; City: Oslo"
    assert sheet.place == "sheet Prices"
    assert (sheet.title, dict(sheet.fields)) == ("T", AUTHOR_AND_DATE)


UNNAMED = [["Desk", "blue", "Oslo"], ["Chair", "green", "Bern"]]


@together(
    ("rows", "text"),
    [
        ([["Name", "Ann"], ["Phone", 5551234567], ["Share", 0.1 + 0.2]], "Name | Ann\nPhone | 5551234567\nShare | 0.3"),
        ([["Lamp", "red", 12], *UNNAMED], "Lamp | red | 12\nDesk | blue | Oslo\nChair | green | Bern"),
        ([["red", "red", "blue"], *UNNAMED], "red | red | blue\nDesk | blue | Oslo\nChair | green | Bern"),
        ([["a", "b", "c" * 101], *UNNAMED], f"a | b | {'c' * 101}\nDesk | blue | Oslo\nChair | green | Bern"),
    ],
)  # fmt: skip
def test_a_sheet_without_headers_reads_as_it_stands(rows: list[list[object]], text: str) -> None:
    assert only("a.xlsx", xlsx({"A": rows})).text == f"A\n\n{text}"


def test_a_damaged_sheet_leaves_the_others() -> None:
    far = '<worksheet><sheetData><row r="1000000000"><c><v>1</v></c></row></sheetData></worksheet>'
    for damaged, reason in (("<worksheet><sheetData><row><c", ""), (far, "1,000,000,000 rows")):
        good, bad = read("a.xlsx", replaced(XLSX, sheet2_xml=damaged))
        assert good.text and not good.problems and (bad.text, bad.place) == ("", "sheet Low")
        assert [(problem.kind, reason in problem.reason) for problem in bad.problems] == [("left out", True)]


def test_slides() -> None:
    deck = only("a.pptx", PPTX)
    assert deck.text == "First one\na point\n\nsay this\n\n\n\na b\nin a group"
    assert [deck.text[page:].split("\n")[0] for page in deck.pages] == ["First one", "", "a b"]
    assert (headings(deck), deck.title) == ([(1, "First one"), (1, "a b")], "T")
    assert dict(deck.fields) == AUTHOR_AND_DATE
    assert [(problem.kind, problem.reason[:7]) for problem in deck.problems] == [("left out", "slide 2")]


def test_texts_of_diagrams_and_charts_belong_to_their_slide() -> None:
    drawing = "http://schemas.openxmlformats.org/drawingml/2006"
    chart = f'<c:chart xmlns:c="{drawing}/chart"><c:strCache><c:pt><c:v>East</c:v>'
    diagram = f'<d xmlns:a="{drawing}/main"><a:p><a:t>step</a:t></a:p></d>'
    links = references(chart_1="../c.xml", diagramData_1="../d.xml")
    data = replaced(pptx(shape("a"), notes={1: ""}), slide1_xml_rels=links)
    with zipfile.ZipFile(file := io.BytesIO(data), "a") as archive:
        archive.writestr("ppt/c.xml", chart + "</c:pt><c:pt><c:v>West</c:v></c:pt></c:strCache></c:chart>")
        archive.writestr("ppt/d.xml", diagram)
    assert only("a.pptx", file.getvalue()).text == "a\nEast West\nstep"


@pytest.mark.parametrize("content", [None, "<p:sld", f"{BOMB}<x>&b;</x>"])
def test_a_slide_that_is_missing_or_damaged_leaves_the_others(content: str | None) -> None:
    deck = only("a.pptx", replaced(PPTX, slide1_xml=content))  # the third
    assert deck.text.startswith("First one") and len(deck.pages) == 3
    assert [problem.reason.partition(":")[0] for problem in deck.problems] == ["slide 2", "slide 3"]


@together(
    ("name", "data", "text", "found_headings", "title", "fields"),
    [
        ("a.odt", ODT, "Top\n\nA big one, <b>.\n\nx\ny\n\nDeep\n\n1 2\n\nA note.", [(1, "Top"), (6, "Deep")], "T & U",
         AUTHOR_AND_DATE),
        ("a.docx", docx(paragraph("text"), more={"docProps/core.xml": core("T", "Ann").encode()}), "text", [], "T",
         AUTHOR_AND_DATE),
        ("a.epub", EPUB, "One\n\ntext\n\nTwo\n\nmore", [(1, "One"), (2, "Two")], "The book",
         {"author": "Ann, Bo", "date": "2009", "lang": "en"}),
        ("a.rtf", RTF, "One 日😀 bold\nЖжlink", [], "The ü title",
         AUTHOR_AND_DATE | {"date": "2024-05-06T00:00:00+00:00"}),
        ("a.rtf", rb"{\rtf1 " + rb'{\field{\*\fldinst{HYPERLINK "http://x.org"}}{\fldrslt {a link}}}' * 2000 + b"}",
         "a link" * 2000, [], "", {}),
        ("a.mhtml", MHTML, "Grüße\n\nThe text", [(1, "Grüße")], "T",
         {"url": "https://x.org/page", "date": "2024-05-06T07:08:09+00:00"}),
    ],
)  # fmt: skip
def test_texts_headings_titles_and_fields(
    name: str, data: bytes, text: str, found_headings: object, title: str, fields: dict[str, str]
) -> None:
    found = only(name, data)
    assert (found.text, headings(found), found.title, dict(found.fields)) == (text, found_headings, title, fields)
    assert ["notes" in problem.reason for problem in found.problems] == [True] * (data == RTF)


def test_a_chapter_is_read_once_and_nothing_outside_of_the_archive() -> None:
    items = '<item id="c" href="a.html" media-type="text/html"/></manifest><spine>' + '<itemref idref="c"/>' * 3
    package = f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</spine></package>'
    assert only("a.epub", replaced(epub({"a.html": "text"}), book_opf=package)).text == "text"
    book = only("a.epub", epub({"../../../etc/passwd": None, "b.html": "<p>text<img src='file:///etc/passwd'>"}))
    assert book.text == "text" and len(book.problems) == 1


def test_a_chapter_that_is_missing_encrypted_or_a_picture_is_said() -> None:
    cipher = '<e xmlns:x="http://www.w3.org/2001/04/xmlenc#"><x:CipherReference URI="OEBPS/c.html"/></e>'
    chapters = {"a.html": None, "b.html": "<img src='x.png'>", "c.html": "<p>SECRET", "d.html": "<p>text"}
    book = only("a.epub", epub(chapters, more={"META-INF/encryption.xml": cipher}))
    assert book.text == "text"
    assert [problem.reason.removeprefix("OEBPS/")[0] for problem in book.problems] == ["a", "b", "c"]


@pytest.mark.parametrize("charset", ["koi8-r", "unknown"])
def test_the_encoding_of_a_web_archive_is_that_of_its_header(charset: str) -> None:
    text = "возврат" if charset == "koi8-r" else "return"
    head = f"Content-Type: text/html; charset={charset}\nContent-Transfer-Encoding: 8bit\n\n<meta charset=utf-8><p>"
    assert only("a.mht", head.encode() + text.encode("koi8-r")).text == text


FILES = {"a.xlsx": XLSX, "a.ods": ODS, "a.pptx": PPTX, "a.odt": ODT, "a.epub": EPUB, "a.rtf": RTF, "a.mhtml": MHTML}
ZIPPED = [name for name in FILES if name not in ("a.rtf", "a.mhtml")]


@together("name", FILES)
def test_damaged_files_give_a_document_or_an_error(name: str) -> None:
    data = FILES[name]
    half = len(data) // 2
    for damaged in (b"", b"no", data[:half], data[:-30], data[:half] + data[half + 9 :]):
        try:
            assert read(name, damaged)
        except UnreadableError as problem:
            assert problem.message
    for other in (b"no", docx(paragraph("text"))):
        with pytest.raises(UnreadableError):
            read(name, other)


@together("name", ZIPPED)
def test_encrypted_archives_and_those_that_unpack_to_too_much_are_called_so(name: str) -> None:
    data = bytearray(FILES[name])
    struct.pack_into("<I", data, data.index(b"PK\1\2") + 24, 2**28 + 2**20)  # the size of the first part
    assert_unreadable(name, bytes(data), "when unpacked")
    assert_unreadable(name, zipped({"a.xml": b"<a/>" * 2**21}), "when unpacked")  # 8 MiB, a thousand times its size
    assert_unreadable(name, ENCRYPTED, "is encrypted")
    assert_unreadable(name, OLE, "Office 97")
    data = bytearray(FILES[name])
    for entry in (b"PK\1\2", b"PK\3\4"):
        data[data.index(entry) + (8 if entry == b"PK\1\2" else 6)] |= 1
    assert_unreadable(name, bytes(data), "is encrypted")
    if name.startswith("a.od"):
        assert_unreadable(name, replaced(FILES[name], manifest_xml="<m><encryption-data/></m>"), "is encrypted")


OUTSIDE = '<!DOCTYPE x [<!ENTITY b SYSTEM "file:///etc/passwd">]>'
MAIN_PARTS = {"a.xlsx": "sheet1_xml", "a.ods": "content_xml", "a.pptx": "presentation_xml"}
MAIN_PARTS |= {"a.odt": "content_xml", "a.epub": "book_opf"}


@together("declared", [BOMB, OUTSIDE, f"<!--{' ' * 9999}-->{BOMB}"])
@together("name", MAIN_PARTS)
def test_a_document_type_is_refused(name: str, declared: str) -> None:
    assert_unreadable(name, replaced(FILES[name], **{MAIN_PARTS[name]: f"{declared}<x>&b;</x>"}), "DOCTYPE")


@together(
    ("name", "data", "reason"),
    [
        ("a.xlsx", xlsx({"A": []}), "no sheet with text"),
        ("a.xlsx", replaced(xlsx({"A": []}), sheet1_xml="<x"), "no sheet with text .the sheet is damaged"),
        ("a.ods", ODT, "not a readable .ods"),
        ("a.pptx", pptx(PICTURE), "only pictures"), ("a.pptx", pptx(), "no text"),
        ("a.pptx", replaced(PPTX, presentation_xml=None), "ppt/presentation.xml is missing"),
        ("a.odt", ODS, "not an OpenDocument text"),
        ("a.odt", replaced(ODT, content_xml=None), "content.xml is missing"),
        ("a.odt", open_document("<text:span>" * 5000 + "</text:span>" * 5000), "nested too deeply"),
        ("a.epub", epub({"a.html": None}), "a.html is missing"),
        ("a.epub", zipped({"a": "b"}), "container.xml is missing"),
        ("a.odt", open_document("<text:p> </text:p>"), "has no text"), ("a.rtf", rb"{\rtf1 \par}", "has no text"),
        ("a.mhtml", b"Content-Type: text/html\n\n<p>", "has no text"), ("a.rtf", b"plain", "not RTF"),
        ("a.mhtml", b"Subject: a\n\ntext", "no HTML page"),
    ],
)  # fmt: skip
def test_files_without_text_say_why(name: str, data: bytes, reason: str) -> None:
    assert_unreadable(name, data, reason)


PASTED = b" ![](data:image/png;base64," + b"iVBORw0K" * 30 + b")"
NESTED = MAIL.replace(b"\n--B--", b"\n--B\nContent-Type: message/rfc822\n\n" + MAIL)
SEEDS = {
    "text": b"one\r\ntwo\n", "markdown": b"---\ntitle: a\n---\n# A" + PASTED + b"\n```\nx\n```\nB\n---\n",
    "rst": b"===\nA\n===\nB\n--\n",
    "code": b"class A:\n  def f(x):\n", "html": HTML.encode(), "pdf": pdf("One", "Two", title="T"),
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


@pytest.mark.parametrize("kind", SEEDS)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
