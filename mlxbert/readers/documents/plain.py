"""Plain text, in any common encoding."""

import codecs
from collections.abc import Iterator

from mlxbert.readers.documents.document import Document

MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_WESTERN = ("ascii", "iso8859-1")  # often declared by default, so ignored


def decode(data: bytes, said: str | None = None) -> str:
    """Decodes a file, converting CRLF to LF.

    The encoding is that of the byte-order mark, the declared one, UTF-8 or cp1252: the first that applies.

    Args:
        data: The bytes.
        said: The encoding that the file, or a header, declares.
    """
    return _decode(data, said).replace("\r\n", "\n")


def _decode(data: bytes, declared: str | None) -> str:
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    for name in (declared, "utf-8"):
        try:
            if name and codecs.lookup(name).name not in _WESTERN:
                return data.decode(name)
        except (LookupError, ValueError):  # unknown, or not the encoding of the file
            continue
    return data.decode("cp1252", "replace")


def decode_lines(data: bytes) -> str:
    """Decodes a file of lines. If it has no newlines, its lines end with carriage returns, as on old Macs."""
    text = decode(data)
    return text if "\n" in text else text.replace("\r", "\n")


def read_plain(data: bytes, name: str) -> Iterator[Document]:
    """Reads the file as one document."""
    yield Document(decode_lines(data), first_line=1)
