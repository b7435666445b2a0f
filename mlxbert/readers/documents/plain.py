"""Plain text, in any common encoding."""

from collections.abc import Iterator

from mlxbert.readers.documents.document import Document
from mlxbert.readers.documents.encodings import Decoded, decode


def decode_lines(data: bytes, declared: str | None = None, chosen: str | None = None) -> Decoded:
    """Decodes a file of lines. If it has no newlines, its lines end with carriage returns, as on old Macs.

    See `decode` for the arguments.
    """
    text, problems = decode(data, declared, chosen)
    return Decoded(text if "\n" in text else text.replace("\r", "\n"), problems)


def read_plain(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the file as one document."""
    text, problems = decode_lines(data, chosen=encoding)
    yield Document(text, first_line=1, problems=problems)
