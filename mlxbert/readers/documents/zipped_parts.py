"""Documents that are zip archives of XML parts (Office Open XML, OpenDocument, EPUB): checks, parts, properties."""

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, ParseError, fromstring

from mlxbert.readers.documents.document import Field, UnreadableError, iso_date

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

_MAX_GROWTH = 2**26  # bytes that decompression may add; pictures are compressed already
_RATIO, _DENSE = 100, 2**22  # parts that unpack to more than 100 times their size may have 4 MiB: texts reach 30 times
_OLE = b"\xd0\xcf\x11\xe0"  # a file system in a file: Office 97, and what Office encrypts
_ENCRYPTED = "EncryptedPackage".encode("utf-16-le")
_MANIFEST = "META-INF/manifest.xml"  # of OpenDocument; names the parts that are encrypted
_NO_PASSWORD = "save a copy without a password"
_PROPERTIES = ("docProps/core.xml", "meta.xml")  # of Office Open XML; of OpenDocument
_DC, _TERMS = "{http://purl.org/dc/elements/1.1/}", "{http://purl.org/dc/terms/}"
_META = "{urn:oasis:names:tc:opendocument:xmlns:meta:1.0}"
_AUTHORS = (f"{_META}initial-creator", f"{_DC}creator")
_DATES = (f"{_TERMS}modified", f"{_DC}date", f"{_TERMS}created", f"{_META}creation-date")


@contextmanager
def opened(data: bytes, ending: str, most: int = _MAX_GROWTH) -> Iterator["ZipFile"]:
    """Opens an archive that is neither encrypted nor a zip bomb.

    The sizes that the archive states can be trusted, because `zipfile` stops reading a part at its stated size.

    Args:
        data: The bytes of the file.
        ending: The file extension, for errors.
        most: The bytes that decompression may add.
    """
    from zipfile import BadZipFile, ZipFile

    if data.startswith(_OLE):
        if _ENCRYPTED in data:
            raise UnreadableError("is encrypted", hint=_NO_PASSWORD)
        raise UnreadableError("is in the format of Office 97, or encrypted", hint=f"save the document as {ending}")
    try:
        archive = ZipFile(BytesIO(data))
    except (BadZipFile, RuntimeError, ValueError):
        raise UnreadableError(f"is not a readable {ending} file") from None
    with archive:
        parts = archive.infolist()
        dense = sum(part.file_size for part in parts if part.file_size > _RATIO * part.compress_size)
        growth = sum(max(part.file_size - part.compress_size, 0) for part in parts)
        for size, limit in ((dense, _DENSE), (growth, most)):
            if size > limit:
                raise UnreadableError(f"grows by {size:,} bytes when unpacked, but the maximum is {limit:,}")
        manifest = archive.read(_MANIFEST) if _MANIFEST in archive.namelist() else b""
        if b"encryption-data" in manifest or any(part.flag_bits & 1 for part in parts):
            raise UnreadableError("is encrypted", hint=_NO_PASSWORD)
        yield archive


def refuse_document_types(archive: "ZipFile") -> None:
    """Refuses XML bombs, before another library reads the archive: they need a document type, Office writes none."""
    for part in archive.infolist():
        if _declares_type(archive, part):
            raise _has_document_type(part.filename)


def _has_document_type(name: str) -> UnreadableError:
    return UnreadableError(f"{name} contains a DOCTYPE declaration, which is not allowed in its format")


def _declares_type(archive: "ZipFile", part: "ZipInfo") -> bool:
    """Whether a part of an archive is XML with a document type, whatever its encoding and name.

    The reader of spreadsheets reads any part that another part refers to. Parsing stops at the first element, since a
    document type can only precede it.
    """
    from xml.parsers import expat

    has_type = False

    def declared(*_: object) -> None:
        nonlocal has_type
        has_type = True
        raise StopIteration

    def begun(*_: object) -> None:
        raise StopIteration

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartDoctypeDeclHandler, parser.StartElementHandler = declared, begun
    with suppress(Exception), archive.open(part) as file:
        parser.ParseFile(file)
    return has_type


def part_bytes(archive: "ZipFile", name: str) -> bytes:
    """Reads a part; an error names the part."""
    if name not in archive.NameToInfo:
        raise UnreadableError(f"{name} is missing")
    try:
        return archive.read(name)
    except MemoryError:
        raise
    except Exception as problem:  # of zipfile and of zlib: a wrong checksum, an unknown method
        raise UnreadableError(f"{name} is damaged ({type(problem).__name__})") from None


def part_xml(archive: "ZipFile", name: str) -> Element:
    """Parses a part that is XML; refuses a document type, with which it could refer to other files."""
    data = part_bytes(archive, name)
    if _declares_type(archive, archive.NameToInfo[name]):
        raise _has_document_type(name)
    try:
        return fromstring(data)
    except (ParseError, ValueError, LookupError) as problem:
        raise UnreadableError(f"{name} is damaged ({problem})") from None


def related_parts(archive: "ZipFile", part: str) -> dict[str, tuple[str, str]]:
    """Returns the kinds and the names of the parts to which a part refers, by the name of the reference."""
    folder, file = posixpath.split(part)
    name = posixpath.join(folder, "_rels", f"{file}.rels")
    if part and name not in archive.NameToInfo:
        return {}
    related = {}
    for link in part_xml(archive, name):
        if link.get("TargetMode") != "External":
            target = posixpath.normpath(posixpath.join("/", folder, link.get("Target", ""))).lstrip("/")
            related[link.get("Id", "")] = link.get("Type", "").rpartition("/")[2], target
    return related


def properties(archive: "ZipFile") -> tuple[str, dict[str, Field]]:
    """Returns the title and the fields of `stated_properties`, or none if the archive does not state them readably."""
    for name in _PROPERTIES:
        if name in archive.NameToInfo:
            with suppress(UnreadableError):
                return stated_properties(part_xml(archive, name))
    return "", {}


def stated_properties(root: Element) -> tuple[str, dict[str, Field]]:
    """Returns the title and the fields `author`, `date` and `lang` that are stated in elements of Dublin Core."""

    def texts(*tags: str) -> list[str]:
        values = [[" ".join("".join(element.itertext()).split()) for element in root.iter(tag)] for tag in tags]
        return next((present for each in values if (present := [*filter(None, each)])), [])

    dates = (date for tag in _DATES for text in texts(tag) if (date := iso_date(text)))
    values = {
        "author": ", ".join(texts(*_AUTHORS)),
        "date": next(dates, ""),
        "lang": "".join(texts(f"{_DC}language")[:1]),
    }
    return "".join(texts(f"{_DC}title")[:1]), {key: value for key, value in values.items() if value}
