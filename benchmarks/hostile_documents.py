"""Checks that damaged and malicious files do no harm: PDF, Word, office documents, books, mail, pages and texts.

`python benchmarks/hostile_documents.py [FILE.pdf FILE.docx …] [--count 2000] [--seconds 10] [--seed 1]`: mutations of
the files, and of a generated file of each kind, are read with limits in the process for parsers, and so are malicious
files: bombs, a page of 10⁹ points, deep nesting. Prints how many gave documents, how many were refused and why, and the
slowest. Anything else is a failure, and so is a valid file whose contents change later on; then the exit status is 1.
"""

import argparse
import base64
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz_mutate import change_zip, flips

from mlxbert.search.documents.document import UnreadableError
from mlxbert.search.documents.document_kinds import kind_of, read_documents
from mlxbert.search.documents.isolated_parser import ParserLimits
from tests.helpers.office import (
    epub,
    open_document,
    pptx,
    replaced,
    shape,
    xlsx,
)
from tests.helpers.papers import docx, paragraph, pdf, pdf_of
from tests.search.documents.test_documents import MAIL, PAGE
from tests.search.documents.test_office import FILES

NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"65536",
    b"2147483647",
    b"-2147483648",
    b"4294967296",
    b"1000000000",
    b"1e308",
    b"99999999",
)
CHECKED = 100  # files after which the valid ones are read again


def change_parts(rng: Random, data: bytes) -> bytes:
    """Changes numbers, repeats or moves parts between brackets, or changes bytes."""
    for _ in range(rng.choice((1, 1, 2, 5))):
        numbers = [match.span() for match in re.finditer(rb"(?<![\w.])\d+(?![\w.])", data[:100_000])]
        parts = [match.start() for match in re.finditer(rb"<", data[:100_000])]
        kind = rng.randrange(5)
        if kind < 2 and numbers:
            start, end = rng.choice(numbers)
            data = data[:start] + rng.choice(NUMBERS) + data[end:]
        elif kind < 4 and len(parts) > 1:
            start, end = sorted(rng.sample(parts, 2))
            place, times = rng.choice(parts), rng.choice((0, 1, 2, 1000 if end - start < 1000 else 3))
            data = data[:place] + data[start:end] * times + data[place if kind == 2 else end :]
        else:
            data = flips(rng, data)
    return data


TEXTS = {
    "markdown": b"---\ntitle: a\n---\n# A\n![](data:image/png;base64," + b"iVBORw0KGgo9" * 40 + b")\n```\nx\n```\n",
    "text": "Größe <1> 退款 <2> ①\r\n".encode() * 5,
    "code": "# coding: cp1251\nclass A: <1> возврат\n".encode("cp1251") * 3,
    "html": PAGE.encode(),
    "mail": b"From a\n" + MAIL + b"\nFrom b\n" + MAIL,
    "notebook": b'{"cells": [{"cell_type": "markdown", "source": ["# A <1> 2"]}, {"source": 1}, {}]}',
}
CHANGE_ZIP = change_zip(dict.fromkeys((".xml", ".rels", ".opf", ".xhtml"), change_parts))
ZIPPED = ("word", "spreadsheet", "slides", "opendocument", "epub")
MUTATE = {"pdf": change_parts, "rtf": change_parts, "mhtml": change_parts, **dict.fromkeys(ZIPPED, CHANGE_ZIP)}


MUTATE |= dict.fromkeys(TEXTS, change_parts)


def malicious() -> Iterator[tuple[str, str, bytes]]:
    """Names, kinds and files that are made to harm."""
    deep = "<w:p>" * 100_000 + "</w:p>" * 100_000
    names = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "x" * 10}">' for n in range(10))
    yield "a page of 10⁹ points", "pdf", pdf("text", box="0 0 1000000000 1000000000")
    yield "10⁹ pages", "pdf", pdf("text").replace(b"/Count 1", b"/Count 1000000000")
    kids = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 1000000/Kids[2 0 R 2 0 R]>>"]
    yield "pages in a circle", "pdf", pdf_of(kids, b"")
    yield "brackets in brackets", "pdf", pdf_of([b"[" * 10**6 + b"]" * 10**6], b"")
    yield "20,000 pages", "pdf", pdf(*["text"] * 20_000)
    yield "a bomb of zeros", "word", docx(more={"word/styles.xml": bytes(2**30)})
    yield "a bomb below the limit", "word", docx(paragraph("text" * (2**26 - 2**18)))
    yield "entities in entities", "word", docx(paragraph("&e9;"), before=f"<!DOCTYPE x [{names}]>")
    hidden = f"<!--{' ' * 2000}--><!DOCTYPE x [{names}]>"
    yield "entities after a comment", "word", docx(paragraph("&e9;"), before=hidden)
    outside = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
    yield "an entity of a file", "word", docx(paragraph("&e;"), before=f"<!--{' ' * 2000}-->{outside}")
    yield "paragraphs in paragraphs", "word", docx(deep)
    yield "a million paragraphs", "word", docx(*[paragraph("x")] * 10**6)
    yield "elements in elements", "html", b"<div>" * 10**6
    yield "headings in headings", "html", b"<h1><div>x" * 10**4
    yield (
        "parts in parts",
        "mail",
        b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(10**4)),
    )
    yield from malicious_texts_and_mail()


