"""Sentences of a text."""

import time

import pytest
from hypothesis import given, strategies as st

from mlxbert.search.chunks import sentences
from tests.helpers.cells import quick


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n ", []),
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ("It is 3.5 km, e.g. here.", ["It is 3.5 km, e.g. here."]),
        (
            "He said \u201cno.\u201d She (too.) Then  e.g.  here.",
            ["He said \u201cno.\u201d", "She (too.)", "Then  e.g.  here."],
        ),
        ("a line\nand more.\n\n  Another\n \nthird", ["a line\nand more.", "Another", "third"]),
        ("\u4e2d\u6587\u3002\u6587\u4e2d\uff01\u4e2d", ["\u4e2d\u6587\u3002", "\u6587\u4e2d\uff01", "\u4e2d"]),
    ],
)
def test_known_sentences(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in sentences(text)] == expected


@quick(200)
@given(st.text(alphabet=st.sampled_from("aB.!\n \u3002\u201d\u3000\u2026)"), max_size=40))
def test_sentences_have_all_that_is_not_space(text: str) -> None:
    spans = sentences(text)
    assert "".join("".join(text[start:end] for start, end in spans).split()) == "".join(text.split())
    assert spans == sorted(spans)
    for start, end in spans:
        assert text[start:end] == text[start:end].strip() != ""


def test_time_is_linear() -> None:
    start = time.process_time()
    for part in (".", ". ", "\n", " ", ".)", "a"):
        sentences(part * 200_000)
    assert time.process_time() - start < 2
