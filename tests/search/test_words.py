"""Any query is words alone."""

import sqlite3
from collections.abc import Sequence

import pytest
from hypothesis import example, given, strategies as st

from mlxbert.search.word_search import ROWS, any_word, every_phrase

QUERY = st.text() | st.lists(
    st.sampled_from(["dog", '"', "NEAR(", "NEAR", "*", "-", "^", ":", "+", "(", ")", "{a b}", "AND", "OR", "NOT", "\0",
                     "\ud800", "\udfff", "é", "titles:", " ", "'", "\n", "\u2028", "#"])
).map("".join)  # fmt: skip


@pytest.fixture(scope="module")
def table() -> sqlite3.Connection:
    """A table of words."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5 (titles, text, tokenize='ascii')")
    connection.execute("INSERT INTO words VALUES ('top', 'the dog reads read_file near a cat')")
    return connection


def matching(table: sqlite3.Connection, match: str) -> int:
    """How many rows match."""
    return len(table.execute("SELECT rowid FROM words WHERE words MATCH ?", (match,)).fetchall()) if match else 0


@given(QUERY)
@example('"')
@example("\0")
@example("\ud800 dog")
@example('dog" OR "cat')
@example('"\0"')
def test_any_text_is_a_query(table: sqlite3.Connection, query: str) -> None:
    for match in (
        any_word(query, lambda words: dict.fromkeys(words, 1)),
        any_word(query, lambda words: {}),
        every_phrase(query),
    ):
        assert matching(table, match) in (0, 1)
    assert matching(table, any_word(f"dog {query}", lambda words: {})) == 1


def test_syntax_is_text(table: sqlite3.Connection) -> None:
    for query in ("do*", "NEAR(bird fish)", "text:", "NOT", "^", "titles : x"):
        assert matching(table, any_word(query, lambda words: {})) == (query == "NEAR(bird fish)") * 0, query
    assert matching(table, any_word("-dog", lambda words: {})) == 1


def test_long_queries(table: sqlite3.Connection) -> None:
    words = " ".join(f"w{number}" for number in range(20_000))
    assert matching(table, any_word(f"{words} dog", lambda words: {})) == 1
    assert matching(table, every_phrase(words)) == 0 == matching(table, every_phrase('"a b" ' * 3000))


def test_phrases() -> None:
    assert every_phrase("dog") == "" == every_phrase("") == every_phrase('" "') == every_phrase('"')
    assert (
        every_phrase('"dog"') == '"dog"'
        and every_phrase("a dog") == '"a dog"'
        and every_phrase("read_file") == '"read file"'
    )
    assert every_phrase('find "the dog" and "a cat"') == '"the dog" AND "a cat"'


def test_frequent_words_are_left_out_if_there_are_rarer_ones() -> None:
    counts = {"the": ROWS * 2, "of": ROWS, "dog": 3, "cat": 4}
    assert any_word("the dog of cat", lambda words: counts) == '"dog" OR "cat"'
    assert any_word("the", lambda words: counts) == '"the"'
    assert any_word("the unknown", lambda words: counts) == '"unknown" OR "the"'
    asked: list[str] = []

    def frequency(words: Sequence[str]) -> dict[str, int]:
        asked.extend(words)
        return {}

    any_word("Read_File MÄDCHEN", frequency)
    assert asked == ["file", "madchen", "read"]


def test_words_between_quotation_marks_follow_each_other(table: sqlite3.Connection) -> None:
    def match(query: str) -> int:
        return matching(table, any_word(query, lambda words: dict.fromkeys(words, 1)))

    assert match('"the dog"') == match('"dog the" cat') == match("dog the") == 1
    assert match('"dog the"') == match('"dog the" mouse') == 0
