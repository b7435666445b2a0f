"""E-mail: a message (.eml), or many (.mbox)."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from email.message import Message

from mlxbert.readers.documents.document import Document, Field, UnreadableError
from mlxbert.readers.documents.html import html_document
from mlxbert.readers.documents.plain import decode

_BEGIN = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\n]*\n(?=[!-9;-~]+:)")
_QUOTED = re.compile(rb"^>(>*From )", re.MULTILINE)


def read_mail(data: bytes, name: str) -> Iterator[Document]:
    """Reads the messages, but not their attachments."""
    if not (data.startswith(b"From ") or name.lower().endswith(".mbox")):
        yield _message(data)
        return
    starts = [line.span() for line in _BEGIN.finditer(data)]
    ends = [start for start, _ in starts[1:]] + [len(data)]
    read = 0
    for number, ((_, start), end) in enumerate(zip(starts, ends, strict=False), 1):
        with suppress(Exception):  # the others may be readable
            document = replace(_message(_QUOTED.sub(rb"\1", data[start:end])), place=f"message {number}")
            read += 1
            yield document
    if not read:
        raise UnreadableError("has no readable message")


def _message(data: bytes) -> Document:
    from email import message_from_bytes

    message = message_from_bytes(data)
    if not message.keys():
        raise UnreadableError("has no e-mail headers")
    fields: dict[str, Field] = {"from": _header(message, "From"), "to": _header(message, "To"), "date": _date(message)}
    subject, body = _header(message, "Subject"), _body(message)
    return replace(body, title=subject, fields={key: value for key, value in fields.items() if value})


def _body(message: Message) -> Document:
    """Returns the content of the message: the plain-text part, if there is one."""
    page: Document | None = None
    for part in message.walk():
        kind = part.get_content_type()
        if kind in ("text/plain", "text/html") and part.get_content_disposition() != "attachment":
            payload = part.get_payload(decode=True)
            text = decode(payload if isinstance(payload, bytes) else b"", part.get_content_charset())
            if kind == "text/plain":
                return Document(text.strip())
            page = page or html_document(text)
    return page or Document("")


def _header(message: Message, name: str) -> str:
    """The value of a header, decoded."""
    from email.header import decode_header

    raw = str(message.get(name, ""))
    with suppress(Exception):  # the library raises various errors for damaged headers
        parts = [decode(part, charset) if isinstance(part, bytes) else part for part, charset in decode_header(raw)]
        raw = "".join(parts)
    return " ".join(raw.split())


def _date(message: Message) -> str | None:
    """The date in UTC and ISO format, so that dates can be compared as strings."""
    from email.utils import parsedate_to_datetime

    with suppress(Exception):
        date = parsedate_to_datetime(str(message["Date"]))
        return (date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)).isoformat()
    return None
