"""Web pages that a browser saved with their pictures (.mhtml): the text of the page."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from mlxbert.readers.documents.document import Document, Field, UnreadableError, iso_date
from mlxbert.readers.documents.html import read_html


def read_web_archive(data: bytes, name: str) -> Iterator[Document]:
    """Reads the page, which is the first part of HTML, as one document."""
    from email import message_from_bytes
    from email.utils import parsedate_to_datetime

    message = message_from_bytes(data)
    part = next((part for part in message.walk() if part.get_content_type() == "text/html"), None)
    payload = part.get_payload(decode=True) if part is not None else None
    if part is None or not isinstance(payload, bytes):
        raise UnreadableError("contains no HTML page")
    if charset := part.get_content_charset():
        with suppress(LookupError):  # the page may name another; a byte-order mark comes before what it names
            payload = payload.decode(charset, "replace").encode("utf-8-sig")
    (page,) = read_html(payload, name)
    if not page.text.strip():
        raise UnreadableError("has no text")
    address = message["Snapshot-Content-Location"] or part["Content-Location"]
    fields: dict[str, Field] = {**page.fields, "url": str(address or "").strip()}
    with suppress(Exception):  # the library raises various errors for damaged dates
        fields["date"] = iso_date(parsedate_to_datetime(str(message["Date"])).isoformat())
    yield replace(page, fields={key: value for key, value in fields.items() if value})
