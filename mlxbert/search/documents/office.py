"""Documents of office programs, and books: Word, slides, spreadsheets, OpenDocument, EPUB and RTF."""

import datetime
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from html import escape
from io import BytesIO
from itertools import zip_longest
from typing import TYPE_CHECKING
from urllib.parse import unquote
from xml.etree.ElementTree import Element, ParseError, fromstring

from mlxbert.search.documents.document import (
    Document,
    Field,
    Heading,
    ReadProblem,
    UnreadableError,
    iso_date,
    joined,
    known,
)
from mlxbert.search.documents.web import html_document, read_html

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

    import python_calamine as calamine

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
    title, language = ("".join(texts(f"{_DC}{name}")[:1]) for name in ("title", "language"))
    return title, known(author=", ".join(texts(*_AUTHORS)), date=next(dates, ""), lang=language)


_HEADING = re.compile(r"heading ?([1-9])?", re.IGNORECASE)
_WORD_TAGS = {"tbl": "table", "tr": "tr", "tc": "td"}
_WRITTEN = {"tab": " ", "ptab": " ", "br": "<br>", "cr": "<br>", "noBreakHyphen": "\u2011"}
_AROUND = {"den": ("/", ""), "sup": ("^", ""), "sub": ("_", ""), "d": ("(", ")"), "rad": ("√", "")}  # in formulas
_NOTES = {"footnoteReference": "footnotes", "endnoteReference": "endnotes"}  # and the kinds of their parts
_BOUNDS = {"tc", "body"}  # what no paragraph crosses
_DELETED = {"del", "cellDel"}
# `rt` is the reading of a word, `Fallback` a copy for old programs.
_WORD_LEFT_OUT = {"del", "moveFrom", "rt", "Fallback"}


def read_word(data: bytes, name: str) -> Iterator[Document]:
    """Reads the document with its notes at the end, with tracked insertions and without deletions and comments."""
    with opened(data, ".docx") as archive:
        title, fields = properties(archive)
        main = next((part for kind, part in related_parts(archive, "").values() if kind == "officeDocument"), "")
        body, others = part_xml(archive, main or "word/document.xml"), related_parts(archive, main).values()
        page = _WordPage(_style_names(archive, [part for kind, part in others if kind == "styles"]))
        parts, notes = [*page.write(body)], dict[tuple[str, str], Element]()
        for kind, part in others:
            if kind in ("footnotes", "endnotes"):
                notes |= {(kind, _value(note, "id")): note for note in part_xml(archive, part)}
        for reference in dict.fromkeys(page.notes):
            parts += [*page.write(notes.get(reference, Element(""))), *page.take_joined()]
    yield _whole([html_document("".join(parts))], title, fields)


def _style_names(archive: "ZipFile", parts: list[str]) -> dict[str, str]:
    """Returns the names of the styles, which are the same in all languages, by their id."""
    styles = (style for part in parts for style in part_xml(archive, part) if _name(style) == "style")
    return {_value(style, "styleId"): _value(_child(style, "name"), "val") for style in styles}


@dataclass
class _WordPage:
    """Converts the contents of parts to a page.

    An element that is not known is read, as its text would be lost otherwise.
    """

    styles: Mapping[str, str]  # the names of the styles by their id
    notes: list[tuple[str, str]] = field(default_factory=list)  # the kinds and the ids of the notes, in order
    # The contents of paragraphs whose end was deleted: they are the beginning of the next one.
    joined: list[str] = field(default_factory=list)

    def write(self, elements: Iterable[Element]) -> Iterator[str]:
        """Yields the page of elements, such as those in another one, in pieces."""
        for child in elements:
            name = _name(child)
            properties = _child(child, f"{name}Pr")
            if name in _WORD_LEFT_OUT or name.endswith("Pr") or (name in ("tr", "tc") and _is_deleted(properties)):
                continue
            if name == "t":
                yield escape(child.text or "")
            elif name in _NOTES:
                self.notes.append((_NOTES[name], _value(child, "id")))
            elif name == "p":
                yield from self._paragraph(child, properties)
            else:
                tag, (before, after) = _WORD_TAGS.get(name, ""), _AROUND.get(name, ("", ""))
                yield (f"<{tag}>" if tag else before) + _WRITTEN.get(name, "")
                yield from self.write(child)
                if name in _BOUNDS:  # nothing follows that the last paragraph could begin
                    yield from self.take_joined()
                yield f"</{tag}>" if tag else after

    def take_joined(self) -> list[str]:
        begun, self.joined = self.joined, []
        return begun

    def _paragraph(self, element: Element, properties: Element | None) -> Iterator[str]:
        if _is_deleted(_child(properties, "rPr")):
            self.joined += self.write(element)
            return
        begun = self.take_joined()
        id = _value(_child(properties, "pStyle"), "val")
        style = self.styles.get(id, id)
        is_item = _child(properties, "numPr") is not None or style.lower().startswith("list ")
        heading = _HEADING.fullmatch(style)
        tag = f"h{min(int(heading[1] or 1), 6)}" if heading else "li" if is_item else "p"
        yield f"<{tag}>"
        yield from begun
        yield from self.write(element)
        yield f"</{tag}>"


