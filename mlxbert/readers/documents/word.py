"""Word documents (.docx), read with mammoth."""

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO

from mlxbert.readers.documents.document import Document
from mlxbert.readers.documents.html import html_document
from mlxbert.readers.documents.zipped_parts import opened, properties, refuse_document_types


def read_word(data: bytes, name: str) -> Iterator[Document]:
    """Reads the document with its paragraphs, lists, tables and notes."""
    import mammoth

    with opened(data, ".docx") as archive:
        refuse_document_types(archive)
        title, fields = properties(archive)
    no_picture = mammoth.images.img_element(lambda picture: {})
    # A style map embedded in an untrusted file would control the conversion.
    page = mammoth.convert_to_html(BytesIO(data), convert_image=no_picture, include_embedded_style_map=False)
    yield replace(html_document(page.value), title=title, fields=fields)
