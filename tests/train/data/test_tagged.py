"""Words with tags: columns, texts with spans, hostile data."""

import logging
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from mlxbert.errors import InputError
from mlxbert.labels.schemes import decode
from mlxbert.readers.stream import Record
from mlxbert.train.data.columns import ColumnNames, find_usual_columns
from mlxbert.train.data.labelled_rows import LabelledRows
from mlxbert.train.data.tagged_sentences import TaggedSentence, read_tagged
from tests.text.test_tokenizer import QUICK

# Drawn at once: of any text most is not printable, and too much would be thrown away.
PRINTABLE = st.characters(exclude_categories=("C", "Z")) | st.just(" ")


def rows_of(*records: dict[str, Any]) -> LabelledRows:
    columns = dict.fromkeys(name for record in records for name in record)
    rows = [Record(record, f"in, line {number}") for number, record in enumerate(records, 1)]
    return LabelledRows(tuple(columns), ("in",), {}, {"in": len(rows)}, True, rows)


def read(*records: dict[str, Any]) -> list[TaggedSentence]:
    rows = rows_of(*records)
    return read_tagged(rows, find_usual_columns(rows, "tag"))


def entities(record: TaggedSentence) -> list[tuple[str, str]]:
    found = decode(record.tags, "iob2")
    return [(kind, record.text[record.offsets[a][0] : record.offsets[b - 1][1]]) for kind, a, b in found]


@pytest.mark.parametrize(
    ("columns", "text", "label"),
    [
        ("1 2 3 4", "1", "4"),
        ("id form lemma upos xpos feats head deprel deps misc text", "form", "upos"),
        ("id tokens pos_tags chunk_tags ner_tags", "tokens", "ner_tags"),
        ("words tags", "words", "tags"),
        ("text entities", "text", "entities"),
        ("Sentence Labels", "Sentence", "Labels"),
    ],
)
def test_columns_are_known_by_their_names(columns: str, text: str, label: str) -> None:
    rows = rows_of({name: ["a"] for name in columns.split()})
    assert find_usual_columns(rows, "tag") == ColumnNames(text, None, label, ("text", "label"))


def test_named_columns_win() -> None:
    rows = rows_of({str(number): ["a"] for number in range(1, 5)})
    assert find_usual_columns(rows, "tag", label_column="2") == ColumnNames("1", None, "2", ("text",))
    assert find_usual_columns(rows, "tag", text_column="4", label_column="3") == ColumnNames("4", None, "3", ())
    with pytest.raises(InputError, match="words, other"):
        find_usual_columns(rows_of({"words": ["a"], "other": ["O"]}), "tag")


def test_lists_of_words_are_joined() -> None:
    (record,) = read({"words": ["New York", ".", "😀"], "tags": ["B-LOC", "O", 3]})
    assert record == TaggedSentence(
        "New York . 😀", ("New York", ".", "😀"), ((0, 8), (9, 10), (11, 12)), ("B-LOC", "O", "3"), "in, line 1"
    )