def _name(element: Element) -> str:
    """The name of an element without its namespace, of which there are two: transitional and strict."""
    return element.tag.rpartition("}")[2]


def _child(element: Element | None, name: str) -> Element | None:
    return next((child for child in element if _name(child) == name), None) if element is not None else None


def _value(element: Element | None, name: str) -> str:
    attributes = element.attrib.items() if element is not None else ()
    return next((value for key, value in attributes if key.rpartition("}")[2] == name), "")


def _is_deleted(properties: Element | None) -> bool:
    return properties is not None and any(_name(child) in _DELETED for child in properties)


_OPEN_XML = "http://schemas.openxmlformats.org"
_A, _P = f"{{{_OPEN_XML}/drawingml/2006/main}}", f"{{{_OPEN_XML}/presentationml/2006/main}}"
_CHART = f"{{{_OPEN_XML}/drawingml/2006/chart}}"
_ID = f"{{{_OPEN_XML}/officeDocument/2006/relationships}}id"
_FALLBACK = f"{{{_OPEN_XML}/markup-compatibility/2006}}Fallback"  # the same once more, for older programs
_SEPARATED = {f"{_A}br": " ", f"{_CHART}v": " "}
_TEXTS = {f"{_A}t", *_SEPARATED}
_TITLES = {"title", "ctrTitle"}
_ON_EACH_SLIDE = {"sldNum", "dt", "ftr"}
_DRAWN = ("diagramData", "chart")


def read_slides(data: bytes, name: str) -> Iterator[Document]:
    """Reads the slides in their order as one document, with a page for each; a hidden slide is a page, too."""
    with opened(data, ".pptx") as archive:
        title, fields = properties(archive)
        slides, problems = list[Document](), list[ReadProblem]()
        for number, part in enumerate(_slide_parts(archive), 1):
            try:
                slide, reason = _slide(archive, part)
            except UnreadableError as problem:  # other slides may be readable
                slide, reason = Document(""), problem.message
            slides.append(slide)
            if reason:
                problems.append(ReadProblem("left out", f"slide {number}: {reason}"))
    yield _whole(slides, title, fields, problems, paged=True)


def _whole(
    parts: Sequence[Document], title: str, fields: Mapping[str, Field], problems: Sequence[ReadProblem] = (),
    *, paged: bool = False,
) -> Document:  # fmt: skip
    """Joins the parts of a document, such as slides; raises an error if none of them has a text."""
    whole = joined(parts, paged=paged)
    if not whole.text.strip():
        raise UnreadableError(f"has no text ({problems[0].reason})" if problems else "has no text")
    return replace(whole, title=title, fields=fields, problems=tuple(problems))


def _slide_parts(archive: "ZipFile") -> list[str]:
    """The names of the parts that are slides, in the order of the presentation."""
    main = next((part for kind, part in related_parts(archive, "").values() if kind == "officeDocument"), None)
    if main is None:
        raise UnreadableError("is not a .pptx, because the presentation is missing")
    related = related_parts(archive, main)
    return [
        related.get(slide.get(_ID, ""), ("", "the part of the slide"))[1]
        for slide in part_xml(archive, main).iter(f"{_P}sldId")
    ]


