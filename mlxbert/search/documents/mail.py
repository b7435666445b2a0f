"""E-mail: a message (.eml), or many (.mbox)."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from email.message import Message

from mlxbert.search.documents.document import Document, ReadProblem, UnreadableError, joined, known, unreadable
from mlxbert.search.documents.encodings import WESTERN, decode
from mlxbert.search.documents.web import declared_encoding, html_document, mail_date

_BEGIN = re.compile(rb"(?:\A|(?<=\n\n)|(?<=\n\r\n))From [^\n]*\n(?=[!-9;-~]+:)")
_QUOTED = re.compile(rb"^>(>*From )", re.MULTILINE)
_ADDRESS = re.compile(r"://\S*")
_SHOWN, _NAME = 5, 60  # names of attachments in a problem, and characters of each


def read_mail(data: bytes, name: str, encoding: str | None = None) -> Iterator[Document]:
    """Reads the messages, and the messages attached to them, but no other attachments."""
    if not (data.startswith(b"From ") or name.lower().endswith(".mbox")):
        yield from _read_message(data, "", encoding)
        return
    starts = [line.span() for line in _BEGIN.finditer(data)]
    if not starts:
        raise UnreadableError("has no readable message")
    if before := len(data[: starts[0][0]].strip()):
        yield _left_out("line 1", f"{before:,} bytes before the first message")
    ends, unread = [start for start, _ in starts[1:]] + [len(data)], 0
    for number, ((_, start), end) in enumerate(zip(starts, ends, strict=False), 1):
        place = f"message {number}"
        try:
            yield from _read_message(_QUOTED.sub(rb"\1", data[start:end]), place, encoding)
        except Exception as problem:  # the others may be readable
            unread += 1
            yield _left_out(place, unreadable(problem).message)
    if unread == len(starts):
        raise UnreadableError("has no readable message")


def _left_out(place: str, reason: str) -> Document:
    return Document("", place=place, problems=(ReadProblem("left out", reason),))


def _read_message(data: bytes, place: str, encoding: str | None) -> Iterator[Document]:
    from email import message_from_bytes

    message = message_from_bytes(data)
    if not message.keys():
        raise UnreadableError("has no e-mail headers")
    return _documents(message, place, encoding)


def _documents(message: Message, place: str, encoding: str | None) -> Iterator[Document]:
    """Yields the document of a message, then the documents of the messages that are attached to it."""
    contents = _Contents(encoding)
    body = contents.read(message)
    sender, receivers, subject = (_decoded(str(message.get(name, "")), encoding) for name in ("From", "To", "Subject"))
    yield replace(
        body,
        title=subject,
        fields=known(**{"from": sender}, to=receivers, date=mail_date(message)),
        place=place,
        problems=(*body.problems, *contents.problems()),
    )
    for number, attached in contents.messages:
        yield from _documents(attached, f"{place}, attachment {number}".removeprefix(", "), encoding)


@dataclass
class _Contents:
    encoding: str | None  # the encoding of texts that neither name theirs nor are UTF-8
    # The attached messages, with their numbers among the attachments.
    messages: list[tuple[int, Message]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # the names of the attachments that are not read

    def problems(self) -> Iterator[ReadProblem]:
        """Yields a problem that names the attachments that are not read."""
        if self.skipped:
            more = len(self.skipped) - _SHOWN
            names = ", ".join(self.skipped[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
            count = "an attachment" if len(self.skipped) == 1 else f"{len(self.skipped):,} attachments"
            yield ReadProblem("left out", f"{count} ({names})")

    def read(self, part: Message) -> Document:
        """Returns the text of a part of a message; collects the messages and other attachments in it."""
        kind, parts = part.get_content_type(), _parts(part)
        if kind in ("message/rfc822", "message/global") and parts:
            self.messages.append((len(self.messages) + len(self.skipped) + 1, parts[0]))
        elif part.get_content_maintype() == "multipart":
            if kind == "multipart/alternative":
                return self._richest(parts)
            return _all_of([self.read(inner) for inner in parts])
        elif part.get_content_maintype() == "text" and part.get_content_disposition() != "attachment":
            return self._text(part, kind)
        else:
            self.skipped.append((_decoded(part.get_filename() or "", self.encoding) or kind)[:_NAME])
        return Document("")

    def _richest(self, parts: Sequence[Message]) -> Document:
        """Returns the alternative with the most letters, the last one if several have as many.

        By RFC 2046 the last is the best, but it may be an invitation for a calendar; the first is usually plain text,
        but it may only say that the message needs another program.
        """
        usual = [part for part in parts if _is_usual(part)]
        richest = max((self.read(part) for part in reversed(usual or parts)), key=_letters, default=Document(""))
        if usual and not _letters(richest):
            self.skipped += (part.get_content_type()[:_NAME] for part in parts if not _is_usual(part))
        return richest

    def _text(self, part: Message, kind: str) -> Document:
        payload = part.get_payload(decode=True)
        data = payload if isinstance(payload, bytes) else b""
        charset = part.get_content_charset()
        is_page = kind == "text/html"
        text, problems = decode(data, charset or (declared_encoding(data) if is_page else None), self.encoding)
        document = html_document(text) if is_page else Document(text.strip())
        return replace(document, problems=problems)


def _parts(part: Message) -> list[Message]:
    payload = part.get_payload()
    return [inner for inner in payload if isinstance(inner, Message)] if isinstance(payload, list) else []


def _is_usual(part: Message) -> bool:
    return part.get_content_maintype() == "multipart" or part.get_content_type() in ("text/plain", "text/html")


def _letters(document: Document) -> int:
    """Counts the letters and digits of a text outside of addresses, which are long in plain text only."""
    return sum(map(str.isalnum, _ADDRESS.sub("", document.text)))


def _all_of(documents: Sequence[Document]) -> Document:
    """Joins the texts of several parts, with their headings and problems."""
    problems = dict.fromkeys(problem for document in documents for problem in document.problems)
    whole = joined([document for document in documents if document.text])
    return replace(whole, problems=tuple(problems))


def _decoded(raw: str, encoding: str | None) -> str:
    """Decodes the words of a header that name their encoding."""
    from email.header import decode_header

    with suppress(Exception):  # the library raises various errors for damaged headers
        parts = [
            decode(part, charset or encoding or WESTERN).text if isinstance(part, bytes) else part
            for part, charset in decode_header(raw)
        ]
        raw = "".join(parts)
    return " ".join(raw.split())
