"""The words of any query, and how well a passage has them."""

import sqlite3
from collections.abc import Sequence

import pytest
from hypothesis import example, given, strategies as st

from mlxbert.search.folding import folded
from mlxbert.search.word_search import (
    BOUNDARY,
    ROWS,
    SPAN,
    WordMatch,
    WordMatcher,
    any_word,
    every_phrase,
    other_forms,
    phrases,
    word_weights,
)
from tests.helpers.cases import together

NONE = WordMatch(0.0, 0.0, False)


def match(query: str, text: str, chunks: int = 10**9, **counts: int) -> WordMatch:
    """Compares a text with a query; in a large index, words that say nothing have a small share."""
    weights = word_weights(query, lambda words: {word: counts.get(word, 1) for word in words}, chunks)
    return WordMatcher(weights, phrases(query)).match([*folded(text).split()])


def near(value: float) -> object:
    return pytest.approx(value, rel=0.05)


def test_all_words_close_together_are_complete_and_none_is_nothing() -> None:
    assert match("red lamp", "the red lamp").closeness == near(1)
    assert match("red lamp", "a blue chair") == NONE == match("red lamp", "")
    usual = " ".join(["red lamp", *["x"] * 198])
    assert match("red lamp", usual) == (near(1), near(1), True)


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    common = 9 * 10**8
    assert (
        match("the lamp", "lamp", the=common).closeness > 0.9 > 0.1 > match("the lamp", "the", the=common).closeness > 0
    )


@pytest.mark.parametrize("chunks", [10, 100_000])
def test_a_passage_with_a_word_that_all_have_is_not_what_one_looks_for(chunks: int) -> None:
    found = match("the", "the lamp", chunks, the=chunks)
    assert 0 < found.closeness < 0.4 and found.bm25 < 0.7


def test_words_that_stand_together_are_closer_than_scattered_ones() -> None:
    gap = " x" * (SPAN - 2)
    assert match("red lamp", f"red{gap} lamp").closeness == near(1)
    apart = match("red lamp", f"red{gap} x lamp")
    assert apart.closeness == near(0.5)
    assert apart.bm25 == pytest.approx(match("red lamp", f"red lamp{gap} x").bm25)


def test_a_span_is_left_word_by_word() -> None:
    """The best span may be anywhere, and a word that stands twice in a span counts once."""
    gap = " x" * SPAN
    text = f"red red{gap} lamp red{gap} red lamp big{gap} lamp lamp"
    assert match("big red lamp", text).closeness == near(1)
    assert match("big red lamp", text.replace("big", "small")).closeness == near(2 / 3)
    assert match("big red lamp", f"red lamp{gap[:-6]} red big").closeness == near(1)  # one red left, one is inside


def test_bm25_grows_with_repetition_and_shrinks_with_length() -> None:
    once, twice, long = (match("lamp", text).bm25 for text in ("lamp x", "lamp lamp", "lamp" + " x" * 999))
    assert once == near(2.2 / (1 + 0.3)) and twice == near(4.4 / (2 + 0.3)) and long == near(2.2 / (1 + 0.3 + 4.5))


@together(
    ("word", "form"),
    [
        ("billing", "billed"), ("dog", "dogs"), ("Rechnung", "Rechnungen"), 
        ("städte", "Stadtes"), ("cities", "city"), ("closed", "closing"), ("книга", "книги"), ("किताब", "किताबें"),
    ],
)  # fmt: skip
def test_another_form_of_a_word_counts_for_a_part(word: str, form: str) -> None:
    same, other = match(word, word), match(word, form)
    assert other.closeness == near(0.5) and other.bm25 == near(2.2 * 0.5 / (0.5 + 0.3)) and other.bm25 < same.bm25
    for both in (f"{word} {form}", f"{form} {word}"):
        assert match(word, both).closeness == pytest.approx(same.closeness)
        assert match(word, both).bm25 == pytest.approx(match(word, f"{word} x").bm25)
    gap = " x" * SPAN
    assert match(f"{word} lamp", f"{form} {form} {word}{gap} {form} lamp").closeness == near(0.75)


@pytest.mark.parametrize(
    ("word", "other"),
    [
        ("20041", "20042"), ("car", "carpet"), ("international", "interval"), ("conquest", "conservation"),
        ("password", "passport"), ("company", "computer"), ("internet", "interest"), ("lamp", "lampshades"),
        ("contract", "continue"), ("bus", "busy5"), ("be", "bee"), ("plumber", "plum"), ("corner", "corn"),
        ("tender", "tend"), ("police", "policy"), ("hat", "hated"), ("парк", "пароход"),
    ],
)  # fmt: skip
def test_other_words_do_not_count(word: str, other: str) -> None:
    assert match(word, other) == NONE == match(other, word)


def test_the_forms_that_count_are_named() -> None:
    words = ["billed", "police", "policy", "bills", "billed"]
    assert other_forms("billing policy", words) == ["billed", "bills"]
    assert other_forms('"the billing" policies', words) == ["policy"]


def test_the_words_of_a_phrase_have_to_follow_each_other() -> None:
    for query, same, different in (
        ('"red lamp"', "the red lamp", "a lamp, red"),
        ("read_file", "call read_file now", "read the file"),
        ("\u9000", "\u7533\u8bf7\u9000\u6b3e", "\u7533\u8bf7"),
        ("\u9000\u6b3e", "\u7533\u8bf7\u9000\u6b3e\u4e86", "\u7533\u9000\u8bf7\u6b3e"),
        ('"lamp"', "lamp", "lamps_"),
        ("\u201cred lamp\u201d", "the red lamp", "a lamp, red"),
        ("\u201ered lamp\u201c or \u00abred lamp\u00bb", "red lamp or", "or a lamp, red"),
    ):
        assert match(query, same).closeness == near(1) and match(query, different).closeness < 0.7


def test_a_passage_has_the_query_word_for_word() -> None:
    for query, text in (
        ("the red lamp", "Buy the red lamp."), ('"red lamp" buy', "the red lamp"), ('"red lamp" "a b"', "a b red lamp"),
        ("\u7533\u8bf7\u9000", "\u7533\u8bf7\u9000\u6b3e"), ('"\u9000"', "\u7533\u8bf7\u9000\u6b3e"),
    ):  # fmt: skip
        assert match(query, text).is_phrase, query
    for query, text in (
        ("the red lamp", "the red lamps"), ("red lamp", "lamp red"), ('"red lamp" "a b"', "red lamp"),
        ("lamp", "lamp"), ("red lamp", "fired lamp"),
    ):  # fmt: skip
        assert not match(query, text).is_phrase, query


def test_no_phrase_crosses_from_a_title_into_the_text() -> None:
    phrase: tuple[str, ...] = ("red", "lamp")
    assert WordMatcher({phrase: 1.0}, [phrase]).match(["red", BOUNDARY, "lamp"]) == NONE


@pytest.mark.parametrize("chunks", [0, 1, 2, 1000])
def test_weights_are_positive_in_an_index_of_any_size(chunks: int) -> None:
    weights = word_weights("the lamp", lambda words: dict.fromkeys(words, chunks), chunks)
    assert weights.keys() == {("the",), ("lamp",)} and min(weights.values()) > 0


def test_a_query_without_words_matches_nothing() -> None:
    assert word_weights("...", lambda words: {}, 5) == {} and WordMatcher({}).match(["a"]) == NONE


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