def _slide(archive: "ZipFile", part: str) -> tuple[Document, str]:
    """Reads a slide: its title, its other texts, and its notes; returns also what was left out."""
    root, related = part_xml(archive, part), related_parts(archive, part).values()
    lines = [*_paragraphs(root)]
    titles = [line for kind, line in lines if kind in _TITLES]
    texts = [line for kind, line in lines if kind not in _TITLES | _ON_EACH_SLIDE]
    notes, reason = list[str](), ""
    for kind, other in related:
        try:
            if kind in _DRAWN:
                texts += (line for _, line in _paragraphs(part_xml(archive, other)))
            elif kind == "notesSlide":
                notes += (line for kind, line in _paragraphs(part_xml(archive, other)) if kind == "body")
        except UnreadableError as problem:
            reason = problem.message
    text = "\n\n".join(filter(None, ("\n".join([*titles, *texts]), "\n".join(notes))))
    if not text and not reason and next(root.iter(f"{_A}blip"), None) is not None:
        reason = "the slide has only pictures, no text"
    heading = " ".join(titles) or text.partition("\n")[0]  # a slide does not belong to the title of an earlier one
    return Document(text, headings=(Heading.of(0, 1, heading),) if heading else ()), reason


def _paragraphs(element: Element, kind: str = "") -> Iterator[tuple[str, str]]:
    """The paragraphs in an element, and the rows of its tables, each with the kind of its placeholder."""
    for child in element:
        if child.tag == f"{_P}sp":
            placeholder = next(child.iter(f"{_P}ph"), None)
            yield from _paragraphs(child, "" if placeholder is None else placeholder.get("type", ""))
        elif child.tag in (f"{_A}p", f"{_CHART}strCache"):
            pieces = (
                _SEPARATED.get(piece.tag, "") + (piece.text or "") for piece in child.iter() if piece.tag in _TEXTS
            )
            if line := " ".join("".join(pieces).split()):
                yield kind, line
        elif child.tag == f"{_A}tr":
            yield kind, " ".join(line for cell in child for _, line in _paragraphs(cell))
        elif child.tag != _FALLBACK:
            yield from _paragraphs(child, kind)


_MAX_ROWS = 2**20  # as in every program for spreadsheets; calamine makes a row of each number below the last
_MAX_SHEET_GROWTH = 2**28  # bytes that unpacking may add: calamine needs less time and memory than a tree of elements
_HEADER_CELLS = 3  # a header has at least three; two columns read well without one
_HEADER_LENGTH = 100  # characters of a header cell, at most


def read_spreadsheet(data: bytes, name: str) -> Iterator[Document]:
    """Reads each sheet, also a hidden one, as a document: its name, and a line for each row."""
    import python_calamine as calamine

    ending = ".ods" if name.lower().endswith(".ods") else ".xlsx"
    with opened(data, ending, _MAX_SHEET_GROWTH) as archive:
        refuse_document_types(archive)
        title, fields = properties(archive)
    try:
        book = calamine.load_workbook(BytesIO(data))
    except calamine.CalamineError as problem:
        raise UnreadableError(f"is not a readable {ending} file ({problem})") from None
    has_text, reasons = False, list[str]()
    for number, sheet in enumerate(book.sheets_metadata):
        place, heading = f"sheet {sheet.name}", Heading.of(0, 1, sheet.name)
        try:
            text = _sheet_text(book, number)
        except UnreadableError as problem:  # other sheets may be readable
            reasons.append(problem.message)
            yield Document("", title, fields, place, problems=(ReadProblem("left out", problem.message),))
            continue
        if text:
            has_text, headings = True, (heading,) if heading.text else ()
            yield Document(f"{heading.text}\n\n{text}".lstrip("\n"), title, fields, place, headings=headings)
    if not has_text:
        raise UnreadableError(f"has no sheet with text ({reasons[0]})" if reasons else "has no sheet with text")


def _sheet_text(book: "calamine.CalamineWorkbook", number: int) -> str:
    """The text of a sheet; an error says why it cannot be read."""
    import python_calamine as calamine

    kind = book.sheets_metadata[number].typ
    if kind != calamine.SheetTypeEnum.WorkSheet:
        raise UnreadableError(f"the sheet is a {str(kind).rpartition('.')[2]}, which has no cells")
    try:
        sheet = book.get_sheet_by_index(number)
    except (calamine.CalamineError, OSError, ValueError) as problem:
        raise UnreadableError(f"the sheet is damaged ({problem})") from None
    if sheet.end is not None and sheet.end[0] >= _MAX_ROWS:
        raise UnreadableError(f"the sheet has {sheet.end[0] + 1:,} rows, but the maximum is {_MAX_ROWS:,}")
    return "\n".join(_row_lines(sheet.iter_rows())).strip("\n")


