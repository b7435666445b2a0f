"""Rich text (.rtf), read with striprtf."""

import re
from collections.abc import Iterator

from mlxbert.readers.documents.document import Document, ReadProblem, UnreadableError, iso_date

_INFO = r"\{\\%s ([^{}]{1,1000})\}"
_DATE = re.compile(r"\\(?:revtim|creatim)\\yr(\d{4})\\mo(\d\d?)\\dy(\d\d?)")
_CODE_PAGE = re.compile(r"\\ansicpg\d{1,5}")
_DESTINATIONS = {"footnote": "notes", "shptxt": "text boxes"}  # which the library leaves out


def read_rtf(data: bytes, name: str) -> Iterator[Document]:
    """Reads the file as one document, without pictures, comments, headers and footers."""
    source = data.decode("cp1252", "replace")
    if not source.startswith("{\\rtf"):
        raise UnreadableError("is not RTF")
    code_page = _CODE_PAGE.search(source)

    def stated(name: str) -> str:
        value = re.search(_INFO % name, source)
        return " ".join(_text(f"{{\\rtf1{code_page[0] if code_page else ''} {value[1]}}}").split()) if value else ""

    text = _text(source).strip()
    if not text:
        raise UnreadableError("has no text")
    fields = {"author": stated("author"), "date": _date(source)}
    omissions = [what for word, what in _DESTINATIONS.items() if f"\\{word}" in source]
    problems = tuple(ReadProblem("left out", f"the {what} of the document") for what in omissions)
    present = {key: value for key, value in fields.items() if value}
    yield Document(text, stated("title"), present, problems=problems)


def _date(source: str) -> str:
    """The date of the last change, or of the creation."""
    dates = [*_DATE.finditer(source)]
    date = next((date for date in dates if date[0].startswith("\\rev")), dates[0] if dates else None)
    return iso_date("{}-{:0>2}-{:0>2}".format(*date.groups())) if date else ""


def _text(source: str) -> str:
    from striprtf.striprtf import rtf_to_text

    # Without the space, the library searches fields for links, in a time that grows with the square of a line.
    text: str = rtf_to_text(source.replace("{\\field{", "{\\field {"), errors="replace")
    # RTF writes a character such as an emoji as two halves.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
