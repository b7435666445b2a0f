"""Which parts of e-mails are read, and what is said of the others."""

from email.message import EmailMessage

import pytest

from mlxbert.search.documents.document import UnreadableError
from tests.helpers.cases import together
from tests.search.documents.test_documents import headings, only, read

pytestmark = pytest.mark.usefixtures("here")
PAGE = "<h1>Your invoice</h1><p>The amount of the invoice is 40 euros.</p>"
TEXT = "Your invoice\n\nThe amount of the invoice is 40 euros."


def message(subject: str = "s", text: str | None = None, page: str | None = None) -> EmailMessage:
    built = EmailMessage()
    built["Subject"] = subject
    if text is not None:
        built.set_content(text)
    if page is not None:
        built.add_alternative(page, subtype="html") if text is not None else built.set_content(page, subtype="html")
    return built


@together(
    ("plain", "page", "text"),
    [
        ("", PAGE, TEXT),
        ("This message needs an HTML viewer.", PAGE, TEXT),
        (f"View it at https://example.org/{'token/' * 50}", PAGE, TEXT),
        ("The amount is 40 euros, due today.", "<p>See above", "The amount is 40 euros, due today."),
        ("查看网页", "<p>发票金额为四十欧元。请在十天内付款。", "发票金额为四十欧元。请在十天内付款。"),
        ("same words", "<h2>same</h2>words", "same\n\nwords"),
    ],
)  # fmt: skip
def test_of_alternatives_the_one_with_more_text_is_read(plain: str, page: str, text: str) -> None:
    found = only("a.eml", message(text=plain, page=page).as_bytes())
    assert (found.text, found.problems) == (text, ())


def test_an_empty_text_beside_a_page_is_no_answer() -> None:
    for kind in ("mixed", "alternative", "related"):
        mail = (
            f"Subject: s\nContent-Type: multipart/{kind}; boundary=B\n\n--B\nContent-Type: text/plain\n\n\n"
            f"--B\nContent-Type: text/html\n\n{PAGE}\n--B--\n"
        )
        assert only("a.eml", mail).text == TEXT


def test_the_text_around_a_picture_is_read() -> None:
    mail = (
        "Subject: s\nContent-Type: multipart/mixed; boundary=B\n\n--B\nContent-Type: text/plain\n\nbefore it\n"
        "--B\nContent-Type: image/png; name=map.png\nContent-Disposition: inline; filename=map.png\n\nx\n"
        "--B\nContent-Type: text/plain\n\nafter it\n--B\nContent-Type: text/x-diff\n\n+ a patch\n--B--\n"
    )
    found = only("a.eml", mail)
    assert found.text == "before it\n\nafter it\n\n+ a patch"
    assert "map.png" in found.problems[0].reason and found.problems[0].kind == "left out"
    related = message(text="short", page=PAGE)
    related.get_payload()[1].add_related(b"x", "image", "png", cid="<a>", filename="logo.png")  # type: ignore[index, union-attr]
    found = only("a.eml", related.as_bytes())
    assert (found.text, headings(found)) == (TEXT, [(1, "Your invoice")])
    assert "logo.png" in found.problems[0].reason


def test_an_attached_message_is_a_document_of_its_own() -> None:
    inner, deep = message("The real subject", "inner words"), message("Deepest", "deep words")
    inner["From"], inner["Date"] = "ada@example.org", "Tue, 6 Jan 2026 23:30:00 -0200"
    inner.add_attachment(deep)
    outer = message("Fwd", "see below")
    outer.add_attachment(b"x", maintype="application", subtype="pdf", filename="report.pdf")
    outer.add_attachment(inner)
    first, second, third = read("a.eml", outer.as_bytes())
    assert [(one.title, one.text.strip(), one.place) for one in (first, second, third)] == [
        ("Fwd", "see below", ""),
        ("The real subject", "inner words", "attachment 2"),
        ("Deepest", "deep words", "attachment 2, attachment 1"),
    ]
    assert dict(second.fields) == {"from": "ada@example.org", "date": "2026-01-07T01:30:00+00:00"}
    assert "report.pdf" in first.problems[0].reason and not second.problems
    box = b"From a\n" + message("First", "one").as_bytes() + b"\nFrom b\n" + outer.as_bytes()
    places = ["message 1", "message 2", "message 2, attachment 2", "message 2, attachment 2, attachment 1"]
    assert [one.place for one in read("a.mbox", box)] == places


def test_a_page_may_name_its_encoding_itself() -> None:
    page = '<meta charset="windows-1251"><p>Счёт на сорок евро'.encode("cp1251")
    found = only("a.eml", b"Subject: s\nContent-Type: text/html\n\n" + page)
    assert (found.text, found.problems) == ("Счёт на сорок евро", ())
    box = b"From a\nSubject: s\nContent-Type: text/html; charset=koi8-r\n\n<p>" + "Счёт".encode("koi8-r")
    assert only("a.mbox", box).text == "Счёт"


def test_names_of_many_attachments_are_counted() -> None:
    outer = message("s", "words")
    for number in range(9):
        outer.add_attachment(b"x", maintype="image", subtype="png", filename=f"{number}{'x' * 300}.png")
    (problem,) = only("a.eml", outer.as_bytes()).problems
    assert problem.reason.startswith("9 attachments") and "4 more" in problem.reason and len(problem.reason) < 400


def test_names_of_attachments_are_decoded_and_long_words_counted_quickly() -> None:
    mail = (
        "Subject: s\nContent-Type: multipart/mixed; boundary=B\n\n--B\nContent-Type: image/png; "
        'name="=?utf-8?q?Gr=C3=B6=C3=9Fe=2Epng?="\n\nx\n--B\nContent-Type: multipart/alternative; boundary=C\n\n'
        f"--C\nContent-Type: text/plain; charset=utf-8\n\n{'退款' * 10**5}\n--C\nContent-Type: text/html\n\nx\n--C--\n"
    )
    found = only("a.eml", mail)
    assert "Größe.png" in found.problems[0].reason and len(found.text) == 200_000


def test_a_message_that_cannot_be_read_is_a_problem_with_its_place() -> None:
    deep = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(1000))
    box = b"lost words\n\nFrom a\nSubject: 1\n\none\n\nFrom b\n" + deep + b"\n\nFrom c\nSubject: 3\n\nthree\n"
    found = read("a.mbox", box)
    assert [(one.place, one.text) for one in found] == [
        ("line 1", ""), ("message 1", "one"), ("message 2", ""), ("message 3", "three"),
    ]  # fmt: skip
    assert [[problem.kind for problem in one.problems] for one in found] == [["left out"], [], ["left out"], []]
    with pytest.raises(UnreadableError, match="no readable message"):
        read("a.mbox", b"From b\n" + deep)


def test_an_alternative_that_nobody_can_read_is_named() -> None:
    mail = (
        "Subject: s\nContent-Type: multipart/alternative; boundary=B\n\n--B\nContent-Type: text/plain\n\n\n"
        "--B\nContent-Type: text/calendar\n\nBEGIN:VCALENDAR\n--B--\n"
    )
    found = only("a.eml", mail)
    assert found.text == "" and "text/calendar" in found.problems[0].reason
