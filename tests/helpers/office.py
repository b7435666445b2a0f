"""Small spreadsheets, slides, texts, books and web archives, generated without a library for these formats."""

import io
import zipfile
from collections.abc import Mapping, Sequence

_OPEN_XML = "http://schemas.openxmlformats.org"
_MAIN = f"{_OPEN_XML}/spreadsheetml/2006/main"
_SLIDES, _DRAWING = f"{_OPEN_XML}/presentationml/2006/main", f"{_OPEN_XML}/drawingml/2006/main"
_REFERENCES, _PACKAGE = f"{_OPEN_XML}/officeDocument/2006/relationships", f"{_OPEN_XML}/package/2006"
_OPEN_DOCUMENT = "urn:oasis:names:tc:opendocument:xmlns"
_DC = "http://purl.org/dc/elements/1.1/"
Parts = Mapping[str, str | bytes]
OLE = b"\xd0\xcf\x11\xe0"
ENCRYPTED = OLE + bytes(100) + "EncryptedPackage".encode("utf-16-le")


def zipped(parts: Parts) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return packed.getvalue()


def replaced(data: bytes, **parts: str | bytes | None) -> bytes:
    """Returns an archive with other parts in place of those whose names end so (`_` for a dot); `None` removes one."""
    ends = {name.replace("_", "."): content for name, content in parts.items()}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    new = {name: next((ends[end] for end in ends if name.endswith(end)), content) for name, content in old.items()}
    return zipped({name: content for name, content in new.items() if content is not None})


def core(title: str, author: str) -> str:
    return (
        f'<c xmlns:dc="{_DC}" xmlns:t="http://purl.org/dc/terms/"><dc:title>{title}</dc:title>'
        f"<dc:creator>{author}</dc:creator><t:created>2023-01-01T00:00:00Z</t:created>"
        "<t:modified>2024-05-06T09:08:09+02:00</t:modified></c>"
    )


def references(**targets: str) -> str:
    """Returns the relationships of a part: a kind, `_` and a number, and the target of each."""
    links = (
        f'<Relationship Id="{name}" Type="{_REFERENCES}/{name.partition("_")[0]}" Target="{target}"/>'
        for name, target in targets.items()
    )
    return f'<Relationships xmlns="{_PACKAGE}/relationships">{"".join(links)}</Relationships>'


def xlsx(
    sheets: Mapping[str, Sequence[Sequence[object]]], *, hidden: str = "", title: str = "", author: str = ""
) -> bytes:
    parts: dict[str, str | bytes] = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types"/>',
        "_rels/.rels": references(officeDocument_1="xl/workbook.xml"),
        "xl/_rels/workbook.xml.rels": references(
            styles_0="styles.xml", **{f"worksheet_{n}": f"worksheets/sheet{n}.xml" for n in range(1, len(sheets) + 1)}
        ),
        "xl/styles.xml": f'<styleSheet xmlns="{_MAIN}"><cellXfs><xf numFmtId="0"/><xf numFmtId="14"/></cellXfs>'
        "</styleSheet>",
        "docProps/core.xml": core(title, author),
    }
    entries = []
    for number, (name, rows) in enumerate(sheets.items(), 1):
        state = ' state="hidden"' if name == hidden else ""
        entries.append(f'<sheet name="{name}" sheetId="{number}"{state} r:id="worksheet_{number}"/>')
        lines = (f'<row r="{row}">{"".join(map(_cell, cells))}</row>' for row, cells in enumerate(rows, 1))
        content = f'<worksheet xmlns="{_MAIN}"><sheetData>{"".join(lines)}</sheetData></worksheet>'
        parts[f"xl/worksheets/sheet{number}.xml"] = content
    book = f'<workbook xmlns="{_MAIN}" xmlns:r="{_REFERENCES}"><sheets>{"".join(entries)}</sheets></workbook>'
    return zipped({**parts, "xl/workbook.xml": book})


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return f'<c t="b"><v>{value:d}</v></c>'
    if isinstance(value, int | float):
        return f"<c><v>{value}</v></c>"
    if isinstance(value, tuple):  # a day
        return f'<c s="1"><v>{value[0]}</v></c>'
    return f'<c t="inlineStr"><is><t>{value}</t></is></c>' if value else "<c/>"


