"""Plain text, of any usual encoding."""

import codecs
from collections.abc import Iterator

from mlxbert.readers.documents.document import Document

MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_WESTERN = ("ascii", "iso8859-1")  # said of texts whose encoding nobody thought about


def decode(data: bytes, said: str | None = None) -> str:
    """The text of a file, with newlines between its lines: by its byte-order mark, by what it says, UTF-8, or cp1252.

    Args:
        data: The bytes.
        said: The encoding that the file, or a header, names.
    """
    return _decode(data, said).replace("\r\n", "\n")


def _decode(data: bytes, said: str | None) -> str:
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    for name in (said, "utf-8"):
        try:
            if name and codecs.lookup(name).name not in _WESTERN:
                return data.decode(name)
        except (LookupError, ValueError):  # not an encoding, or another one
            continue
    return data.decode("cp1252", "replace")


def decode_lines(data: bytes) -> str:
    """The same for a file of lines; where no newline follows a carriage return, lines end with it, as on old Macs."""
    text = decode(data)
    return text if "\n" in text else text.replace("\r", "\n")


def read_plain(data: bytes, name: str) -> Iterator[Document]:
    """The whole file."""
    yield Document(decode_lines(data), first_line=1)
