"""What readers find in files of each kind: texts in any encoding, headings, pages, fields, lines and no data."""

import base64
import datetime
import io
import json
import re
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mlxbert.errors import ArgumentError
from mlxbert.readers.formats import read_records
from mlxbert.search.documents.document import Document, UnreadableError
from mlxbert.search.documents.document_kinds import KINDS, DocumentKind, kind_of, read_documents
from mlxbert.search.documents.embedded_data import without_embedded_data
from mlxbert.search.documents.encodings import check_chosen_encoding, decode, find_codec
from mlxbert.search.documents.table_documents import DocumentColumns, find_separator, read_record_documents
from mlxbert.train.data.labelled_rows import read_rows
from tests.helpers.cases import together
from tests.helpers.papers import DOCUMENT, docx, paragraph, pdf, pdf_of

pytestmark = pytest.mark.usefixtures("here")


def read(name: str, data: bytes) -> list[Document]:
    kind = kind_of(name, data)
    assert kind is not None
    return [*read_documents(name, data, kind)]


def only(name: str, data: bytes | str) -> Document:
    (document,) = read(name, data.encode() if isinstance(data, str) else data)
    return document


def headings(document: Document) -> list[tuple[int, str]]:
    """Level and text of each; all stand where they say."""
    for one in document.headings:
        assert document.text[one.start :].lstrip("#= -*").startswith(one.text[:5]) or document.text[one.start] in "=-#"
    assert [one.start for one in document.headings] == sorted(one.start for one in document.headings)
    return [(one.level, one.text) for one in document.headings]


@together(
    ("name", "start", "kind"),
    [
        ("A.TXT", b"text", "text"), ("Makefile", b"all:\n", "text"), ("a.md", b"", "markdown"), ("a.rst", b"", "rst"),
        ("dir.pdf/a.py", b"x = 1", "code"), ("a.html", b"\0", "html"), ("a.pdf", b"", "pdf"),
        ("a", b"%PDF-1.7\n", "pdf"), ("a.docx", b"PK", "word"), ("a.eml", b"", "mail"), ("a.mbox", b"", "mail"),
        ("a.ipynb", b"{", "notebook"),
        ("a.csv.gz", b"\x1f\x8b", "records"), ("a.jsonl", b"", "records"), ("a.parquet", b"PAR1", "records"),
        ("a.txt", "ü".encode("utf-16"), "text"), ("a.txt", "ü".encode("latin-1"), "text"), ("a.txt", b"ab\0", None),
        ("a.md", b"\x89PNG\r\n\x1a\n\0", None), ("a.gz", b"\x1f\x8b\x08\xff", None), ("a.ts", b"G\x40\x11\x10\0", None),
        ("a.xyz", "é".encode() * 8192, "text"), ("a.XLSX", b"PK", "spreadsheet"), ("a.xlsm", b"PK", "spreadsheet"),
        ("a.ods", b"PK", "spreadsheet"), ("a.pptx", b"PK", "slides"), ("a.odt", b"PK", "opendocument"),
        ("a.epub", b"PK", "epub"), ("a.rtf", b"", "rtf"), ("a.mhtml", b"", "mhtml"), ("a.mht", b"", "mhtml"),
    ],
)  # fmt: skip
def test_kinds(name: str, start: bytes, kind: str | None) -> None:
    assert kind_of(name, start) == kind
    assert kind_of(name, start[:8192]) == kind  # wherever the last character is cut