def malicious_texts_and_mail() -> Iterator[tuple[str, str, bytes]]:
    """Names, kinds and files with much embedded data, many attachments, or bytes in no encoding."""
    picture = base64.b64encode(Random(1).randbytes(3 * 10**7))
    yield "a picture of 40 MB", "markdown", b"# A\n![](data:image/png;base64," + picture + b")\n"
    yield "a picture in lines", "text", b"\n".join(re.findall(b".{76}", picture[: 2**24]))
    yield "10⁵ runs of base64", "text", b"\n\n".join(re.findall(b".{210}", picture[: 210 * 10**5]))
    yield "runs that are too short", "code", b" ".join(re.findall(b".{59}", picture[: 2**24]))
    yield "beginnings of data URIs", "markdown", b"data:;a;a;a;a;a;a;a;a,data:" * 10**6
    yield "bytes in no encoding", "text", Random(1).randbytes(2**24).replace(b"\0", b"\x80")
    yield "a late letter", "text", b"words " * 10**7 + "Größe".encode("cp1252")
    yield "no space after it", "text", "退款".encode("gb18030") * 10**7
    attached = b"Content-Type: message/rfc822\n\nSubject: a\n\ntext\n--b\n" * 10**5
    yield "10⁵ attached messages", "mail", b"Content-Type: multipart/mixed; boundary=b\n\n--b\n" + attached
    parts = b"Content-Type: text/html\n\n<p>text\n--b\n" * 10**4
    yield "10⁴ alternatives", "mail", b"Content-Type: multipart/alternative; boundary=b\n\n--b\n" + parts
    nested = b"".join(b"Content-Type: message/rfc822\n\nSubject: %d\n" % n for n in range(10**4))
    yield "messages in messages", "mail", nested
    yield "navigations in navigations", "html", b"<nav><aside><header><a>x" * 5000
    yield "asides of headings", "html", b"<header><h1>x</h1><a>y</a></header>" * 10**5


def document_types() -> Iterator[tuple[str, str, bytes]]:
    """Names, kinds and archives with parts that declare entities."""
    names = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "x" * 10}">' for n in range(10))
    outside = '<!DOCTYPE x [<!ENTITY e9 SYSTEM "file:///etc/passwd">]>'
    for what, declared in (("entities in entities", f"<!DOCTYPE x [{names}]>"), ("an entity of a file", outside)):
        bomb = f"{declared}<x>&e9;</x>"
        yield what, "spreadsheet", replaced(xlsx({"A": [["a"]]}), sheet1_xml=bomb)
        yield what, "slides", replaced(pptx(shape("a")), slide1_xml=bomb)
        yield what, "opendocument", replaced(open_document(""), content_xml=bomb)
        yield what, "epub", replaced(epub({"a.html": "a"}), book_opf=bomb)
        yield f"{what} in a chapter", "epub", epub({"a.html": f"{declared}<p>text &e9;</p>"})


