"""Words of a plain text, and the word of each token."""

from itertools import pairwise

from hypothesis import given, strategies as st

from mlxbert.text.words import split_words, trimmed, word_starts, words_of_tokens
from tests.helpers.cases import together
from tests.text.test_tokenizer import QUICK

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


@together(
    "text,wanted",
    [
        ("", []),
        (" \n\t ", []),
        ("Angela Merkel went.", ["Angela", "Merkel", "went", "."]),
        ('He said: "Go!"', ["He", "said", ":", '"', "Go", "!", '"']),
        ("(in Paris), e.g. 3.5%...", ["(", "in", "Paris", ")", ",", "e.g.", "3.5", "%", "..."]),
        ("J. Smith of the U.N.! Go.", ["J.", "Smith", "of", "the", "U.N.", "!", "Go", "."]),
        ("Berlin's mayor, the boys' club", ["Berlin", "'s", "mayor", ",", "the", "boys", "'", "club"]),
        ("We\u2019re they're O'Brien's", ["We", "\u2019re", "they", "'re", "O'Brien", "'s"]),
        ("l'Italie dell\u2019arte D'Angelo", ["l'", "Italie", "dell\u2019", "arte", "D'Angelo"]),
        ("Baden-W\u00fcrttemberg don't", ["Baden-W\u00fcrttemberg", "don't"]),
        ("@user #topic _it_ a@b.de $5 C++", ["@user", "#topic", "_it", "_", "a@b.de", "$", "5", "C", "++"]),
        ("Paris,[Rome](10,000)\u2014x", ["Paris", ",", "[", "Rome", "]", "(", "10,000", ")", "\u2014", "x"]),
        ("cafe\u0301, na\u00efve", ["cafe\u0301", ",", "na\u00efve"]),
        ("\u0939\u093f\u0928\u094d\u0926\u0940\u0964", ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u0964"]),
        ("\u6211\u7231\u5317\u4eac\u3002Hello", ["\u6211", "\u7231", "\u5317", "\u4eac", "\u3002", "Hello"]),
        ("\u0645\u0631\u062d\u060c \u0628\u0643", ["\u0645\u0631\u062d", "\u060c", "\u0628\u0643"]),
        (f"{FAMILY} ok\U0001f44d\U0001f3fd!!", [FAMILY, "ok", "\U0001f44d\U0001f3fd", "!!"]),
        ("\u200b\u00ad x", ["\u200b\u00ad", "x"]),
    ],
)  # fmt: skip
def test_words_are_those_of_annotated_text(text: str, wanted: list[str]) -> None:
    assert [text[start:end] for start, end in split_words(text)] == wanted


TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("ab '.,-\u200d\u0301\u4eac"), max_size=30)


@QUICK
@given(TEXTS)
def test_words_cover_all_but_the_spaces_once(text: str) -> None:
    spans = [*split_words(text)]
    assert all(start < end for start, end in spans)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))
    covered = {place for start, end in spans for place in range(start, end)}
    assert covered == {place for place, letter in enumerate(text) if not letter.isspace()}


def test_a_token_belongs_to_the_word_in_which_it_begins() -> None:
    text = "in Paris, too"
    spans = [*split_words(text)]
    tokens = [(0, 2), (2, 6), (6, 9), (9, 10), (9, 13)]  # " Par", "is,", " ", " too"
    paris, comma, too = ((number, spans[number]) for number in (1, 2, 3))
    assert [*words_of_tokens(text, tokens, spans)] == [(0, (0, 2)), paris, paris, None, too]
    assert [*words_of_tokens(text, [(8, 9), (9, 10), (9, 13)], spans)] == [comma, None, too]
    assert [*words_of_tokens(text, tokens, [(3, 8)])] == [None, (0, (3, 8)), (0, (3, 8)), None, None]
    assert [*words_of_tokens(text, [(0, 0)], spans)] == [None] and not [*words_of_tokens("", [], [])]

    assert trimmed(" a b ", (0, 5)) == (1, 4) and trimmed("   ", (0, 3)) == (3, 3)
    assert trimmed("\ufeffa\u200b ", (0, 4)) == (1, 2)


def test_a_place_within_letters_moves_to_their_start_but_not_far() -> None:
    text = "in Berlin " + "acgt" * 2500
    assert [*word_starts(text, [1, 2, 5, 10])] == [0, 2, 3, 10]
    first, second, far = word_starts(text, [9000, 9004, 9990])
    assert 9000 - first == 9990 - far == 100  # so that the windows of a text take linear time
    assert second == first