def open_document(body: str, *, kind: str = "text", title: str = "", author: str = "") -> bytes:
    """Returns an OpenDocument text or spreadsheet with this content, in `text:`, `table:`, `office:` and `draw:`."""
    names = ("office", "text", "table", "meta")
    spaces = "".join(f' xmlns:{name}="{_OPEN_DOCUMENT}:{name}:1.0"' for name in names) + f' xmlns:dc="{_DC}"'
    mime = f"application/vnd.oasis.opendocument.{kind}"
    entry = f'<m:file-entry m:full-path="/" m:media-type="{mime}"/>'
    meta = (
        f"<dc:title>{title}</dc:title><meta:initial-creator>{author}</meta:initial-creator>"
        "<dc:creator>Somebody Else</dc:creator><dc:date>2024-05-06T07:08:09.123456789</dc:date>"
    )
    content = f"<office:body><office:{kind}>{body}</office:{kind}></office:body>"
    return zipped(
        {
            "mimetype": mime,
            "META-INF/manifest.xml": f'<m:manifest xmlns:m="{_OPEN_DOCUMENT}:manifest:1.0">{entry}</m:manifest>',
            "meta.xml": f"<office:document-meta{spaces}><office:meta>{meta}</office:meta></office:document-meta>",
            "content.xml": f"<office:document-content{spaces}>{content}</office:document-content>",
        }
    )


def ods(sheets: Mapping[str, Sequence[Sequence[object]]], *, title: str = "", author: str = "") -> bytes:
    """Returns an OpenDocument spreadsheet: its sheets by name, with their rows."""
    tables = []
    for name, rows in sheets.items():
        cells = ["".join(map(_open_cell, row)) for row in rows]
        lines = "".join(f"<table:table-row>{row}</table:table-row>" for row in cells)
        tables.append(f'<table:table table:name="{name}">{lines}</table:table>')
    return open_document("".join(tables), kind="spreadsheet", title=title, author=author)


def _open_cell(value: object) -> str:
    if isinstance(value, int | float):
        return f'<table:table-cell office:value-type="float" office:value="{value}"/>'
    return f'<table:table-cell office:value-type="string"><text:p>{value}</text:p></table:table-cell>'


def shape(text: str, kind: str = "") -> str:
    """Returns a shape of a slide, with a paragraph; `kind` is that of its placeholder, such as `title`."""
    placeholder = f'<p:nvPr><p:ph type="{kind}"/></p:nvPr>' if kind else ""
    paragraph = f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>"
    return f"<p:sp><p:nvSpPr>{placeholder}</p:nvSpPr><p:txBody>{paragraph}</p:txBody></p:sp>"


PICTURE = '<p:pic><p:blipFill><a:blip r:embed="image_1"/></p:blipFill></p:pic>'


def pptx(*slides: str, notes: Mapping[int, str] | None = None, title: str = "", author: str = "") -> bytes:
    """Returns a presentation: the shapes of each slide, and of the notes of slides by their number, from 1."""
    spaces = f'xmlns:p="{_SLIDES}" xmlns:a="{_DRAWING}" xmlns:r="{_REFERENCES}"'
    order = "".join(f'<p:sldId r:id="slide_{place}"/>' for place in range(len(slides)))
    names = [f"slide{len(slides) - place}.xml" for place in range(len(slides))]  # the files have another order
    files = {f"slide_{place}": f"slides/{name}" for place, name in enumerate(names)}
    parts: dict[str, str | bytes] = {
        "_rels/.rels": references(officeDocument_1="ppt/presentation.xml"),
        "ppt/presentation.xml": f"<p:presentation {spaces}><p:sldIdLst>{order}</p:sldIdLst></p:presentation>",
        "ppt/_rels/presentation.xml.rels": references(**files),
        "docProps/core.xml": core(title, author),
    }
    for name, content in zip(names, slides, strict=True):
        parts[f"ppt/slides/{name}"] = f"<p:sld {spaces}><p:cSld>{content}</p:cSld></p:sld>"
    for number, content in (notes or {}).items():
        parts[f"ppt/slides/_rels/{names[number - 1]}.rels"] = references(notesSlide_1="../notesSlides/notes.xml")
        parts["ppt/notesSlides/notes.xml"] = f"<p:notes {spaces}><p:cSld>{content}</p:cSld></p:notes>"
    return zipped(parts)


def epub(chapters: Mapping[str, str | bytes | None], *, metadata: str = "", more: Parts | None = None) -> bytes:
    """Returns a book: its chapters by name, `None` for one that is missing, and properties, with the prefix `dc`."""
    items = "".join(
        f'<item id="c{n}" href="{name}" media-type="application/xhtml+xml"/>' for n, name in enumerate(chapters)
    )
    spine = "".join(f'<itemref idref="c{n}"/>' for n in range(len(chapters)))
    root = '<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/>'
    container = f'<container xmlns="{_OPEN_DOCUMENT}:container"><rootfiles>{root}</rootfiles></container>'
    package = (
        f'<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="{_DC}"><metadata>{metadata}</metadata>'
        f"<manifest>{items}</manifest><spine>{spine}</spine></package>"
    )
    pages = {f"OEBPS/{name.replace('%20', ' ')}": page for name, page in chapters.items() if page is not None}
    parts = {"mimetype": "application/epub+zip", "META-INF/container.xml": container, "OEBPS/book.opf": package}
    return zipped({**parts, **pages, **(more or {})})
