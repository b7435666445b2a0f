"""Words with tags: columns, texts with spans, sentences of CoNLL and CoNLL-U, hostile data."""

import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from mlxbert.errors import ArgumentError, InputError
from mlxbert.labels.schemes import decode
from mlxbert.readers.formats import read_records
from mlxbert.readers.stream import Record
from mlxbert.train.data.columns import ColumnNames, find_usual_columns
from mlxbert.train.data.labelled_rows import LabelledRows, read_rows
from mlxbert.train.data.tagged_sentences import TaggedSentence, read_tagged
from tests.helpers.cases import together
from tests.readers.test_records import write
from tests.text.test_tokenizer import QUICK

# Drawn at once: of any text most is not printable, and too much would be thrown away.
PRINTABLE = st.characters(exclude_categories=("C", "Z")) | st.just(" ")

CONLL = b"""-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects  VBZ I-VP O

# NNP I-NP O
\xe3\x80\x80 NN I-NP O
"""
CONLLU = b"""# sent_id = 1
# text = Don't stop
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t0\troot\t_\t_
2\tn't\tnot\tPART\tRB\t_\t1\tadvmod\t_\t_
2.1\tyou\tyou\tPRON\tPRP\t_\t_\t_\t_\t_
3\tstop\tstop\tVERB\tVB\t_\t1\tx\t_\t_

# sent_id = 2
1\tNo\tno\tINTJ\tUH\t_\t0\troot\t_\t_
"""


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


@together("columns,text,label", [
    ("1 2 3 4", "1", "4"),
    ("1 2", "1", "2"),
    ("id form lemma upos xpos feats head deprel deps misc text", "form", "upos"),
    ("id tokens pos_tags chunk_tags ner_tags", "tokens", "ner_tags"),
    ("words tags", "words", "tags"),
    ("text entities", "text", "entities"),
    ("Sentence Labels", "Sentence", "Labels"),
])  # fmt: skip
def test_columns_are_known_by_their_names(columns: str, text: str, label: str) -> None:
    rows = rows_of({name: ["a"] for name in columns.split()})
    assert find_usual_columns(rows, "tag") == ColumnNames(text, None, label, ("text", "label"))


def test_named_columns_win() -> None:
    rows = rows_of({str(number): ["a"] for number in range(1, 5)})
    assert find_usual_columns(rows, "tag", label_column="2") == ColumnNames("1", None, "2", ("text",))
    assert find_usual_columns(rows, "tag", text_column="4", label_column="3") == ColumnNames("4", None, "3", ())
    with pytest.raises(InputError, match="words, other"):
        find_usual_columns(rows_of({"words": ["a"], "other": ["O"]}), "tag")


def test_lists_of_words_are_joined_and_texts_of_words_keep_their_whitespace() -> None:
    (record,) = read({"words": ["New York", ".", "😀"], "tags": ["B-LOC", "O", 3]})
    assert record == TaggedSentence(
        "New York . 😀", ("New York", ".", "😀"), ((0, 8), (9, 10), (11, 12)), ("B-LOC", "O", "3"), "in, line 1"
    )
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
    (record,) = read({"text": "unParis is 北京人", "entities": [[2, 8, "LOC"], [11, 13, "LOC"]]})
    assert record.words == ("un", "Paris", "is", "北", "京", "人")
    assert entities(record) == [("LOC", "Paris"), ("LOC", "北京")]  # within words, and after a space


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


@together("record", [
    *({"words": ["a", "b"], "tags": ["O"]}, {"words": [], "tags": []}),
    *({"words": ["a", ""], "tags": ["O", "O"]}, {"words": ["a", None], "tags": ["O", "O"]}),
    *({"words": ["a"], "tags": [None]}, {"words": ["a"]}, {"words": ["a"], "tags": None}),
    *({"words": ["\ud83d"], "tags": ["O"]}, {"words": 3, "tags": ["O"]}),
])  # fmt: skip
def test_hostile_words_are_refused_with_their_place(record: dict[str, Any]) -> None:
    good = {"words": ["a"], "tags": ["O"]}
    with pytest.raises(InputError, match=r"^in, line 2: .*; 1 more record"):
        read(good, record, record)


@together("spans", [
    *([[0, 2, "X"], [1, 3, "X"]], [[1, 1, "X"]], [[1, 2, "X"]], [[-1, 2, "X"]], [[0, 9, "X"]], [[3, 2, "X"]]),
    *([[0, 1]], [[0, 1, 7]], [[0.0, 1, "X"]], [[True, 1, "X"]], [{"start": 0, "end": 1}]),
    [{"start": 0, "end": 1, "label": "X", "text": "b"}],
])  # fmt: skip
def test_hostile_spans_are_refused_with_their_place(spans: list[Any]) -> None:
    with pytest.raises(InputError, match=r"^in, line 2: "):
        read({"text": "a 😀 b", "spans": [[0, 1, "X"]]}, {"text": "a 😀 b", "spans": spans})


