"""How well a passage has the words of a query."""

import pytest

from mlxbert.search.folding import folded
from mlxbert.search.word_evidence import SPAN, WordMatch, WordMatcher
from mlxbert.search.word_search import word_weights


def match(query: str, text: str, chunks: int = 1000, **counts: int) -> WordMatch:
    weights = word_weights(query, lambda words: {word: counts.get(word, 1) for word in words}, chunks)
    return WordMatcher(weights).match(folded(text).split())


def test_all_words_close_together_are_complete_and_none_is_nothing() -> None:
    assert match("red lamp", "the red lamp").closeness == pytest.approx(1)
    assert match("red lamp", "a blue chair") == (0, 0) == match("red lamp", "")
    usual = " ".join(["red lamp", *["x"] * 198])
    assert match("red lamp", usual) == pytest.approx((1, 1))


def test_a_rare_word_counts_more_than_a_common_one() -> None:
    assert match("the lamp", "lamp", the=900).closeness > 0.9 > 0.1 > match("the lamp", "the", the=900).closeness > 0


def test_words_that_stand_together_are_closer_than_scattered_ones() -> None:
    gap = " x" * (SPAN - 2)
    assert match("red lamp", f"red{gap} lamp").closeness == pytest.approx(1)
    apart = match("red lamp", f"red{gap} x lamp")
    assert apart.closeness == pytest.approx(0.5)
    assert apart.frequency == pytest.approx(match("red lamp", f"red lamp{gap} x").frequency)


def test_a_span_is_left_word_by_word() -> None:
    """The best span may be anywhere, and a word that stands twice in a span counts once."""
    gap = " x" * SPAN
    text = f"red red{gap} lamp red{gap} red lamp big{gap} lamp lamp"
    assert match("big red lamp", text).closeness == pytest.approx(1)
    assert match("big red lamp", text.replace("big", "small")).closeness == pytest.approx(2 / 3)


def test_the_frequency_grows_with_repetition_and_shrinks_with_length() -> None:
    once, twice = match("lamp", "lamp x"), match("lamp", "lamp lamp")
    long = match("lamp", "lamp" + " x" * 500)
    assert 2.2 > twice.frequency > once.frequency > long.frequency > 0


@pytest.mark.parametrize(
    ("word", "form"),
    [
        ("billing", "billed"),
        ("dog", "dogs"),
        ("buses", "bus"),
        ("Rechnung", "Rechnungen"),
        ("connect", "connection"),
        ("städte", "Stadtes"),
        ("книга", "книги"),
    ],
)
def test_another_form_of_a_word_counts_for_a_part(word: str, form: str) -> None:
    same, other = match(word, word), match(word, form)
    assert 0 < other.frequency < same.frequency and 0 < other.closeness < same.closeness
    assert match(word, f"{word} {form}").closeness == pytest.approx(same.closeness)


@pytest.mark.parametrize(
    ("word", "other"),
    [("20041", "20042"), ("car", "carpet"), ("do", "dog"), ("international", "interval"), ("conquest", "conservation")],
)
def test_other_words_do_not_count(word: str, other: str) -> None:
    assert match(word, other) == (0, 0)


def test_the_words_of_a_phrase_have_to_follow_each_other() -> None:
    for query, same, different in (
        ('"red lamp"', "the red lamp", "a lamp, red"),
        ("read_file", "call read_file now", "read the file"),
        ("\u9000", "\u7533\u8bf7\u9000\u6b3e", "\u7533\u8bf7"),
        ("\u9000\u6b3e", "\u7533\u8bf7\u9000\u6b3e\u4e86", "\u7533\u9000\u8bf7\u6b3e"),
    ):
        assert match(query, same).closeness == pytest.approx(1) and match(query, different) == (0, 0)


@pytest.mark.parametrize("chunks", [0, 1, 2, 1000])
def test_weights_are_positive_in_an_index_of_any_size(chunks: int) -> None:
    weights = word_weights("the lamp", lambda words: dict.fromkeys(words, chunks), chunks)
    assert weights.keys() == {("the",), ("lamp",)} and min(weights.values()) > 0


def test_a_query_without_words_matches_nothing() -> None:
    assert word_weights("...", lambda words: {}, 5) == {} and WordMatcher({}).match(["a"]) == (0, 0)
