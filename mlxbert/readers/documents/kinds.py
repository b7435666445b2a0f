"""Which kind a file is, by the ending of its name, or else by how it begins."""

import codecs
import re

from mlxbert.readers.documents.plain import MARKS
from mlxbert.readers.documents.read import KINDS, RECORDS
from mlxbert.readers.formats import FORMATS, Format
from mlxbert.readers.lines import uncompressed_name

_RECORDS = tuple(  # which may be compressed
    ending for format in (Format.jsonl, Format.csv, Format.tsv) for ending in FORMATS[format].endings
)
_LOOK = 2**13  # bytes of a file that are looked at
_CONTROL = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]")


def kind_of(name: str, start: bytes) -> str | None:
    """The name of the reader of a file; `None` if it is binary.

    Args:
        name: The name of the file, or its path.
        start: Its first 8 KiB, or more.
    """
    lower = name.lower()
    if uncompressed_name(lower).endswith(_RECORDS) or lower.endswith(".parquet"):
        return RECORDS
    kind = next((kind for kind, reader in KINDS.items() if lower.endswith(reader.endings)), "text")
    if KINDS[kind].text:
        return kind if _is_text(start[:_LOOK]) else "pdf" if start.startswith(b"%PDF-") else None
    return kind


def _is_text(start: bytes) -> bool:
    """Whether bytes are text of UTF-8, or of an encoding like Latin-1 that has as few control characters."""
    if start.startswith((*MARKS,)):
        return True
    if b"\0" in start or start.startswith(b"%PDF-"):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)  # the last character may be cut
    except UnicodeDecodeError:
        return not _CONTROL.search(start)
    return True
