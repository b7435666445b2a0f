"""Words are found whatever their case and marks, and in scripts without spaces."""

# ruff: noqa: RUF001 - letters of other scripts look like Latin ones

import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mlxbert.search.filters import Filter
from mlxbert.search.folding import folded, plain, plain_with_places
from mlxbert.search.sqlite import SqliteStore
from mlxbert.search.store import IndexSettings, StoredChunk, StoredDocument, StoredFile
from mlxbert.search.word_search import any_word, every_phrase
from tests.helpers.cases import together


@dataclass(frozen=True)
class Planted:
    """A text in a language.

    Attributes:
        text: The text.
        queries: Words of the text in various spellings, each of which finds it.
        others: Queries that do not find it.
    """

    text: str
    queries: tuple[str, ...]
    others: tuple[str, ...] = ()


PLANTED = {
    "Greek": Planted(
        "Η Αθήνα είναι η πρωτεύουσα, και ο λόγος σοφός",
        ("Αθηνα", "ΑΘΉΝΑ", "αθήνα", "ΑΘΗΝΑ", "ΣΟΦΌΣ", "λογοσ"),
        ("Αθην",),
    ),
    "polytonic": Planted("ἐν ἀρχῇ ἦν ὁ λόγος, τῷ θεῷ", ("αρχη", "ΑΡΧΗ", "ἀρχῇ", "τω", "θεω")),
    "Russian": Planted("Чёрный йогурт, большой заём", ("черный", "ЧЁРНЫЙ", "йогурт", "ЙОГУРТ", "иогурт", "заем")),
    "Korean": Planted("한국어를 배우고 책을 읽는다", ("한국어", "책", "한국", "배우", "읽는다"), ("한어", "국책")),
    "Korean, decomposed": Planted(unicodedata.normalize("NFD", "서울에서 만나요"), ("서울", "만나"), ("서만",)),
    "Japanese": Planted(
        "東京都でガイドブックを買う。データベース",
        ("東京", "ガイド", "ｶﾞｲﾄﾞ", "買う", "データ", "都"),
        ("カイト", "デタ"),
    ),
    "Chinese": Planted(
        "客户可以申请退款，请联系客服。", ("退款", "申请退款", "款", "申", "客服", "客户可", "可以"), ("款申", "户服")
    ),
    "Thai": Planted("ภาษาไทยเป็นภาษาที่มีเสียงน้ำ", ("ไทย", "ภาษา", "ที่", "น้ำ", "เสียง"), ("นำ", "นท")),
    "Khmer": Planted("ភាសាខ្មែរជាភាសាផ្លូវការ", ("ខ្មែរ", "ភាសា")),
    "Arabic": Planted("كِتَابٌ جديد عن أحمد والعـــربية", ("كتاب", "كِتَاب", "احمد", "أحمد", "والعربية"), ("كتب",)),
    "Hebrew": Planted("שָׁלוֹם עולם", ("שלום", "שָׁלוֹם", "עולם")),
    "German": Planted(
        "Die Straße nach Gießen, Äpfel und Donau\xaddampf\xadschiff",
        ("strasse", "STRASSE", "straße", "STRAẞE", "giessen", "apfel", "ÄPFEL", "A\u0308pfel", "Donaudampfschiff"),
    ),
    "Turkish": Planted("İstanbul'da ILIK çay, ısı", ("istanbul", "ISTANBUL", "İSTANBUL", "ılık", "ilik", "cay", "isi")),
    "Polish": Planted("Łódź leży nad Łódką", ("łódź", "ŁÓDŹ", "lodz")),
    "Hindi": Planted("किताब मेज़ पर है", ("किताब", "मेज\u093c", "है"), ("कताब",)),
    "English": Planted(
        "The refunds\u200b of re\xadturned items; \ufeffﬁnally naïve",
        ("refunds", "REFUNDS", "returned", "finally", "naive"),
        ("refund",),
    ),
    "Gothic": Planted("𐌲𐌿𐍄𐌹𐍃𐌺 \ue000\ue001", ("𐌲𐌿𐍄𐌹𐍃𐌺", "\ue000\ue001")),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqliteStore]:
    """An index with each planted text, and with each one again between two others."""
    about = IndexSettings("model", "0" * 64, 8, "cosine", "mean", ("", ""), 200, True, (0.5, 1.0))
    made = SqliteStore(tmp_path_factory.mktemp("words") / "index.db", about)
    texts = {f"{name} {again}": planted.text for name, planted in PLANTED.items() for again in (1, 2)}
    with made.writing():
        for path, text in texts.items():
            chunk = StoredChunk(f"({text})", (path,), (path.encode(),))
            made.put(StoredFile(path), [StoredDocument("", path, {}, [chunk])], {path.encode(): np.ones(8, np.float32)})
    made.check()
    yield made
    made.check()
    made.close()


def paths(store: SqliteStore, query: str) -> set[str]:
    """Returns the files with a word of a query."""
    numbers = [number for number, _ in store.with_words(query, 99, Filter())]
    return {chunk.path for chunk in store.chunks(numbers)}


@pytest.mark.parametrize("name", PLANTED)
def test_words_are_found_in_any_case_with_and_without_marks(store: SqliteStore, name: str) -> None:
    for query in PLANTED[name].queries:
        assert {f"{name} 1", f"{name} 2"} <= paths(store, query), query
    for query in PLANTED[name].others:
        assert not paths(store, query) & {f"{name} 1", f"{name} 2"}, query


@together("name", PLANTED)
def test_the_numbers_of_chunks_with_a_word_are_those_of_fts5(store: SqliteStore, name: str) -> None:
    asked = set[str]()

    def frequency(words: Sequence[str]) -> dict[str, int]:
        asked.update(words)
        return {}

    for query in (PLANTED[name].text, *PLANTED[name].queries):
        any_word(query, frequency)
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


@given(st.text())
def test_folding_a_folded_text_changes_nothing(text: str) -> None:
    assert plain(plain(text)).split() == plain(text).split()


WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda word: not set(word) & set(" \n"))


@given(st.lists(WORDS | st.sampled_from([part for one in PLANTED.values() for part in one.text.split()]), max_size=6))
def test_a_part_of_a_text_has_the_words_of_that_part(words: list[str]) -> None:
    text = " ".join(words)
    assert folded(text).split() == [word for part in words for word in folded(part).split()]
    assert plain(text).split() == [word for part in words for word in plain(part).split()]


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