def _row_lines(rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The rows as lines. In those below a header each cell begins with it, because a passage may begin at any row."""
    header: list[str] | None = None
    last = ""
    for row in rows:
        cells = [_shown(cell) for cell in row]
        named = zip_longest(header or (), cells, fillvalue="")
        line = ("; " if header else " | ").join(f"{name}: {cell}" if name else cell for name, cell in named if cell)
        if line or last:  # of empty rows, the first
            yield line
        last = line
        if header is None and len([*filter(None, cells)]) >= _HEADER_CELLS:
            header = cells if _is_header(row) else []


def _is_header(row: Sequence[object]) -> bool:
    """Whether a row names columns: it has short texts that differ, and nothing else."""
    texts = [cell for cell in row if cell != ""]
    return len({*texts}) == len(texts) and all(isinstance(text, str) and len(text) <= _HEADER_LENGTH for text in texts)


def _shown(cell: object) -> str:
    """A value as it is written, without the format of its cell."""
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float):
        return f"{cell:.15g}"  # as many digits as spreadsheets have
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(" ", "minutes" if not cell.second else "seconds")
    return " ".join(str(cell).split())


_OPEN_DOCUMENT = "urn:oasis:names:tc:opendocument:xmlns"
_OFFICE, _TABLE, _TEXT = (f"{{{_OPEN_DOCUMENT}:{name}:1.0}}" for name in ("office", "table", "text"))
_SVG = f"{{{_OPEN_DOCUMENT}:svg-compatible:1.0}}"
_LEVELS = {*"123456"}
_TAGS = {f"{_TEXT}p": "p", f"{_TEXT}list": "ul", f"{_TEXT}list-item": "li"} | {
    f"{_TABLE}{name}": tag for name, tag in (("table", "table"), ("table-row", "tr"), ("table-cell", "td"))
}
_SPACES = {f"{_TEXT}s": " ", f"{_TEXT}tab": " ", f"{_TEXT}line-break": "<br>"}
_LEFT_OUT = {f"{_TEXT}tracked-changes", f"{_TEXT}note-citation", f"{_TEXT}ruby-text", f"{_OFFICE}annotation"} | {
    *(f"{_OFFICE}binary-data", f"{_SVG}title", f"{_SVG}desc")  # of pictures
}


def read_open_document(data: bytes, name: str) -> Iterator[Document]:
    """Reads the text as one document, with its notes at the end, and without comments and deleted passages."""
    with opened(data, ".odt") as archive:
        title, fields = properties(archive)
        body = part_xml(archive, "content.xml").find(f"{_OFFICE}body/{_OFFICE}text")
    if body is None:
        raise UnreadableError("is not an OpenDocument text")
    notes = list[Element]()
    parts = [*_text_page(body, "", notes)]
    for note in notes:  # a note of a note comes last
        parts += _text_page(note, "", notes)
    yield _whole([html_document("".join(parts))], title, fields)


def _text_page(element: Element, inside: str, notes: list[Element]) -> Iterator[str]:
    """Converts the contents of an element to a page.

    Args:
        inside: The tag around its paragraphs, `li` or `td`, in which they are written as `span`; or "".
        notes: Gets the notes.
    """
    yield escape(element.text or "")
    for child in element:
        tag = _TAGS.get(child.tag, "")
        if child.tag == f"{_TEXT}h":
            level = child.get(f"{_TEXT}outline-level", "1")
            tag = f"h{level if level in _LEVELS else 6}"
        if child.tag == f"{_TEXT}note":
            notes.append(child)
        elif child.tag not in _LEFT_OUT:
            tag = "span" if tag == "p" and inside else tag
            yield (f"<{tag}>" if tag else "") + _SPACES.get(child.tag, "")
            yield from _text_page(child, tag if tag in ("li", "td") else inside, notes)
            yield f"</{tag}> " if tag else ""
        yield escape(child.tail or "")


_CONTAINER, _ENCRYPTION = "META-INF/container.xml", "META-INF/encryption.xml"
_CONTAINER_FILE = "{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"
_OPF = "{http://www.idpf.org/2007/opf}"
_CIPHER = "{http://www.w3.org/2001/04/xmlenc#}CipherReference"
_PAGES = {"application/xhtml+xml", "text/html"}
_EMPTY = re.compile(rb"<(?!(?:br|hr|img|input|link|meta|col|area|base|wbr)\b)([a-zA-Z][\w:-]{0,40})([^<>]*)/>")
_PICTURE = re.compile(rb"<(?:img|svg|image)\b", re.IGNORECASE)


def read_epub(data: bytes, name: str) -> Iterator[Document]:
    """Reads the book as one document."""
    chapters, problems = list[Document](), list[ReadProblem]()
    with opened(data, ".epub") as archive:
        package_file = next(part_xml(archive, _CONTAINER).iter(_CONTAINER_FILE), None)
        package_name = "" if package_file is None else package_file.get("full-path", "")
        if not package_name:
            raise UnreadableError(f"{_CONTAINER} names no rootfile")
        package = part_xml(archive, package_name)
        title, fields = stated_properties(package)
        folder = posixpath.dirname(package_name)
        items = {item.get("id"): item for item in package.iter(f"{_OPF}item")}
        encrypted = _encrypted_parts(archive)
        for id in dict.fromkeys(reference.get("idref", "") for reference in package.iter(f"{_OPF}itemref")):
            item = items.get(id)
            part = id if item is None else posixpath.normpath(posixpath.join(folder, unquote(item.get("href", ""))))
            try:
                if item is not None and item.get("media-type") not in _PAGES:
                    raise UnreadableError(f"{part} is not a page of text ({item.get('media-type')})")
                if part in encrypted:
                    raise UnreadableError(f"{part} is encrypted")
                chapters.append(_chapter(archive, part))
                problems += chapters[-1].problems
            except UnreadableError as problem:  # other chapters may be readable
                problems.append(ReadProblem("left out", problem.message))
    yield _whole(chapters, title, fields, problems)


def _encrypted_parts(archive: "ZipFile") -> set[str]:
    """The names of the parts that are encrypted, as in books with copy protection."""
    if _ENCRYPTION not in archive.NameToInfo:
        return set()
    return {unquote(part.get("URI", "")) for part in part_xml(archive, _ENCRYPTION).iter(_CIPHER)}


def _chapter(archive: "ZipFile", part: str) -> Document:
    data = part_bytes(archive, part)
    # In XHTML, `<title/>` is an empty element; in HTML, it begins one that has no end.
    (chapter,) = read_html(_EMPTY.sub(rb"<\1\2></\1>", data), part)
    if not chapter.text and _PICTURE.search(data):
        raise UnreadableError(f"{part} has only pictures, no text")
    return chapter


_RTF_INFO = r"\{\\%s ([^{}]{1,1000})\}"
_RTF_DATE = re.compile(r"\\(?:revtim|creatim)\\yr(\d{4})\\mo(\d\d?)\\dy(\d\d?)")
_CODE_PAGE = re.compile(r"\\ansicpg\d{1,5}")
_DESTINATIONS = {"footnote": "notes", "shptxt": "text boxes"}  # which the library leaves out


def read_rtf(data: bytes, name: str) -> Iterator[Document]:
    """Reads the file as one document, without pictures, comments, headers and footers."""
    source = data.decode("cp1252", "replace")
    if not source.startswith("{\\rtf"):
        raise UnreadableError("is not RTF")
    code_page = _CODE_PAGE.search(source)

    def stated(name: str) -> str:
        value = re.search(_RTF_INFO % name, source)
        return " ".join(_rtf_text(f"{{\\rtf1{code_page[0] if code_page else ''} {value[1]}}}").split()) if value else ""

    text = _rtf_text(source).strip()
    if not text:
        raise UnreadableError("has no text")
    fields = known(author=stated("author"), date=_rtf_date(source))
    omissions = [what for word, what in _DESTINATIONS.items() if f"\\{word}" in source]
    problems = tuple(ReadProblem("left out", f"the {what} of the document") for what in omissions)
    yield Document(text, stated("title"), fields, problems=problems)


def _rtf_date(source: str) -> str:
    """The date of the last change, or of the creation."""
    dates = [*_RTF_DATE.finditer(source)]
    date = next((date for date in dates if date[0].startswith("\\rev")), dates[0] if dates else None)
    return iso_date("{}-{:0>2}-{:0>2}".format(*date.groups())) if date else ""


def _rtf_text(source: str) -> str:
    from striprtf.striprtf import rtf_to_text

    # Without the space, the library searches fields for links, in a time that grows with the square of a line.
    text: str = rtf_to_text(source.replace("{\\field{", "{\\field {"), errors="replace")
    # RTF writes a character such as an emoji as two halves.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
