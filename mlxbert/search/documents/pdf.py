"""PDF, read with pypdfium2: the text of its pages."""

import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

from mlxbert.search.documents.document import Document, ReadProblem, UnreadableError, joined

_HYPHENS = re.compile("[\x02\xad\ufffe]\n?")  # PDFium's marks for a word hyphenated at the end of a line


def read_pdf(data: bytes, name: str) -> Iterator[Document]:
    """Reads the file as one document, with its pages."""
    import pypdfium2

    try:
        pdf = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError as problem:
        if problem.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD:
            raise UnreadableError("is encrypted", hint="save a copy without a password") from None
        raise UnreadableError("is not a readable PDF") from None
    with pdf:
        title = pdf.get_metadata_value("Title")
        texts, unread = [], list[int]()
        for number in range(len(pdf)):
            try:
                page = pdf[number].get_textpage().get_text_range()
                texts.append(_HYPHENS.sub("", page.replace("\r\n", "\n")))
            except pypdfium2.PdfiumError:  # other pages may be readable
                texts.append("")
                unread.append(number)
    if not any(map(str.strip, texts)):
        reason = f"{len(unread)} of {len(texts)} pages cannot be read" if unread else "has only pictures, no text"
        raise UnreadableError(reason, hint="recognize the text of scanned pages (OCR) first")
    whole = joined([*map(Document, texts)], paged=True)
    yield replace(whole, title=" ".join(title.split()), problems=tuple(_problems(texts, {*unread})))


def _problems(texts: Sequence[str], unread: Set[int]) -> Iterator[ReadProblem]:
    """Yields problems that count the pages that cannot be read, and those without a text."""
    empty = {number for number, text in enumerate(texts) if not text.strip()} - unread
    for pages, reason in ((unread, "cannot be read"), (empty, "have no text, perhaps only pictures")):
        if pages:
            first = min(pages) + 1
            yield ReadProblem("left out", f"{len(pages)} of {len(texts)} pages {reason} (the first is page {first})")
