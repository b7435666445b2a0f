"""The words of any query, in any case and script; how well a passage has them; and several rankings in one."""

# ruff: noqa: RUF001 - letters of other scripts look like Latin ones

import re
import sqlite3
import time
import unicodedata
from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from mlxbert.search.filters import Filter
from mlxbert.search.folding import folded, plain, plain_with_places
from mlxbert.search.rank_fusion import HybridScore, Unrelated, fuse, weigh
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import IndexSettings, StoredChunk, StoredDocument, StoredFile
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


def test_all_words_close_together_are_complete_and_rare_and_repeated_ones_count_more() -> None:
    assert match("red lamp", "the red lamp").closeness == near(1)
    assert match("red lamp", "a blue chair") == NONE == match("red lamp", "")
    usual = " ".join(["red lamp", *["x"] * 198])
    assert match("red lamp", usual) == (near(1), near(1), True)
    the, lamp = (match("the lamp", text, the=9 * 10**8).closeness for text in ("the", "lamp"))
    assert lamp > 0.9 > 0.1 > the > 0
    for chunks in (10, 100_000):
        found = match("the", "the lamp", chunks, the=chunks)
        assert 0 < found.closeness < 0.4 and found.bm25 < 0.7
    once, twice, long = (match("lamp", text).bm25 for text in ("lamp x", "lamp lamp", "lamp" + " x" * 999))
    assert once == near(2.2 / (1 + 0.3)) and twice == near(4.4 / (2 + 0.3)) and long == near(2.2 / (1 + 0.3 + 4.5))


def test_words_that_stand_together_are_closer_than_scattered_ones() -> None:
    gap = " x" * (SPAN - 2)
    assert match("red lamp", f"red{gap} lamp").closeness == near(1)
    apart = match("red lamp", f"red{gap} x lamp")
    assert apart.closeness == near(0.5)
    assert apart.bm25 == pytest.approx(match("red lamp", f"red lamp{gap} x").bm25)
    gap = " x" * SPAN  # the best span may be anywhere, and a word that stands twice in a span counts once
    text = f"red red{gap} lamp red{gap} red lamp big{gap} lamp lamp"
    assert match("big red lamp", text).closeness == near(1)
    assert match("big red lamp", text.replace("big", "small")).closeness == near(2 / 3)
    assert match("big red lamp", f"red lamp{gap[:-6]} red big").closeness == near(1)  # one red left, one is inside


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