@together("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
def test_plain_text_keeps_its_lines(encoding: str) -> None:
    found = only("a.txt", "“one”\r\ntwö\r\n\r\nthree\n".encode(encoding))
    assert (found.text, found.first_line) == ("“one”\ntwö\n\nthree\n", 1)
    assert only("a.txt", b"one\rtwo\r").text == "one\ntwo\n"


def test_markdown() -> None:
    found = only(
        "a.md",
        "---\nlang: en\ntitle: 'The title'\n---\n# One ##\ntext\n```sh\n# comment\n```\n~~~\n```\n# no\n~~~\n"
        "Two\n===\n* a\n---\n#hash\n   ### Three `x`\n\n---\n\n| a |\n|---|\nin the table\n---\n\nFour\n-\n#\n",
    )
    assert headings(found) == [(1, "One"), (1, "Two"), (3, "Three `x`"), (2, "Four")]
    assert (found.title, found.first_line) == ("The title", 1)
    assert found.text[found.headings[1].start :].startswith("Two\n===")
    assert only("b.md", "---\n# One\n---\n").title == ""


@together(
    ("text", "expected"),
    [  # the library's tests have the rules of CommonMark; these are what is made of its headings
        ("# C# #", [(1, "C#")]), ("# F\\#\n", [(1, "F#")]), ("## Two ##  \ntext", [(2, "Two")]),
        ("#\n##  ##\n# One", [(1, "One")]), ("   # Three spaces\n    # Four", [(1, "Three spaces")]),
        ("Two\nlines\n===", [(1, "Two lines")]), ("- item\n---", []), ("- # Item\n- b\n  ===", [(1, "Item"), (1, "b")]),
        ("> # Quote\n> text\n---", [(1, "Quote")]), ("> Title\n> ---", [(2, "Title")]),
        ("[site]: http://x.org\nTitle\n---", [(2, "Title")]), ("<!-- note\n# hidden\n-->\n# Seen", [(1, "Seen")]),
        ("~~~\n# code\n```\n~~~\n# After", [(1, "After")]), ("- a\n\n  # In\n\n# Out", [(1, "In"), (1, "Out")]),
        ("para\n# Breaks\npara", [(1, "Breaks")]), ("`code\nmore`\n---", [(2, "`code more`")]),
        ("\\# no\n\n&#35; no\n# *Yes* `x`", [(1, "*Yes* `x`")]),
    ],
)  # fmt: skip
def test_headings_of_markdown_are_those_of_commonmark(text: str, expected: list[tuple[int, str]]) -> None:
    found = only("a.md", text).headings
    assert [(one.level, one.text) for one in found] == expected
    assert all(one.start == 0 or text[one.start - 1] == "\n" for one in found)


@together(
    ("front", "title", "fields"),
    [
        ("---\ntitle: >-\n  Why we\n  moved\n---\n", "Why we moved", {}),
        ("---\ntitle: |\n  The bill\ndate: 2026-01-01\n---\n", "The bill", {"date": "2026-01-01"}),
        ("---\n# a note\nTitle: House # draft\n...\n", "House", {}),
        ('---\ntitle: "Notes: \\"quoted\\" \\u00fc"\n---\n', 'Notes: "quoted" ü', {}),
        ("---\ntitle: 'It''s'\nlang: no\ntime: 1:30\n---\n", "It's", {"lang": "no", "time": "1:30"}),
        ("---\nauthor:\n  title: Dr\ntitle: The real one\n---\n", "The real one", {}),
        ("---\ntags: [a, 2]\nby:\n- Ann\n- Bo\nempty:\n---\n", "", {"tags": "a, 2", "by": "Ann, Bo"}),
        ("---\na: &a [x, y]\nb: *a\n---\n", "", {"a": "x, y", "b": "x, y"}),
        ('+++\ntitle = "Spring"\ndate = 2026-02-02\ndraft = true\n[x]\ny = 1\n+++\n', "Spring",
         {"date": "2026-02-02", "draft": "true"}),
        ("---\nNote: bring the key\nand the pump\n---\n", "", {}),
        ("---\n# One\n---\n", "", {}), ("---\n\nNote: this is prose\n\n---\n", "", {}), ("---\na: b\n", "", {}),
    ],
)  # fmt: skip
def test_front_matter_is_yaml_or_toml(front: str, title: str, fields: dict[str, str]) -> None:
    found = only("a.md", f"{front}# Text\n")
    assert (found.title, dict(found.fields), found.problems, found.text) == (title, fields, (), f"{front}# Text\n")
    assert headings(found)[-1] == (1, "Text")


@together("hostile", ["a: " + "[" * 9000, "<<: *none", "- " * 8000, "a: !!python/object:os.x {}"])
def test_front_matter_that_is_damaged_is_read_as_it_stands(hostile: str) -> None:
    found = only("a.md", f"---\ntitle: Part: two\n{hostile}\n---\n# Text\n")
    assert (found.title, [problem.kind for problem in found.problems]) == ("Part: two", ["guessed"])
    values = "\n".join(f"k{n}: [{', '.join([f'*a{n - 1}'] * 9)}]" if n else "k0: &a0 x" for n in range(2))
    assert only("a.md", f"---\n{values}\n---\n").fields["k1"] == ", ".join("x" * 9)


@together(
    ("name", "text", "expected"),
    [
        ("a.rst", "====\nTop\n====\n\nOne\n---\n\ntext::\n\n    No\n    --\n\nDeep\n~~~~\n\nTwo\n---\n\nToo long\n--\n",
         [(1, "Top"), (2, "One"), (3, "Deep"), (2, "Two")]),
        ("a.py", "class A(B):\n    def f(self) -> int:\n        # function of x\n\n\nasync def g():\n    pass\n",
         [(1, "class A(B)"), (2, "def f(self) -> int"), (1, "async def g()")]),
        ("a.rs", "pub(crate) fn f() {\n}\nimpl A for B {\n    pub fn g(&self) {}\n}\nstruct C\n{}\n",
         [(1, "pub(crate) fn f()"), (1, "impl A for B"), (2, "pub fn g(&self) {}"), (1, "struct C")]),
    ],
)  # fmt: skip
def test_headings_of_restructured_text_and_code(name: str, text: str, expected: list[tuple[int, str]]) -> None:
    found = only(name, text)
    assert headings(found) == expected and found.headings[0].start == 0


PAGE = """<!doctype html><html lang=de><head><title> A  page </title><style>p{}</style></head><body>
<header>HEAD</header><nav>NAV</nav><script>x()</script><main><article><header><h1>The <b>big</b> one</h1></header>
<p>First  part,<br>second&nbsp;line.</p><ul><li>a<li>b</ul><pre>
def f():
    pass</pre><table><tr><td>1<td>2<tr><td>3</table><h2></h2><h3>Low</h3><form><input>Search</form></article></main>
<aside>ASIDE</aside><footer>FOOT</footer></body></html>"""


def test_html() -> None:
    found = only("a.html", PAGE)
    start = "HEAD\n\nThe big one\n\nFirst part,\nsecond line.\n\na\nb\n\n"
    assert found.text == f"{start}def f():\n    pass\n\n1 2\n3\n\nLow\n\nSearch\n\nASIDE\n\nFOOT"
    assert (found.title, dict(found.fields), found.first_line) == ("A page", {"lang": "de"}, None)
    assert headings(found) == [(1, "The big one"), (3, "Low")]


LINKS = "<ul><li><a href=/>Home</a><li><a href=/a>About us</a></ul>"


@together(
    ("body", "text"),
    [
        (f"<header><h1>Storm closes port</h1>{LINKS}</header><p>Rain.", "Storm closes port\n\nRain."),
        (f"<header><a href=/>Shop</a>{LINKS}<p>now</p></header><p>Rain.", "Rain."),
        (f"<main><header><h1><a href=/>Storm</a></h1>by <a href=/>Ada</a></header><p>Rain.{LINKS}</main>",
         "Storm\n\nby Ada\n\nRain.\n\nHome\nAbout us"),
        (f"<p>Rain.<footer>{LINKS} © 2026</footer>", "Rain."),
        (f"<p>Rain.<footer>Open from nine to six on all days but Sundays. {LINKS}</footer>",
         "Rain.\n\nOpen from nine to six on all days but Sundays.\n\nHome\nAbout us"),
        (f"<aside>{LINKS}</aside><aside class=note>Unplug the lamp before you open it.</aside><p>Rain.",
         "Unplug the lamp before you open it.\n\nRain."),
        (f"<aside><nav>{LINKS}</nav>Unplug it.</aside><p>Rain.", "Unplug it.\n\nRain."),
        (f"<nav><h2>Menu</h2>{LINKS}<main><p>The navigation is not closed.</main>",
         "Menu\n\nHome\nAbout us\n\nThe navigation is not closed."),
        ("<form id=aspnetForm><input type=hidden><div><span>All of the page</span></div><button>Go</button></form>",
         "All of the page"),
        ("<h2><button>Can I return it?</button></h2><p>Yes.", "Can I return it?\n\nYes."),
        (f"<aside><h2>See also</h2>{LINKS}</aside>", ""),
        (f"<header><h1>One</h1>{LINKS}<h2>Two</h2></header>", "One\n\nTwo"),
    ],
)  # fmt: skip
def test_only_navigation_is_left_out_of_a_page(body: str, text: str) -> None:
    found = only("a.html", f"<title>T</title>{body}")
    assert found.text == text
    assert len(headings(found)) == body.count("<h") - body.count("<header") - body.count("<h2>See")


CELL = "<tr><td><p>Item</p><td><div>Price</div><br>net</tr>"
LONG = " ".join(["word"] * 200)


@together(
    ("body", "text"),
    [
        (f"<table>{CELL}{CELL}</table><p>end", "Item Price net\nItem Price net\n\nend"),
        (f"a<table><tr><th>A<th>B{CELL}</table>", "a\n\nA B\nItem Price net"),
        ("<table><tr><td><pre>1\n2</pre><td><pre>a\nb</pre></table>", "1\n2\n\na\nb"),
        ("<table><tr><td><td><p>only<p>text</table>", "only\n\ntext"),
        ("<table><tr><td><h1>T</h1><p>a<td>b</table>", "T\n\na\n\nb"),
        (f"<table><tr><td><p>{LONG}<p>{LONG}<td>b</table>", f"{LONG}\n\n{LONG}\n\nb"),  # longer than a passage
    ],
)  # fmt: skip
def test_a_row_of_a_table_is_a_line_unless_it_lays_out_the_page(body: str, text: str) -> None:
    assert only("a.html", body).text == text


END_DELETED = "<w:p><w:pPr><w:rPr><w:del/></w:rPr></w:pPr><w:r><w:t>last</w:t></w:r></w:p>"


@together(
    ("said", "encoding"), [("shift_jis", "shift_jis"), ("latin-1", "utf-8"), ("no-such", "cp1252"), ("utf-16", "utf-8")]
)
def test_html_in_another_encoding(said: str, encoding: str) -> None:
    text = "日本" if encoding == "shift_jis" else "“é”"
    assert only("a.html", f'<meta charset="{said}"><p>{text}'.encode(encoding)).text == text


def test_pdf() -> None:
    found = only("a.pdf", pdf("One", "", "Three", title="A  title"))
    assert (found.text, found.title, found.pages) == ("One\n\n\n\nThree", "A title", (0, 5, 7))
    (problem,) = found.problems
    assert problem.kind == "left out" and problem.reason.startswith("1 of") and problem.reason.endswith("page 2)")
    assert only("a.pdf", pdf("Large", box="0 0 1000000000 1000000000")).text == "Large"


def test_word() -> None:
    found = only("a.docx", docx(paragraph("Top", "Heading1"), paragraph("A &amp; B"), title="T &amp; U"))
    assert (found.text, found.title, headings(found)) == ("Top\n\nA & B", "T & U", [(1, "Top")])
    assert only("a.docx", docx(paragraph("<!-- <!DOCTYPE html> -->text"))).text == "text"
    file = io.BytesIO(docx(paragraph("text")))
    with zipfile.ZipFile(file, "a", zipfile.ZIP_STORED) as archive:
        archive.writestr("word/media/a.png", b"a picture")  # which is damaged then
    assert only("a.docx", file.getvalue().replace(b"a picture", b"a Picture")).text == "text"


def run(text: str) -> str:
    return f"<w:r><w:t>{text}</w:t></w:r>"


def table(*rows: list[str]) -> str:
    lines = ("".join(f"<w:tc><w:tcPr/>{cell}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{line}</w:tr>' for line in lines)}</w:tbl>"


FORMULA = (
    '<m:oMath xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"><m:sSup><m:e><m:r><m:t>x</m:t></m:r>'
    "</m:e><m:sup><m:r><m:t>2</m:t></m:r></m:sup></m:sSup></m:oMath>"
)
ROWS_OF_WORD = [[paragraph("Item"), paragraph("Price")], [paragraph("Lamp") + paragraph("of brass"), paragraph("19")]]


@together(
    ("body", "text"),
    [
        (table(*ROWS_OF_WORD) + paragraph("after"), "Item Price\nLamp of brass 19\n\nafter"),
        (table([paragraph("a") + table(*ROWS_OF_WORD), paragraph("b")]), "a\n\nItem Price\nLamp of brass 19\n\nb"),
        (f'<w:p>on <w:fldSimple w:instr="DATE">{run("Monday")}</w:fldSimple></w:p>', "Monday"),
        (f"<w:p><w:smartTag><w:customXml>{run('a')}</w:customXml></w:smartTag><w:bdo>{run(' b')}</w:bdo></w:p>", "a b"),
        (f"<w:p>{run('Area ')}{FORMULA}</w:p><w:sdt><w:sdtContent>{paragraph('c')}</w:sdtContent></w:sdt>",
         "Area x^2\n\nc"),
        (f"<w:p><w:del>{run('no')}<w:r><w:delText>no</w:delText></w:r></w:del><w:ins>{run('yes')}</w:ins>"
         f"<w:moveFrom>{run('no')}</w:moveFrom><w:moveTo>{run('!')}</w:moveTo></w:p>", "yes!"),
        (f"<w:p><w:pPr><w:rPr><w:del/></w:rPr></w:pPr>{run('one')}</w:p>{paragraph('word')}", "oneword"),
        ("<w:p><w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t><w:instrText>no</w:instrText></w:r></w:p>",
         "a b\nc"),
        ('<w:p><w:pPr><w:numPr/></w:pPr><w:r><w:t>x</w:t></w:r></w:p>' * 2, "x\nx"),
        (paragraph("a") + END_DELETED, "a\n\nlast"),  # no paragraph follows
        (f"<w:tbl><w:tr><w:tc>{END_DELETED}</w:tc><w:tc>{paragraph('b')}</w:tc></w:tr></w:tbl>", "last b"),
    ],
)  # fmt: skip
def test_word_keeps_what_it_shows(body: str, text: str) -> None:
    assert only("a.docx", docx(body)).text == text


def test_headings_of_word_have_names_that_are_not_their_ids_and_notes_come_last() -> None:
    relations = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    links = "".join(
        f'<Relationship Id="{kind}" Type="{relations}/{kind}" Target="{kind}.xml"/>' for kind in ("styles", "footnotes")
    )
    names = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    styles = '<w:style w:styleId="berschrift2"><w:name w:val="heading 2"/></w:style>'
    notes = "".join(f'<w:footnote w:id="{n}">{paragraph(f"note {n}")}</w:footnote>' for n in range(3))
    more = {
        "word/_rels/document.xml.rels": f"<Relationships>{links}</Relationships>",
        "word/styles.xml": f"<w:styles {names}>{styles}</w:styles>",
        "word/footnotes.xml": f"<w:footnotes {names}>{notes}</w:footnotes>",
    }
    body = paragraph("Low", "berschrift2") + '<w:p><w:r><w:t>a</w:t><w:footnoteReference w:id="2"/></w:r></w:p>'
    found = only("a.docx", docx(body, more={name: part.encode() for name, part in more.items()}))
    assert (found.text, headings(found)) == ("Low\n\na\n\nnote 2", [(2, "Low")])


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
ENCRYPTED = pdf_of(
    [b"<</Type/Catalog>>", b"<</Filter/Standard/V 1/R 2/P -4/O(%s)/U(%s)>>" % (b"a" * 32, b"b" * 32)],
    b"/Encrypt 2 0 R/ID[(a)(a)]",
)


@together(
    ("name", "data", "said"),
    [
        ("a.pdf", b"no", "not a readable PDF"), ("a.pdf", b"", "not a readable PDF"),
        ("a.pdf", pdf(""), "only pictures"),
        ("a.pdf", ENCRYPTED, "encrypted"), ("a.docx", b"PK\3\4", "not a readable .docx"),
        ("a.docx", b"\xd0\xcf\x11\xe0\0", "encrypted"),
        ("a.docx", docx(paragraph("&b;"), before=BOMB), "DOCTYPE"),
        ("a.docx", docx(paragraph("&b;"), before=f"<!--{' ' * 9999}-->{BOMB}"), "DOCTYPE"),
        ("a.docx", docx("<w:p>" * 5000 + "</w:p>" * 5000), "nested too deeply"),
        ("a.docx", docx(more={"word/media/a.png": bytes(2**22 + 2**15)}), "when unpacked"),
        ("a.eml", b"\n\nno headers", "no e-mail headers"), ("a.mbox", b"no messages", "no readable message"),
        ("a.ipynb", b"{", "not valid JSON"), ("a.ipynb", b"[]", "not a notebook"),
        ("a.ipynb", b"[" * 10**5, "too deeply"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_read(name: str, data: bytes, said: str) -> None:
    assert_unreadable(name, data, said)


def assert_unreadable(name: str, data: bytes, said: str) -> None:
    with pytest.raises(UnreadableError, match=said) as problem:
        read(name, data)
    assert name not in problem.value.message


@together("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "latin-1"])
@together("name", ["word/document.xml", "word/document", "word/document.dat"])
def test_a_part_of_word_with_a_document_type_is_refused_in_any_encoding(name: str, encoding: str) -> None:
    whole = docx(paragraph("&b;"), before=BOMB)
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(encoding, b"")
    said = f'<?xml version="1.0" encoding="{encoding[:6] if "16" in encoding else encoding}"?>'
    found = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(found, "w") as new:
        for part in old.namelist():
            text = old.read(part).decode().replace("word/document.xml", name)
            if part == DOCUMENT:
                text = said + text[text.index("<!DOCTYPE") :]
            data = mark + text.encode(encoding) if part == DOCUMENT else text.encode()
            new.writestr(name if part == DOCUMENT else part, data)
    with pytest.raises(UnreadableError, match=f"{name} contains a DOCTYPE"):
        read("a.docx", found.getvalue())


MAIL = b"""From: =?utf-8?q?J=C3=BCrgen?= <j@x.org>
To: a@x.org,
 b@x.org
Subject: =?iso-8859-1?q?Gr=FC=DFe?= and more
Date: Tue, 6 Jan 2026 23:30:00 -0200
Content-Type: multipart/mixed; boundary=B

--B
Content-Type: text/html; charset=utf-8

<h1>Hello</h1><p>html
--B
Content-Type: text/plain; charset=iso-8859-1
Content-Transfer-Encoding: quoted-printable

plain =FC
--B
Content-Type: text/plain
Content-Disposition: attachment; filename=a.txt

attached
--B--
"""


def test_mail_and_mailboxes() -> None:
    found = only("a.eml", MAIL)
    assert (found.text, found.title, found.place) == ("Hello\n\nhtml\n\nplain ü", "Grüße and more", "")
    assert headings(found) == [(1, "Hello")]
    assert [(problem.kind, "a.txt" in problem.reason) for problem in found.problems] == [("left out", True)]
    assert dict(found.fields) == {
        "from": "Jürgen <j@x.org>", "to": "a@x.org, b@x.org", "date": "2026-01-07T01:30:00+00:00",
    }  # fmt: skip
    page = only("a.eml", b"Subject: s\nDate: never\nContent-Type: text/html\n\n<h2>Hi</h2>you")
    assert (page.text, headings(page), dict(page.fields)) == ("Hi\n\nyou", [(2, "Hi")], {})
    box = b"From a b\nSubject: 1\n\nFrom here\n>From me\n\nFrom b\n" + MAIL + b"\nFrom c\nSubject: 3\n\n"
    first, second, third = read("a.mbox", box)
    assert (first.text, first.title, first.place) == ("From here\nFrom me", "1", "message 1")
    assert (second.title, second.place) == ("Grüße and more", "message 2")
    assert (third.text, third.title, third.place) == ("", "3", "message 3")


def test_notebooks() -> None:
    cells: list[dict[str, Any]] = [
        {"cell_type": "markdown", "source": ["# Top\n", "text"]},
        {"cell_type": "code", "source": "# no heading\nx = 1", "outputs": [{"text": "OUT"}]},
        {"cell_type": "code", "source": []},
        {"cell_type": "markdown", "source": "more\n\n## Low"},
    ]
    found = only("a.ipynb", json.dumps({"cells": cells}))
    assert found.text == "# Top\ntext\n\n# no heading\nx = 1\n\nmore\n\n## Low"
    assert headings(found) == [(1, "Top"), (2, "Low")] and found.first_line is None
    digits = '[{"data": {"application/json": ' + "1" * 5000 + "}}]"  # may be as many as one likes
    assert only("a.ipynb", f'{{"cells": [{{"cell_type": "code", "source": "x", "outputs": {digits}}}]}}').text == "x"


ORG = (
    "#+TITLE: My notes\n#+FILETAGS: :private:\n* DONE [#A] Buy *milk* :shop:home:\n  :PROPERTIES:\n  :ID: 12\n  :END:\n"
    "  See [[https://x.org][the site]], [[file:a.org]] and =code= a*b*c.\n"
    "# comment\n** Low\n#+BEGIN_SRC\nhi\n#+END_SRC\n"
)
EVENT = (
    'BEGIN:VEVENT\r\nDTSTART;TZID="Europe: Berlin":20260114T090000\r\nSUMMARY:Dentist\\, upstairs\r\n'
    "LOCATION:Main street\r\nDESCRIPTION:Bring the ca\r\n rd\\nand\r\n"
    "BEGIN:VALARM\r\nDESCRIPTION:ALARM\r\nEND:VALARM\r\nEND:VEVENT\r\n"
)
CALENDAR = f"BEGIN:VCALENDAR\r\n{EVENT}BEGIN:VTODO\r\nSUMMARY:Pay\r\nDUE:20260202\r\nEND:VTODO\r\nEND:VCALENDAR\r\n"
SRT = "1\n00:00:01,000 --> 00:00:02,500\n<i>Where is</i>\n{\\an8}the key?\n\n2\n00:03 --> 00:04\n3 < 4 &amp; 5\n"
VTT = "WEBVTT\n\nSTYLE\n::cue {}\n\nNOTE x\n\na\n00:01.000 --> 00:02.000 line:0\n<v Ann>Hello <00:01.500><c>there</c>\n"


def test_outlines_calendars_and_subtitles_lose_their_markup() -> None:
    found = only("a.org", ORG)
    words = ":private: * Buy milk :shop:home: See the site, file:a.org and code a*b*c. ** Low hi"
    assert " ".join(found.text.split()) == words
    assert (found.title, headings(found)) == ("My notes", [(1, "Buy milk"), (2, "Low")])
    assert found.text.split("\n")[6].strip() == ORG.split("\n")[6].strip()[:4] + "the site, file:a.org and code a*b*c."
    code = "# note\n#+begin_src sh\n# install\n:name: x\n#+end_src\n# note\nb"
    assert only("a.org", code).text.split() == ["#", "install", ":name:", "x", "b"]
    event, task = read("a.ics", CALENDAR.encode())
    assert event.text == "Dentist, upstairs\n2026-01-14 09:00\nMain street\nBring the card\nand"
    assert (event.title, event.place, task.text, task.place) == (
        "Dentist, upstairs", "event 1", "Pay\n2026-02-02 00:00", "task 2"
    )  # fmt: skip
    assert dict(event.fields) == {"date": "2026-01-14T09:00:00+00:00", "location": "Main street"}
    assert only("a.srt", SRT).text == "Where is\nthe key?\n3 < 4 & 5"
    assert only("a.vtt", VTT).text == "Hello there"
    assert only("a.srt", "not subtitles").text == "not subtitles"
    assert_unreadable("a.ics", b"BEGIN:VCALENDAR\nEND:VCALENDAR\n", "no event")


Problem = tuple[str, str, str]
RECORDS = {
    "a.csv": b"id,title,body,n\n1,T,the cat sat,2\n2,,a dog,\n",
    "a.tsv": b"id\ttitle\tbody\tn\n1\tT\tthe cat sat\t2\n2\t\ta dog\t\n",
    "a.jsonl": b'{"id": "1", "title": "T", "body": "the cat sat", "n": "2", "l": [1]}\n'
    b'broken\n\n{"id": "2", "title": "", "body": "a dog", "n": "", "late": null}\n{"body": 3}\n',
}


def records(path: Path, data: bytes, columns: DocumentColumns | None = None) -> tuple[list[Document], list[Problem]]:
    """Returns the documents of a file of records, and its problems with their places."""
    path.write_bytes(data)
    documents = [*read_documents(path, b"", "records", columns or DocumentColumns())]
    problems = [(one.place, str(problem.kind), problem.reason) for one in documents for problem in one.problems]
    return [document for document in documents if document.text or not document.problems], problems


def firsts(documents: list[Document]) -> list[str]:
    """The texts of records, without their other columns."""
    return [document.text.partition("\n\n")[0] for document in documents]


@pytest.mark.parametrize("name", RECORDS)
def test_records(tmp_path: Path, name: str) -> None:
    (one, two), problems = records(path := tmp_path / name, RECORDS[name])
    assert [problem[:2] for problem in problems] == [
        ("", "guessed"),
        *[("line 2", "left out"), ("line 5", "left out")] * (name == "a.jsonl"),
    ]
    assert (one.text, one.title, two.title) == ("the cat sat\n\nid: 1; n: 2", "T", "")
    assert two.text == "a dog\n\nid: 2"
    assert dict(one.fields) == {"id": "1", "title": "T", "n": "2"}
    assert (one.place, one.first_line) == ("line 1" if name == "a.jsonl" else "line 2", None)
    chosen, problems = records(path, RECORDS[name], DocumentColumns("title", ("n",)))
    assert [place for place, *_ in problems] == ["line 2", "line 5"] * (name == "a.jsonl")
    assert [(one.text, dict(one.fields)) for one in chosen] == [("T", {"n": "2"}), ("", {"n": ""})]
    with pytest.raises(UnreadableError, match="'no'"):
        [*read_documents(path, b"", "records", DocumentColumns("no"))]


def test_the_other_columns_of_a_record_are_in_its_text_unless_one_is_chosen(tmp_path: Path) -> None:
    path, long = tmp_path / "plants.csv", "deep shade " * 20
    rows = f"name,n,text,title,soil\nlemon\xa0tree,2,Water it every week in summer,T,\nfern,,Likes shade,,{long}\n"
    (one, two, three, four), _ = records(path, f"{rows}cactus,7,,,\n,8,,,\n".encode())
    assert (one.text, one.title) == ("Water it every week in summer\n\nname: lemon tree; n: 2", "T")
    assert two.text == f"Likes shade\n\nname: fern\nsoil: {long.strip()}"
    assert (three.text, four.text) == ("name: cactus; n: 7", "")  # what has no letters is not worth a text
    for chosen in (DocumentColumns("text"), DocumentColumns(fields=())):
        (one, two), _ = records(path, rows.encode(), chosen)
        assert one.text == "Water it every week in summer" and two.text == "Likes shade"
    numbers = ",".join(map(str, range(10**20, 10**20 + 40)))
    (wide,), _ = records(path, f"text,{numbers}\nthe cat,{numbers}\n".encode())
    assert firsts([wide]) == ["the cat"] and 2 < wide.text.count(": ") < 9 and len(wide.fields) == 40
    values = '{"text": "a dog", "paid": true, "price": 2.5, "empty": null, "nested": {"a": 1}, "nan": NaN}\n'
    (one,), _ = records(tmp_path / "a.jsonl", values.encode())
    assert one.text == "a dog\n\npaid: true; price: 2.5"


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_separator_other_than_a_comma_is_guessed(tmp_path: Path, separator: str) -> None:
    rows = [["id", "text", "lang"], ["1", "a lamp, and a dog, too", "de"], ["2", '"quoted; ""x"" | \t"', "fr"]]
    data = "".join(f"{separator.join(row)}\n" for row in rows)
    documents, problems = records(tmp_path / "a.csv", data.encode())
    assert firsts(documents) == ["a lamp, and a dog, too", 'quoted; "x" | \t']
    assert dict(documents[1].fields) == {"id": "2", "lang": "fr"}
    assert [(place, kind) for place, kind, _ in problems] == [("", "guessed")]


@together(
    ("data", "separator"),
    [
        ("id,text\n1,a; b; c\n2,d; e; f\n", ","),
        ("id,text\n1,The lamp is broken, please send another\n", ","),
        ('id,text\n1,"a; b, c"\n2,"d; e, f"\n', ","),
        ("text\na; b\nc, d\n", ","), ("", ","), ("\n\n", ","),
        ('id;text\n1;"a, ""b"", c"\n2;"x;y"\n', ";"),
        ("id;name, first;text\n1;a;b, c\n2;a;d, e\n", ";"),
    ],
)  # fmt: skip
def test_separators(data: str, separator: str) -> None:
    assert find_separator(data.splitlines()) == separator


def test_a_row_with_too_many_cells_is_read_if_its_last_column_is_the_text(tmp_path: Path) -> None:
    data = b"id,text\n1,The lamp is broken, please send another\n2,ok, really\n3,short\n4\n"
    documents, problems = records(tmp_path / "a.csv", data)
    assert firsts(documents) == ["The lamp is broken, please send another", "ok, really", "short"]
    assert dict(documents[0].fields) == {"id": "1"}
    assert [(place, kind) for place, kind, _ in problems] == [
        ("line 2", "guessed"), ("line 3", "guessed"), ("line 5", "left out")
    ]  # fmt: skip
    documents, problems = records(tmp_path / "a.csv", b"text,id\nThe lamp is broken, please,1\nok,2\n")
    assert firsts(documents) == ["ok"]
    assert problems == [("line 2", "left out", "the row has 3 columns, but the header has 2")]
    documents, problems = records(tmp_path / "a.tsv", b"\tid\ttext\n0\t1\ta cat\tand a dog\n")
    assert firsts(documents) == ["a cat\tand a dog"] and dict(documents[0].fields) == {"id": "1"}


def test_bytes_of_a_table_that_are_not_utf_8_are_decoded(tmp_path: Path) -> None:
    text = "id,text\n1,café “crème”\n2,plain\n3,naïve\n"
    documents, problems = records(tmp_path / "a.csv", text.encode("cp1252"))
    assert firsts(documents) == ["café “crème”", "plain", "naïve"]
    assert [(place, kind, "cp1252" in reason) for place, kind, reason in problems] == [("", "guessed", True)]
    one_bad_byte = '{"text": "日本"}\n{"text": "日'.encode() + b'\xe9"}\n'
    documents, problems = records(tmp_path / "a.jsonl", one_bad_byte)
    assert firsts(documents) == ["日本", "日é"]
    assert [(place, kind) for place, kind, _ in problems] == [("line 2", "guessed")]
    documents, problems = records(tmp_path / "a.csv", b"id,text\n1,a\xe9\x81\n2,b\0\n")
    assert firsts(documents) == ["aé\ufffd"]
    assert [(place, kind) for place, kind, _ in problems] == [
        ("", "guessed"), ("line 3", "left out"), ("line 2", "guessed")
    ]  # fmt: skip


@together(
    ("encoding", "text"),
    [
        ("gb18030", "我们的退款政策是三十天之内可以退货"),
        ("cp1251", "Лампа разбита, пришлите другую, пожалуйста"),
        ("cp932", "ランプが壊れています①、別のものを送ってください"),
    ],
)  # fmt: skip
def test_the_encoding_of_a_table_is_detected(tmp_path: Path, encoding: str, text: str) -> None:
    documents, problems = records(tmp_path / "a.csv", f"id;text\n1;{text}\n2;{text * 2}\n".encode(encoding))
    assert firsts(documents) == [text, text * 2]
    assert [(place, kind, encoding in reason) for place, kind, reason in problems] == [
        ("", "guessed", True), ("", "guessed", False)
    ]  # fmt: skip
    (tmp_path / "b.jsonl").write_bytes(f'{{"text": "ascii"}}\n{{"text": "{text[:3]}"}}\n'.encode(encoding))
    documents = [*read_documents(tmp_path / "b.jsonl", b"", "records", encoding=encoding)]
    assert firsts(documents) == ["ascii", text[:3]] and not any(document.problems for document in documents)


@together("damaged", [b'{"text": ', b"\0", b'{"text": 3}', b"[]", b"\xff"])
@together("line", [1, 3, 5])
def test_of_five_records_with_a_damaged_one_four_are_read(tmp_path: Path, damaged: bytes, line: int) -> None:
    lines = [f'{{"text": "the text {number}"}}'.encode() for number in range(5)]
    lines[line - 1] = damaged
    documents, problems = records(tmp_path / "a.jsonl", b"\n".join(lines))
    assert len(documents) == 4 and ("left out", f"line {line}") in [(kind, place) for place, kind, _ in problems]


@together(
    ("data", "reason"),
    [
        (b"", "expected a header"), (b"id,text\n", "no records"), (b"id,n\n1,2\n", "columns: id, n"),
        (b"a,b\n1\n", "the row has 1 column"), (b'a,"b\n', "not valid csv"),
    ],
)  # fmt: skip
def test_tables_without_texts(tmp_path: Path, data: bytes, reason: str) -> None:
    (path := tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(UnreadableError, match=reason) as problem:
        [*read_documents(path, b"", "records")]
    assert str(tmp_path) not in problem.value.message


def test_rows_of_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    day = datetime.date(2026, 1, 2)
    columns = {"about": ["the text of a row", None], "day": [day, day], "x": [float("nan"), 2.5], "l": [[1], [2]]}
    pq.write_table(pa.table(columns), path := tmp_path / "a.parquet")
    (one,), problems = records(path, path.read_bytes())
    assert firsts([one]) == ["the text of a row"] and one.place == "row 1"
    assert dict(one.fields) == {"day": "2026-01-02", "x": None}
    assert [(place, kind) for place, kind, _ in problems] == [("", "guessed"), ("row 2", "left out")]
    pq.write_table(pa.table({"text": ["a dog"], "image": [b"\x89PNG"], "n": [3]}), path)  # bytes are left out
    ((one,), _) = records(path, path.read_bytes())
    assert (one.text, dict(one.fields)) == ("a dog\n\nn: 3", {"n": 3})


def test_a_reader_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "mine", DocumentKind(lambda data, name: iter([Document(name)]), (".mine",)))
    assert only("a.mine", b"").text == "a.mine"
    monkeypatch.setitem(KINDS, "mine", DocumentKind(lambda data, name: iter(()), (".mine",)))
    assert read("a.mine", b"") == []
    with pytest.raises(ArgumentError, match="'other'"):
        read_documents("a", b"", "other")


COLUMNS = 20_000
SECONDS = 3  # of computing; one comparison of each name with every other takes ten
READS: dict[str, Callable[[Path], list[Any]]] = {
    "texts": lambda path: [record.text for record in read_records(path)],
    "keep": lambda path: [one.text for one in read_records(path, keep=[f"c{n}" for n in range(COLUMNS)])],
    "training": lambda path: [row.values["text"] for row in read_rows(path)],
    "search": lambda path: [one.text.split("\n")[0] for one in read_record_documents(path, DocumentColumns())],
}


@pytest.mark.parametrize("ending", ["csv", "tsv"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_many_columns_are_read_at_once(read: Callable[[Path], list[Any]], ending: str, tmp_path: Path) -> None:
    comma, path = "," if ending == "csv" else "\t", tmp_path / f"wide.{ending}"
    rows = [[*(f"c{n}" for n in range(COLUMNS)), "text"], [*map(str, range(COLUMNS)), "the cat sat on the mat"]]
    path.write_text("".join(comma.join(row) + "\n" for row in rows))
    start = time.process_time()
    assert read(path) == ["the cat sat on the mat"]
    assert time.process_time() - start < SECONDS


def picture(size: int) -> str:
    return base64.b64encode(Random(1).randbytes(size)).decode()


def lines(text: str, width: int = 76) -> list[str]:
    return re.findall(f".{{1,{width}}}", text)


def test_pasted_pictures_are_no_text_and_headings_keep_their_words_and_places() -> None:
    found = only("a.md", f"# One\n\n![a plan](data:image/png;base64,{picture(600_000)}) below\n\n## Two\nlast words\n")
    assert found.text == "# One\n\n![a plan]() below\n\n## Two\nlast words\n"
    assert headings(found) == [(1, "One"), (2, "Two")] and found.first_line == 1
    assert [(problem.kind, "800 kB" in problem.reason) for problem in found.problems] == [("left out", True)]
    data = f"data:image/png;base64,{picture(500)}"
    found = only("a.md", f"{picture(500)}\n# Plan ![p]({data}) of it\nwords\n# {picture(400)}\n## Last\n{data}")
    assert headings(found)[0][1].startswith("Plan") and headings(found)[-1] == (2, "Last")
    assert all(len(text) < 30 for _, text in headings(found))
    page = only("a.html", f"<h1>{data}</h1><p>one</p><h2>Two</h2><p>two {data}</p><h2>{picture(500)}</h2>")
    assert headings(page) == [(2, "Two")]
    assert without_embedded_data(page) is page


WITH_DATA = {
    "text": "one {} two", "code": 'x = "one {} two"', "rst": "one {} two", "html": "<p>one<pre>{}</pre>two",
    "mail": "Subject: s\n\none {} two", "notebook": json.dumps({"cells": [{"source": "one {} two"}]}),
}  # fmt: skip


@together("kind", WITH_DATA)
def test_data_is_left_out_of_every_kind(kind: str, tmp_path: Path) -> None:
    (path := tmp_path / "a.jsonl").write_text(json.dumps({"text": f"one two {picture(300)}", "id": 1}) + "\n")
    (found,) = read_documents(path, b"", "records")
    assert found.text == "one two \n\nid: 1" and found.problems
    for data in (f"data:image/gif;base64,{picture(60)}", picture(200), Random(1).randbytes(150).hex()):
        source = WITH_DATA[kind].replace("{} two", f"{data} two").replace("{}<", f"{data}<")
        (found,) = read_documents("a", source.encode(), kind)
        assert data[-30:] not in found.text and "one" in found.text and "two" in found.text
        assert [problem.kind for problem in found.problems] == ["left out"]


@together(
    "block",
    [
        ["-----BEGIN CERTIFICATE-----", *lines(picture(700), 64), "-----END CERTIFICATE-----"],
        ["KEY = (", *(f'    b"{line}"' for line in lines(picture(400))), ")"],
        [f"![](data:image/png;base64,{picture(57)}", *lines(picture(500)), ")"],
    ],
)  # fmt: skip
def test_lines_of_data_leave_their_line_ends(block: list[str]) -> None:
    found = only("a.md", "\n".join(["# One", *block, "# Two", "words"]))
    assert found.text.split("\n")[len(block) + 1 :] == ["# Two", "words"]
    assert headings(found) == [(1, "One"), (1, "Two")]
    assert len(found.text.replace("\n", "")) < 80


@together(
    "text",
    [
        "中文" * 500, "Donaudampfschifffahrt" * 20, "-" * 500, "_" * 300 + "=" * 300, "1234567890" * 40, "ACGT" * 100,
        "a" * 400, "https://example.org/" + "a-long-title-of-2024/" * 20, "/opt/some_long_folder1/" * 20,
        "https://click.example.org/f/" + picture(300) + "?q=1", "sha512: " + Random(1).randbytes(64).hex(),
        "ThisIsACamelCaseName2" * 20, "data:text/plain,hello", "data: none; data:,", "中文1a" * 200,
    ],
)  # fmt: skip
def test_long_words_addresses_and_hashes_stay(text: str) -> None:
    found = only("a.txt", f"one {text} two")
    assert (found.text, found.problems) == (f"one {text} two", ())


LETTER = "<h1>Your invoice</h1><p>The amount of the invoice is 40 euros.</p>"
LETTER_TEXT = "Your invoice\n\nThe amount of the invoice is 40 euros."


def message(subject: str = "s", text: str | None = None, page: str | None = None) -> EmailMessage:
    built = EmailMessage()
    built["Subject"] = subject
    if text is not None:
        built.set_content(text)
    if page is not None:
        built.add_alternative(page, subtype="html") if text is not None else built.set_content(page, subtype="html")
    return built


@together(
    ("plain", "page", "text"),
    [
        ("", LETTER, LETTER_TEXT),
        ("This message needs an HTML viewer.", LETTER, LETTER_TEXT),
        (f"View it at https://example.org/{'token/' * 50}", LETTER, LETTER_TEXT),
        ("The amount is 40 euros, due today.", "<p>See above", "The amount is 40 euros, due today."),
        ("查看网页", "<p>发票金额为四十欧元。请在十天内付款。", "发票金额为四十欧元。请在十天内付款。"),
        ("same words", "<h2>same</h2>words", "same\n\nwords"),
    ],
)  # fmt: skip
def test_of_alternatives_the_one_with_more_text_is_read(plain: str, page: str, text: str) -> None:
    found = only("a.eml", message(text=plain, page=page).as_bytes())
    assert (found.text, found.problems) == (text, ())


PLAIN, HTML = "Content-Type: text/plain\n\n", f"Content-Type: text/html\n\n{LETTER}"
MAP = "Content-Type: image/png; name=map.png\nContent-Disposition: inline; filename=map.png\n\nx"


@together(
    ("kind", "parts", "text", "left_out"),
    [
        *((kind, [PLAIN, HTML], LETTER_TEXT, "") for kind in ("mixed", "alternative", "related")),
        ("mixed", [f"{PLAIN}before it", MAP, f"{PLAIN}after it", "Content-Type: text/x-diff\n\n+ a patch"],
         "before it\n\nafter it\n\n+ a patch", "map.png"),
        ("alternative", [PLAIN, "Content-Type: text/calendar\n\nBEGIN:VCALENDAR"], "", "text/calendar"),
    ],
)  # fmt: skip
def test_the_parts_with_text_are_read_and_others_named(kind: str, parts: list[str], text: str, left_out: str) -> None:
    body = "".join(f"--B\n{part}\n" for part in parts)
    found = only("a.eml", f"Subject: s\nContent-Type: multipart/{kind}; boundary=B\n\n{body}--B--\n")
    assert found.text == text and all(left_out in problem.reason for problem in found.problems)
    assert [problem.kind for problem in found.problems] == ["left out"] * bool(left_out)


def test_an_attached_message_is_a_document_of_its_own() -> None:
    inner, deep = message("The real subject", "inner words"), message("Deepest", "deep words")
    inner["From"], inner["Date"] = "ada@example.org", "Tue, 6 Jan 2026 23:30:00 -0200"
    inner.add_attachment(deep)
    outer = message("Fwd", "see below")
    outer.add_attachment(b"x", maintype="application", subtype="pdf", filename="report.pdf")
    outer.add_attachment(inner)
    first, second, third = read("a.eml", outer.as_bytes())
    assert [(one.title, one.text.strip(), one.place) for one in (first, second, third)] == [
        ("Fwd", "see below", ""),
        ("The real subject", "inner words", "attachment 2"),
        ("Deepest", "deep words", "attachment 2, attachment 1"),
    ]
    assert dict(second.fields) == {"from": "ada@example.org", "date": "2026-01-07T01:30:00+00:00"}
    assert "report.pdf" in first.problems[0].reason and not second.problems
    box = b"From a\n" + message("First", "one").as_bytes() + b"\nFrom b\n" + outer.as_bytes()
    places = ["message 1", "message 2", "message 2, attachment 2", "message 2, attachment 2, attachment 1"]
    assert [one.place for one in read("a.mbox", box)] == places


def test_a_page_in_a_mail_may_name_its_encoding_itself_and_have_a_picture() -> None:
    page = '<meta charset="windows-1251"><p>Счёт на сорок евро'.encode("cp1251")
    found = only("a.eml", b"Subject: s\nContent-Type: text/html\n\n" + page)
    assert (found.text, found.problems) == ("Счёт на сорок евро", ())
    box = b"From a\nSubject: s\nContent-Type: text/html; charset=koi8-r\n\n<p>" + "Счёт".encode("koi8-r")
    assert only("a.mbox", box).text == "Счёт"
    related = message(text="short", page=LETTER)
    related.get_payload()[1].add_related(b"x", "image", "png", cid="<a>", filename="logo.png")  # type: ignore[index, union-attr]
    found = only("a.eml", related.as_bytes())
    assert (found.text, headings(found)) == (LETTER_TEXT, [(1, "Your invoice")])
    assert "logo.png" in found.problems[0].reason


def test_names_of_attachments_are_decoded_and_counted() -> None:
    outer = message("s", "words")
    for number in range(9):
        outer.add_attachment(b"x", maintype="image", subtype="png", filename=f"{number}{'x' * 300}.png")
    (problem,) = only("a.eml", outer.as_bytes()).problems
    assert problem.reason.startswith("9 attachments") and "4 more" in problem.reason and len(problem.reason) < 400
    mail = (
        "Subject: s\nContent-Type: multipart/mixed; boundary=B\n\n--B\nContent-Type: image/png; "
        'name="=?utf-8?q?Gr=C3=B6=C3=9Fe=2Epng?="\n\nx\n--B\nContent-Type: multipart/alternative; boundary=C\n\n'
        f"--C\nContent-Type: text/plain; charset=utf-8\n\n{'退款' * 10**5}\n--C\nContent-Type: text/html\n\nx\n--C--\n"
    )
    found = only("a.eml", mail)
    assert "Größe.png" in found.problems[0].reason and len(found.text) == 200_000


def test_a_message_that_cannot_be_read_is_a_problem_with_its_place() -> None:
    deep = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(1000))
    box = b"lost words\n\nFrom a\nSubject: 1\n\none\n\nFrom b\n" + deep + b"\n\nFrom c\nSubject: 3\n\nthree\n"
    found = read("a.mbox", box)
    assert [(one.place, one.text) for one in found] == [
        ("line 1", ""), ("message 1", "one"), ("message 2", ""), ("message 3", "three"),
    ]  # fmt: skip
    assert [[problem.kind for problem in one.problems] for one in found] == [["left out"], [], ["left out"], []]


TEXTS = {
    "cp1252": "Les élèves ont été invités à la fête de l'école. Où est passé le garçon ? Ça coûte dix francs.",
    "cp1250": "Wczoraj byliśmy w Łodzi, gdzie świeciło słońce. Książka leży na stole. Proszę przesłać fakturę.",
    "cp1251": "Возврат товара возможен в течение тридцати дней. Позвоните нам, если посылка не пришла.",
    "cp1253": "Αυτή είναι επιστροφή των χρημάτων γίνεται μέσα σε τριάντα ημέρες. Πού βρίσκεται η βιβλιοθήκη;",
    "koi8-r": "Возврат товара возможен в течение тридцати дней. Позвоните нам, если посылка не пришла.",
    "cp932": "返品は購入後三十日以内に可能です。①図書館はどこにありますか。東京は日本の首都です。",
    "euc_jis_2004": "返品は購入後三十日以内に可能です。図書館はどこにありますか。東京は日本の首都です。",
    "gb18030": "购买后三十天内可以申请退款。图书馆在哪里。北京是中国的首都。商品将于明天发货。",
    "big5hkscs": "購買後三十天內可以申請退款。圖書館在哪裡。臺北是臺灣的首都。商品將於明天出貨。",
    "cp949": "구매 후 삼십 일 이내에 환불을 신청할 수 있습니다. 도서관은 어디에 있습니까? 똠방각하.",
}


@together("encoding", TEXTS)
def test_an_encoding_without_a_label_is_guessed_and_named(encoding: str) -> None:
    (found,) = read("a.txt", f"Title\r\n{TEXTS[encoding]}\r\n".encode(encoding))
    assert (found.text, found.first_line) == (f"Title\n{TEXTS[encoding]}\n", 1)
    (problem,) = found.problems
    assert problem.kind == "guessed" and encoding in problem.reason


@together(
    ("encoding", "text"),
    [
        ("cp1252", "Déjà vu à Noël, où êtes-vous ?"), ("cp1252", "La città è più bella di così."),
        ("cp1252", "café “crème”, naïve"), ("cp1252", "Não há devolução após trinta dias."),
        ("cp1254", "Ampul bozuldu, yenisini gönderin."), ("cp1250", "Přijďte v úterý"),
        ("cp1255", "המנורה הגיעה שבורה."),
        ("koi8-r", "Ключ висит за зелёной дверью."), ("gb18030", "客户可以申请退款。"), ("big5", "燈泡壞了,請換一個。"),
        ("euc-jp", "電球が壊れています。"), ("cp874", "หลอดไฟเสีย"),
        *(("cp1252", text) for text in ("10 °C\n20 °C", "£ 12", "¿Qué?", "“it”", "5 µm", "Malmö")),
    ],
)  # fmt: skip
def test_a_sentence_is_mostly_enough(encoding: str, text: str) -> None:
    decoded, (problem,) = decode(text.encode(encoding))
    assert decoded == text and problem.kind == "guessed"


@together(
    ("label", "encoding", "text"),
    [
        ("gb2312", "gb18030", "朱镕基总理 價格€40"), ("GBK", "gb18030", "㐀"), ("Shift_JIS", "cp932", "①㈱髙"),
        ("x-sjis", "cp932", "①"), ("windows-31j", "cp932", "①"), ("euc-kr", "cp949", "똠방각하"),
        ("ks_c_5601-1987", "cp949", "펲"), ("iso-8859-1", "cp1252", "“€”"), ("us-ascii", "cp1252", "“€”"),
        ("latin1", "cp1252", "“€”"), ("latin-1", "cp1252", "“€”"), ("tis-620", "cp874", "ก"),
        ("iso-8859-9", "cp1254", "ışğ"),
        ("big5", "big5hkscs", "碁"), ("euc-jp", "euc_jis_2004", "①"), ("x-cp1251", "cp1251", "ё"),
        ("cp850", "cp850", "é"),
        ("utf-16", "utf-16-le", "é"), ("utf-16be", "utf-16-be", "é"), ("iso-2022-kr", "iso2022_kr", "한국어"),
    ],
)  # fmt: skip
def test_labels_mean_what_they_mean_to_browsers(label: str, encoding: str, text: str) -> None:
    assert decode(f"a {text} b".encode(encoding), label) == (f"a {text} b", ())


def test_japanese_mail_has_characters_that_its_label_does_not() -> None:
    data = b"a \x1b$B-!F|K\\\x1b(J \x1b(I1\x1b(B b"  # ①日本 and a kana of half width
    assert decode(data, "iso-2022-jp") == ("a ①日本 ｱ b", ())
    text, (problem,) = decode(data)
    assert text == "a ①日本 ｱ b" and problem.kind == "guessed" and "iso2022_jp" in problem.reason
    assert decode(b"\x1b[31mred\x1b[0m").problems == ()


@together(
    "label",
    ["", "no-such", "idna", "punycode", "unicode_escape", "base64", "rot13", "x-user-defined", "\ud800", "\0", "é"],
)
def test_other_labels_are_unknown(label: str) -> None:
    assert find_codec(label) is None
    assert decode("né".encode(), label).text == "né"


def test_one_damaged_byte_costs_one_character() -> None:
    text, (problem,) = decode("café\nnaïve ".encode() + b"\xff\xe9.\n" + "Füße".encode())
    assert text == "café\nnaïve ��.\nFüße"
    assert problem.kind == "cut" and problem.reason.startswith("2 ") and "line 2" in problem.reason
    assert decode("café".encode() + b" \xff").text == "café �"
    assert decode("�é\n�".encode()).problems == ()  # it stands in the file
    for encoding in ("gb18030", "cp932", "cp949", "utf-8", "iso2022_jp"):
        damaged = "天地天地".encode(encoding) + b"\x85\n\x9f\nend"
        text, problems = decode(damaged, encoding)
        assert text.startswith("天地天地") and text.endswith("\nend") and text.count("\n") == 2
        assert [problem.kind for problem in problems] == ["cut"]


def test_a_label_that_most_of_the_text_refutes_does_not_count() -> None:
    text, (problem,) = decode("Größe, Straße, für".encode("cp1252"), "utf-8")
    assert text == "Größe, Straße, für" and problem.kind == "guessed" and "'utf-8'" in problem.reason
    text, (problem,) = decode("Größe".encode(), "iso-8859-1")
    assert text == "Größe" and "'iso-8859-1'" in problem.reason


def test_an_encoding_that_the_user_chose_replaces_the_guess() -> None:
    word = "прокат"
    (found,) = read_documents("a.txt", word.encode("cp866"), "text", encoding="cp866")
    assert (found.text, found.problems) == (word, ())
    for kind, data in [
        ("text", b"\xef\xbb\xbf" + word.encode()), ("text", word.encode()),
        ("html", b"<meta charset=koi8-r>" + word.encode("koi8-r")),
        ("mail", b"Subject: s\nContent-Type: text/plain; charset=koi8-r\n\n" + word.encode("koi8-r")),
        ("mail", b"Subject: s\n\n" + word.encode("cp866")), ("html", word.encode("cp866")),
        ("code", b"# coding: koi8-r\n" + word.encode("koi8-r")),
    ]:  # fmt: skip
        (found,) = read_documents("a", data, kind, encoding="cp866")
        assert found.text.endswith(word) and not found.problems
    (found,) = read_documents("a.txt", b"a\x1b$B-!\x1b(B", "text", encoding="iso2022_jp")
    assert (found.text, found.problems) == ("a①", ())


@together("label", ["no-such", "", "utf-16", "utf-32-le", "idna"])
def test_an_encoding_that_cannot_be_chosen_is_refused(label: str) -> None:
    with pytest.raises(ArgumentError, match="encoding") as problem:
        check_chosen_encoding(label)
    assert problem.value.hint
    assert check_chosen_encoding("GB2312") == "gb18030" and check_chosen_encoding(None) is None


def test_detection_examines_a_part_of_a_large_file() -> None:
    data = b"plain words\n" * 500_000 + TEXTS["cp1251"].encode("cp1251") * 20_000
    tracemalloc.start()
    text, _ = decode(data)
    assert TEXTS["cp1251"] in text and tracemalloc.get_traced_memory()[1] < 8 * len(data)
    tracemalloc.stop()