def malicious_archives() -> Iterator[tuple[str, str, bytes]]:
    """Names, kinds and archives that unpack to much or are nested deeply."""
    much = "text " * (2**28 // 5 - 2**18)
    yield "a bomb of zeros", "spreadsheet", replaced(xlsx({"A": []}), sheet1_xml=bytes(2**30))
    yield "a bomb of zeros", "epub", epub({"a.html": bytes(2**30)})
    yield "a bomb below the limit", "spreadsheet", xlsx({"A": [[much]]})
    yield "a bomb below the limit", "epub", epub({"a.html": much})
    yield "a bomb below the limit", "opendocument", open_document(f"<text:p>{much}</text:p>")
    far = '<row><c r="A1"><v>1</v></c><c r="XFD1048576"><v>1</v></c></row>'
    sheet = f"<worksheet><sheetData>{far}</sheetData></worksheet>"
    yield "a cell far away", "spreadsheet", replaced(xlsx({"A": []}), sheet1_xml=sheet)
    cell = '<table:table-cell table:number-columns-repeated="16384" office:value-type="float" office:value="1"/>'
    row = f'<table:table-row table:number-rows-repeated="1048576">{cell}</table:table-row>'
    table = f'<table:table table:name="A">{row}</table:table>'
    yield "a cell 10¹⁰ times", "spreadsheet", open_document(table, kind="spreadsheet")
    yield "a million rows", "spreadsheet", xlsx({"A": [["a", 1, "b"]] * 10**6})
    yield "elements in elements", "opendocument", open_document("<text:span>" * 10**5 + "</text:span>" * 10**5)
    yield "elements in elements", "slides", pptx("<p:grpSp>" * 10**5 + "</p:grpSp>" * 10**5)
    items = '<manifest><item id="c" href="a.html" media-type="text/html"/></manifest>'
    spine = "<spine>" + '<itemref idref="c"/>' * 10**5 + "</spine>"
    package = f'<package xmlns="http://www.idpf.org/2007/opf">{items}{spine}</package>'
    yield "a chapter 10⁵ times", "epub", replaced(epub({"a.html": "text " * 10**4}), book_opf=package)
    yield "a missing chapter 10⁵ times", "epub", replaced(epub({"b.html": "text"}), book_opf=package)


def malicious_texts() -> Iterator[tuple[str, str, bytes]]:
    """Names, kinds and files of text that are nested deeply or repeat much."""
    yield "groups in groups", "rtf", rb"{\rtf1" + b"{" * 10**6 + b"a" + b"}" * 10**6
    link = rb'{\field{\*\fldinst{HYPERLINK "a"}}{\fldrslt {b}}}'
    yield "10⁵ links in a line", "rtf", rb"{\rtf1" + link * 10**5 + b"}"
    yield "10⁵ fonts", "rtf", rb"{\rtf1{\fonttbl" + rb"{\f1 a" * 10**5
    nested = (b"Content-Type: multipart/related; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(10**4))
    yield "parts in parts", "mhtml", b"".join(nested)


def files(seeds: list[tuple[str, bytes]], count: int, seed: int) -> Iterator[tuple[str, str, bytes]]:
    """The malicious files, and mutations of the seeds."""
    for group in (malicious, document_types, malicious_archives, malicious_texts):
        yield from group()
    for number in range(count):
        rng = Random(f"{seed} {number}")
        kind, data = seeds[number % len(seeds)]
        yield f"mutation {number}", kind, MUTATE[kind](rng, data)


def read(kind: str, data: bytes, limits: ParserLimits) -> str:
    """Reads a file; returns the outcome, which begins with an exclamation mark for a failure."""
    try:
        documents = [*read_documents("file", data, kind, limits=limits)]
    except UnreadableError as problem:
        return "unreadable: " + re.sub(r"\d[\d,.]*", "N", problem.message.split(": ")[0])[:90]
    except Exception as problem:
        return f"! {type(problem).__name__}: {problem}"
    if any("root:" in document.text for document in documents):
        return "! another file was read"
    return f"{kind}: documents" if documents else "! nothing"


def main() -> int:
    """Reads all files, and prints the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    word_file = docx(*[paragraph("Top", "Heading1"), paragraph("A text of some words. " * 20)] * 5, title="Title")
    seeds = [("pdf", pdf("One", "Two", "Three", title="Title")), ("word", word_file)]
    seeds += [(kind_of(name, data) or "", data) for name, data in FILES.items()]
    seeds += TEXTS.items()
    seeds += [(kind, data) for path in args.files if (kind := kind_of(path.name, data := path.read_bytes())) in MUTATE]
    limits, outcomes, slowest = ParserLimits(args.seconds), Counter[str](), list[tuple[float, str, str]]()
    good = [[*read_documents("file", data, kind)] for kind, data in seeds]
    begun = time.perf_counter()
    for number, (name, kind, data) in enumerate(files(seeds, args.count, args.seed)):
        start = time.perf_counter()
        outcome = read(kind, data, limits)
        slowest.append((time.perf_counter() - start, name, outcome))
        outcomes[outcome] += 1
        if not name.startswith("mutation"):
            print(f"{slowest[-1][0]:6.2f} s  {name}: {outcome}", flush=True)
        if number % CHECKED == 0 and good != [[*read_documents("file", data, kind)] for kind, data in seeds]:
            outcomes[f"! the contents of a valid file changed after {name}"] += 1
    print(f"\n{sum(outcomes.values()):,} files of {len(seeds)} seeds in {time.perf_counter() - begun:.0f} s")
    for outcome, times in outcomes.most_common():
        print(f"{times:6,}  {outcome}")
    for seconds, name, outcome in sorted(slowest, reverse=True)[:5]:
        print(f"{seconds:6.2f} s  {name}: {outcome}")
    return any(outcome.startswith("!") for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
