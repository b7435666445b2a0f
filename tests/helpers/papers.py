"""Small PDF and Word files, generated without a library for these formats."""

from collections.abc import Sequence

from tests.helpers.office import references, zipped

_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
DOCUMENT = "word/document.xml"


def pdf(*pages: str, title: str = "", box: str = "0 0 612 792") -> bytes:
    fonts = b"<</Font<</F1 3 0 R>>>>"
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    objects.append(f"<</Title({title})>>".encode())
    kids = []
    for page in pages:
        content = f"BT /F1 12 Tf 72 720 Td ({page}) Tj ET".encode()
        objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(content), content))
        objects.append(
            b"<</Type/Page/Parent 2 0 R/MediaBox[%s]/Resources%s/Contents %d 0 R>>"
            % (box.encode(), fonts, len(objects))
        )
        kids.append(b"%d 0 R" % len(objects))
    objects[1] = b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(kids), b" ".join(kids))
    return pdf_of(objects)


def pdf_of(objects: Sequence[bytes], trailer: bytes = b"/Info 4 0 R") -> bytes:
    """Returns a PDF file with these objects; the first is the catalog."""
    whole, places = bytearray(b"%PDF-1.4\n"), []
    for number, content in enumerate(objects, 1):
        places.append(b"%010d 00000 n \n" % len(whole))
        whole += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    size = len(objects) + 1
    table = b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, b"".join(places))
    end = b"trailer<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF" % (size, trailer, len(whole))
    return bytes(whole + table + end)


def paragraph(text: str, style: str = "") -> str:
    """Returns a paragraph of a Word file. A style such as `Heading1` makes it a heading."""
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}<w:r><w:t>{text}</w:t></w:r></w:p>"


def docx(*paragraphs: str, title: str = "", before: str = "", more: dict[str, bytes] | None = None) -> bytes:
    """Returns a Word file."""
    parts: dict[str, str | bytes] = {
        "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
        '<Default Extension="xml" ContentType="application/xml"/></Types>',
        "_rels/.rels": references(officeDocument_1=DOCUMENT),
        DOCUMENT: f'{before}<w:document xmlns:w="{_WORD}"><w:body>{"".join(paragraphs)}</w:body></w:document>',
        "docProps/core.xml": f'<c xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title></c>',
        **(more or {}),
    }
    return zipped(parts)