@together(
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
    phrase: tuple[str, ...] = ("red", "lamp")
    assert WordMatcher({phrase: 1.0}, [phrase]).match(["red", BOUNDARY, "lamp"]) == NONE  # a title and a text


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


def test_weights_are_positive_in_an_index_of_any_size() -> None:
    for chunks in (0, 1, 2, 1000):
        weights = word_weights("the lamp", lambda words: {word: chunks for word in words}, chunks)  # noqa: B023
        assert weights.keys() == {("the",), ("lamp",)} and min(weights.values()) > 0
    assert word_weights("...", lambda words: {}, 5) == {} and WordMatcher({}).match(["a"]) == NONE


QUERY = st.text() | st.lists(
    st.sampled_from(["dog", '"', "NEAR(", "NEAR", "*", "-", "^", ":", "+", "(", ")", "{a b}", "AND", "OR", "NOT", "\0",
                     "\ud800", "\udfff", "é", "titles:", " ", "'", "\n", "\u2028", "#"])
).map("".join)  # fmt: skip


@pytest.fixture(scope="module")
def table() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE words USING fts5 (titles, text, tokenize='ascii')")
    connection.execute("INSERT INTO words VALUES ('top', 'the dog reads read_file near a cat')")
    return connection


def matching(table: sqlite3.Connection, match: str) -> int:
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


def test_syntax_is_text_and_queries_may_be_long(table: sqlite3.Connection) -> None:
    for query in ("do*", "NEAR(bird fish)", "text:", "NOT", "^", "titles : x"):
        assert matching(table, any_word(query, lambda words: {})) == (query == "NEAR(bird fish)") * 0, query
    assert matching(table, any_word("-dog", lambda words: {})) == 1
    words = " ".join(f"w{number}" for number in range(20_000))
    assert matching(table, any_word(f"{words} dog", lambda words: {})) == 1
    assert matching(table, every_phrase(words)) == 0 == matching(table, every_phrase('"a b" ' * 3000))


@together(
    ("query", "expected"),
    [
        ("dog", ""), ("", ""), ('" "', ""), ('"', ""), ('"dog"', '"dog"'), ("a dog", '"a dog"'),
        ("read_file", '"read file"'), ('find "the dog" and "a cat"', '"the dog" AND "a cat"'),
    ],
)  # fmt: skip
def test_phrases(query: str, expected: str) -> None:
    assert every_phrase(query) == expected


def test_frequent_words_are_left_out_if_there_are_rarer_ones() -> None:
    counts = {"the": ROWS * 2, "of": ROWS, "dog": 3, "cat": 4}
    assert any_word("the dog of cat", lambda words: counts) == '"dog" OR "cat"'
    assert any_word("the", lambda words: counts) == '"the"'
    assert any_word("the unknown", lambda words: counts) == '"unknown" OR "the"'
    any_word("Read_File MÄDCHEN", frequency := mock.Mock(return_value={}))
    frequency.assert_called_once_with(["file", "madchen", "read"])


def test_words_between_quotation_marks_follow_each_other(table: sqlite3.Connection) -> None:
    def match(query: str) -> int:
        return matching(table, any_word(query, lambda words: dict.fromkeys(words, 1)))

    assert match('"the dog"') == match('"dog the" cat') == match("dog the") == 1
    assert match('"dog the"') == match('"dog the" mouse') == 0


# By language: a text, words of it in various spellings, each of which finds it, and words that do not find it.
PLANTED = {
    "Greek": ("Η Αθήνα είναι η πρωτεύουσα, και ο λόγος σοφός", "Αθηνα ΑΘΉΝΑ αθήνα ΑΘΗΝΑ ΣΟΦΌΣ λογοσ", "Αθην"),
    "polytonic": ("ἐν ἀρχῇ ἦν ὁ λόγος, τῷ θεῷ", "αρχη ΑΡΧΗ ἀρχῇ τω θεω", ""),
    "Russian": ("Чёрный йогурт, большой заём", "черный ЧЁРНЫЙ йогурт ЙОГУРТ иогурт заем", ""),
    "Korean": ("한국어를 배우고 책을 읽는다", "한국어 책 한국 배우 읽는다", "한어 국책"),
    "Korean, decomposed": (unicodedata.normalize("NFD", "서울에서 만나요"), "서울 만나", "서만"),
    "Japanese": ("東京都でガイドブックを買う。データベース", "東京 ガイド ｶﾞｲﾄﾞ 買う データ 都", "カイト デタ"),
    "Chinese": ("客户可以申请退款，请联系客服。", "退款 申请退款 款 申 客服 客户可 可以", "款申 户服"),
    "Thai": ("ภาษาไทยเป็นภาษาที่มีเสียงน้ำ", "ไทย ภาษา ที่ น้ำ เสียง", "นำ นท"),
    "Khmer": ("ភាសាខ្មែរជាភាសាផ្លូវការ", "ខ្មែរ ភាសា", ""),
    "Arabic": ("كِتَابٌ جديد عن أحمد والعـــربية", "كتاب كِتَاب احمد أحمد والعربية", "كتب"),
    "Hebrew": ("שָׁלוֹם עולם", "שלום שָׁלוֹם עולם", ""),
    "German": (
        "Die Straße nach Gießen, Äpfel und Donau\xaddampf\xadschiff",
        "strasse STRASSE straße STRAẞE giessen apfel ÄPFEL A\u0308pfel Donaudampfschiff", "",
    ),
    "Turkish": ("İstanbul'da ILIK çay, ısı", "istanbul ISTANBUL İSTANBUL ılık ilik cay isi", ""),
    "Polish": ("Łódź leży nad Łódką", "łódź ŁÓDŹ lodz", ""),
    "Hindi": ("किताब मेज़ पर है", "किताब मेज\u093c है", "कताब"),
    "English": (
        "The refunds\u200b of re\xadturned items; \ufeffﬁnally naïve",
        "refunds REFUNDS returned finally naive", "refund",
    ),
    "Gothic": ("𐌲𐌿𐍄𐌹𐍃𐌺 \ue000\ue001", "𐌲𐌿𐍄𐌹𐍃𐌺 \ue000\ue001", ""),
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    """An index with each planted text, and with each one again between two others."""
    about = IndexSettings("model", "0" * 64, 8, "cosine", "mean", ("", ""), 200, True, (0.5, 1.0))
    made = SqliteStore(tmp_path_factory.mktemp("words") / "index.db", about)
    texts = {f"{name} {again}": text for name, (text, *_) in PLANTED.items() for again in (1, 2)}
    with made.writing():
        for path, text in texts.items():
            chunk = StoredChunk(f"({text})", (path,), (path.encode(),))
            made.put(StoredFile(path), [StoredDocument("", path, {}, [chunk])], {path.encode(): np.ones(8, np.float32)})
    made.check()
    yield made
    made.check()
    made.close()


def paths(store: SqliteStore, query: str) -> set[str]:
    numbers = [number for number, _ in store.with_words(query, 99, Filter())]
    return {chunk.path for chunk in store.chunks(numbers)}


@pytest.mark.parametrize("name", PLANTED)
def test_words_are_found_in_any_case_with_and_without_marks(store: SqliteStore, name: str) -> None:
    _, words, others = PLANTED[name]
    for query in words.split():
        assert {f"{name} 1", f"{name} 2"} <= paths(store, query), query
    for query in others.split():
        assert not paths(store, query) & {f"{name} 1", f"{name} 2"}, query


@together("name", PLANTED)
def test_the_numbers_of_chunks_with_a_word_are_those_of_fts5(store: SqliteStore, name: str) -> None:
    frequency = mock.Mock(return_value={})
    for query in (PLANTED[name][0], *PLANTED[name][1].split()):
        any_word(query, frequency)
    asked = {word for call in frequency.call_args_list for word in call.args[0]}
    counts, connection = store._frequency(sorted(asked)), store._connection
    connection.execute("CREATE VIRTUAL TABLE IF NOT EXISTS temp.terms USING fts5vocab ('main', 'words', 'row')")
    for word, count in counts.items():
        assert count >= 2, word
        if not word.endswith("*"):
            assert connection.row("SELECT doc FROM temp.terms WHERE term = ?", (word,)) == (count,)
    assert store._frequency(["refunds", "zzz"]) == {"refunds": 2, "zzz": 0}


def test_phrases_in_scripts_without_spaces(store: SqliteStore) -> None:
    def found(query: str) -> bool:
        return bool(store.word_for_word(query, 9, Filter()))

    assert found("申请退款") and found("以申请") and found('"款，请联"') and found("买 '款'") is False
    assert found("ガイドブック") and found('"ガイド"') and not found("ガイブック")
    assert found("ภาษาที่มี") and not found("ภาษามี")
    assert found("책을 읽") and not found("읽 책을")
    assert every_phrase("款") == "" == every_phrase("退款") and every_phrase('"款"') == '"款"*'


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda word: not set(word) & set(" \n"))


@given(st.lists(WORDS | st.sampled_from([part for text, *_ in PLANTED.values() for part in text.split()]), max_size=6))
def test_a_part_of_a_text_has_the_words_of_that_part(words: list[str]) -> None:
    text = " ".join(words)
    assert folded(text).split() == [word for part in words for word in folded(part).split()]
    assert plain(text).split() == [word for part in words for word in plain(part).split()] == plain(plain(text)).split()


def test_every_letter_and_digit_is_in_a_word() -> None:
    letters = [chr(code) for code in range(0x20000) if chr(code).isalnum()]  # further ones are Han
    words = folded("\nbetween\n".join(letters)).split("between")
    lost = {unicodedata.name(letter) for letter, word in zip(letters, words, strict=True) if not word.strip()}
    # Invisible fillers, the tatweel, and marks that stand alone.
    assert len(lost) < 40 and all(re.search("FILLER|MARK|ARABIC|YPOGEGRAMMENI", name) for name in lost)
    assert plain(plain(" ".join(letters))) == plain(" ".join(letters))


@together("text", ["a" + "\u0301\u0316" * 10**5, "\u3042" + "\u3099\u302a" * 10**5, "\u0e31" * 10**5])
def test_marks_without_end_are_folded_in_time(text: str) -> None:
    started = time.process_time()
    assert len(folded(f"{text} b").split()) <= 2
    plain_with_places(text)
    assert time.process_time() - started < 2  # a quadratic time would be 20 seconds


UNRELATED = Unrelated(mean=0.1, deviation=0.1)


def test_a_single_list_keeps_its_scores_and_a_passage_that_one_side_is_sure_of_stays_first() -> None:
    ranked = fuse({"vectors": [(1, 0.9), (2, 0.8), (3, -0.5)]}, {1: 1, 2: 2, 3: 3})
    assert [(fused.chunk, fused.score, fused.ranks) for fused in ranked] == [
        (1, 0.9, {"vectors": 1}), (2, 0.8, {"vectors": 2}), (3, -0.5, {"vectors": 3}),
    ]  # fmt: skip
    unsure = {number: 0.3 - number / 1000 for number in range(2, 102)}
    groups = {number: number for number in range(1, 102)}
    lists = {"vectors": [*unsure.items()], "words": [(1, 6.0), (2, 1.0)], "phrase": []}
    known = {number: hybrid_score(score, WordMatch(0.3, 0.2, False)) for number, score in unsure.items()}
    assert fuse(lists, groups, known | {1: hybrid_score(0.1, ALL)})[0].chunk == 1  # among many with a few of the words
    lists = {"vectors": [(1, 0.8), *unsure.items()], "words": [(number, 2.0) for number in range(2, 102)], "phrase": []}
    assert fuse(lists, groups, known | {1: hybrid_score(0.8)})[0].chunk == 1


ALL = WordMatch(1.0, 1.0, False)
PHRASE = WordMatch(1.0, 1.0, True)


def hybrid_score(similarity: float, words: WordMatch = NONE) -> HybridScore:
    return weigh(similarity, UNRELATED, words)


def test_the_score_grows_with_each_of_its_parts() -> None:
    lists = {"vectors": [(1, 0.6), (2, 0.3)], "words": [(1, 4.0), (2, 1.0)], "phrase": [(1, 1.0)]}
    best = fuse(lists, {1: 1, 2: 2}, {1: hybrid_score(0.6, PHRASE), 2: hybrid_score(0.3)})[0]
    assert best.chunk == 1 and best.ranks == {"vectors": 1, "words": 1, "phrase": 1}
    for less in (
        hybrid_score(0.3, PHRASE), hybrid_score(0.6, ALL), hybrid_score(0.6, WordMatch(0.5, 1.0, True)),
        hybrid_score(0.6, WordMatch(1.0, 0.5, True)),
    ):  # fmt: skip
        (one,) = fuse({"vectors": [(1, 0.6)]}, {1: 1}, {1: less})
        assert one.score < best.score
    # A model whose vectors are all similar is not surer than another model.
    narrow = weigh(0.84, Unrelated(0.8, 0.01), ALL)
    assert narrow.total == pytest.approx(hybrid_score(0.5, ALL).total)


def test_a_document_has_the_score_of_its_best_chunk_and_equal_scores_an_order() -> None:
    groups = {1: 10, 2: 10, 3: 11, 4: 11}
    lists = {"vectors": [(1, 0.9), (2, 0.8), (3, 0.7)], "words": [(4, 5.0), (2, 4.0)]}
    known = {1: hybrid_score(0.9), 2: hybrid_score(0.8, ALL), 3: hybrid_score(0.7), 4: hybrid_score(0.2, ALL)}
    first, second = fuse(lists, groups, known)
    assert (first.chunk, second.chunk) == (2, 4) and second.scores == {"vectors": 0.2, "words": 5.0}
    assert [fused.chunk for fused in fuse({"vectors": lists["vectors"]}, groups)] == [1, 3]
    assert [fused.chunk for fused in fuse({"vectors": [(3, -0.1), (1, -0.5), (2, -0.7)]}, groups)] == [3, 1]
    equal = {5: hybrid_score(0.5), 3: hybrid_score(0.5)}
    for places in ({3: 3, 5: 5}, {5: 5, 3: 3}):
        assert [fused.chunk for fused in fuse({"vectors": [(5, 0.5), (3, 0.5)]}, places)] == [*places]
        assert [fused.chunk for fused in fuse({"vectors": [(5, 0.5), (3, 0.5)]}, places, equal)] == [*places]
    assert fuse({"vectors": [], "words": []}, {}, {}) == []