def test_a_sentence_is_a_row_of_columns_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "in.conll", CONLL)
    rows = read_rows(path)
    assert rows.columns == ("1", "2", "3", "4")
    assert [dict(row.values) for row in rows] == [
        {"1": ["EU", "rejects"], "2": ["NNP", "VBZ"], "3": ["I-NP", "I-VP"], "4": ["I-ORG", "O"]},
        {"1": ["#", "\u3000"], "2": ["NNP", "NN"], "3": ["I-NP", "I-NP"], "4": ["O", "O"]},
    ]
    assert [row.where for row in rows] == [f"{path}, line 3", f"{path}, line 6"]


@together("name", ["in.iob", "in.bio", "in.conll.gz", "in.txt"])
def test_tabs_separate_columns_where_there_are_any(tmp_path: Path, name: str) -> None:
    data = b"\xef\xbb\xbfNew York\tB-LOC\r\n\t\r\n.\tO\r\n\r\n\r\n"
    path = write(tmp_path / name, data)
    rows = read_rows(path, format="conll" if name.endswith(".txt") else None)
    assert [dict(row.values) for row in rows] == [{"1": ["New York"], "2": ["B-LOC"]}, {"1": ["."], "2": ["O"]}]


def test_columns_of_conllu_have_names_and_ranges_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "in.conllu", CONLLU)
    first, second = read_rows(path)
    assert first.values["form"] == ["Do", "n't", "stop"] and first.values["upos"] == ["AUX", "PART", "VERB"]
    assert first.values["text"] == "Don't stop" and "text" not in second.values
    assert [row.where for row in (first, second)] == [f"{path}, line 4", f"{path}, line 10"]


@together("name,content,said", [
    ("in.conll", b"a O\nb X O\n", "line 2: "),
    ("in.conll", b"a X O\n\nb O\n", "line 3: "),
    ("in.conll", b"a O\nb\n", "line 2: "),
    ("in.conll", b"a\tO\n\tO\n", "line 2: "),
    ("in.conll", b"a\tO\nb\t\n", "line 2: "),
    ("in.conllu", CONLLU + b"2\tcolumns\n", "line 11: "),
    ("in.conllu", CONLLU.replace(b"2.1", b"two"), "line 6: "),
    ("in.conll", b"a O\n\xff O\n", "line 2: "),
    ("in.conll", b"# id 1\na O\n", "; .*#"),  # which has no comments
    ("in.conll", b"a O\n\n# id 1\nb O\n", "; .*#"),
    *(("in.conll", nothing, "no records") for nothing in (b"", b"\n\n", b"-DOCSTART- O\n\n")),
    ("in.conll", b"Paris\nis\n", "the only column is 1.*; .*separate the columns"),
])  # fmt: skip
def test_damaged_sentences_are_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    with pytest.raises(InputError) as caught:
        find_usual_columns(read_rows(write(tmp_path / name, content)), "tag")
    assert re.search(rf"{name}.*{said}", f"{caught.value.message}; {caught.value.hint}")


def test_sentences_are_no_texts(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="sentences"):
        read_records(write(tmp_path / "in.conll", CONLL))


@together("name,content,columns", [
    # Sentences are known by their look.
    ("eng.train", CONLL, "1 2 3 4"),
    ("train.txt", b"EU\tB-ORG\nrejects\tO\n\t\nPeter\tB-PER\n", "1 2"),
    ("train.tsv", b"EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\n", "1 2"),
    ("train.txt.gz", b"EU ORG\nrejects O\n\n", "1 2"),
    ("ewt", CONLLU, "id form lemma upos xpos feats head deprel deps misc text"),
    # Other data are read as their names say.
    ("a.tsv", b"words\ttags\nthe cat\tO O\ndogs\tO\n\n", "words tags"),
    ("b.tsv", b'words\ttags\n["the","cat"]\t["O","O"]\n\n', "words tags"),
    ("a.csv", b"words,tags\nthe cat,O O\n\nthe dog,O O\n", "words tags"),
    ("a.txt", b"the cat\nsat on the mat\n\n", "text"),
    ("a.jsonl", b'{"words": ["a"], "tags": ["O"]}\n\n{"words": ["b"], "tags": ["O"]}\n', "words tags"),
    ("a.conll", CONLLU.split(b"\n", 2)[2].split(b"\n\n")[0], "1 2 3 4 5 6 7 8 9 10"),
])  # fmt: skip
def test_where_words_are_expected_sentences_are_known(tmp_path: Path, name: str, content: bytes, columns: str) -> None:
    path = write(tmp_path / name, content)
    assert " ".join(read_rows(path, words=True).columns) == columns
    assert not name.endswith(".txt") or read_rows(path).columns == ("text",)


def test_nothing_is_lost_of_a_pipe_that_could_be_sentences_of_words() -> None:
    end, begin = os.pipe()
    os.write(begin, CONLL)
    os.close(begin)
    with pytest.raises(ArgumentError, match=f"/dev/fd/{end}"):
        read_rows(f"/dev/fd/{end}", words=True)
    assert os.read(end, 1000) == CONLL
    os.close(end)


def test_what_looks_like_nothing_has_the_error_of_its_name(tmp_path: Path) -> None:
    for content in (b"", b"\xff\0", b"EU ORG\nrejects\n\n", b"EU ORG\nrejects O"):
        with pytest.raises(ArgumentError, match=r"the extension is '\.train'"):
            read_rows(write(tmp_path / "eng.train", content), words=True)


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