def test_texts_of_words_keep_their_whitespace() -> None:
    (record,) = read({"text": " a  b", "labels": "O B-X"})
    assert (record.text, record.words, record.offsets) == (" a  b", ("a", "b"), ((1, 2), (4, 5)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Don't stop!", "Don't stop!"), ("Do not stop!", "Do n't stop !"), ("Don't stop !?", "Do n't stop !")],
)
def test_the_text_of_conllu_is_used_where_the_words_stand_in_it(text: str, expected: str) -> None:
    record = {"form": ["Do", "n't", "stop", "!"], "upos": ["AUX", "PART", "VERB", "PUNCT"], "text": text}
    (found,) = read_tagged(rows_of(record), ColumnNames("text", None, "upos"))
    assert found.text == expected and [found.text[a:b] for a, b in found.offsets] == list(found.words)
    (joined,) = read_tagged(rows_of(record), ColumnNames("form", None, "upos"))
    assert joined.text == "Do n't stop !"


def test_spans_become_tags_of_words() -> None:
    text = "Ångela 😀 Merkel-Müller, aus भारत."
    spans = [{"start": 28, "end": 32, "label": "LOC"}, {"start": 0, "end": 15, "label": "PER"}, [16, 22, "PER"]]
    (record, none) = read({"text": text, "spans": spans}, {"text": "none here", "spans": []})
    assert text[28:32] == "भारत"
    assert entities(record) == [("PER", "Ångela 😀 Merkel"), ("PER", "Müller"), ("LOC", "भारत")]
    assert none.tags == ("O", "O")


def test_spans_may_end_within_words_and_begin_with_spaces() -> None:
    (record,) = read({"text": "unParis is 北京人", "entities": [[2, 8, "LOC"], [11, 13, "LOC"]]})
    assert record.words == ("un", "Paris", "is", "北", "京", "人")
    assert entities(record) == [("LOC", "Paris"), ("LOC", "北京")]


def test_spans_that_cut_a_word_are_counted_as_offsets_of_utf_16_do(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("mlxbert").propagate = True
    text = "😀😀 Ada met Bob-like Li, 北京人"
    good = [text.index("Bob"), text.index("-like"), "PER"], [text.index("北"), text.index("人"), "LOC"]
    read({"text": text, "spans": good})
    assert not caplog.records
    shifted = len("😀😀 ".encode("utf-16-le")) // 2
    records = read({"text": text, "spans": good}, {"text": text, "spans": [[shifted, shifted + 3, "PER"]]})
    assert entities(records[1]) == [("PER", "a m")]
    assert "1 span begins or ends in the middle of a word (the first in in, line 2)" in caplog.text


@pytest.mark.parametrize(
    "record",
    [
        *({"words": ["a", "b"], "tags": ["O"]}, {"words": [], "tags": []}),
        *({"words": ["a", ""], "tags": ["O", "O"]}, {"words": ["a", None], "tags": ["O", "O"]}),
        *({"words": ["a"], "tags": [None]}, {"words": ["a"]}, {"words": ["a"], "tags": None}),
        *({"words": ["\ud83d"], "tags": ["O"]}, {"words": 3, "tags": ["O"]}),
    ],
)
def test_hostile_words_are_refused_with_their_place(record: dict[str, Any]) -> None:
    good = {"words": ["a"], "tags": ["O"]}
    with pytest.raises(InputError, match=r"^in, line 2: .*; 1 more record"):
        read(good, record, record)


@pytest.mark.parametrize(
    "spans",
    [
        *([[0, 2, "X"], [1, 3, "X"]], [[1, 1, "X"]], [[1, 2, "X"]], [[-1, 2, "X"]], [[0, 9, "X"]], [[3, 2, "X"]]),
        *([[0, 1]], [[0, 1, 7]], [[0.0, 1, "X"]], [[True, 1, "X"]], [{"start": 0, "end": 1}]),
        [{"start": 0, "end": 1, "label": "X", "text": "b"}],
    ],
)
def test_hostile_spans_are_refused_with_their_place(spans: list[Any]) -> None:
    with pytest.raises(InputError, match=r"^in, line 2: "):
        read({"text": "a 😀 b", "spans": [[0, 1, "X"]]}, {"text": "a 😀 b", "spans": spans})


def test_a_span_that_ends_before_it_begins_is_not_said_to_be_too_long() -> None:
    with pytest.raises(InputError, match="before") as failure:
        read({"text": "a b", "spans": [[2, 1, "X"]]})
    assert failure.value.hint is None


@QUICK
@given(st.text(PRINTABLE, min_size=1, max_size=30), st.data())
def test_words_cover_all_but_whitespace(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    assume(text[start:end].strip())
    (record,) = read({"text": text, "spans": [[start, end, "X"]]})
    assert [text[a:b] for a, b in record.offsets] == list(record.words)
    assert "".join(record.words) == "".join(text.split())
    assert [entity for _, entity in entities(record)] == [text[start:end].strip()]
