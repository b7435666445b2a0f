"""Sentences of CoNLL and CoNLL-U: columns, separators, places, damaged lines."""

import os
from pathlib import Path

import pytest

from mlxbert.errors import ArgumentError, InputError
from mlxbert.readers.formats import read_records
from mlxbert.train.data.columns import find_usual_columns
from mlxbert.train.data.labelled_rows import read_rows
from tests.readers.test_records import write

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


def test_a_sentence_is_a_row_of_columns_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "in.conll", CONLL)
    rows = read_rows(path)
    assert rows.columns == ("1", "2", "3", "4")
    assert [dict(row.values) for row in rows] == [
        {"1": ["EU", "rejects"], "2": ["NNP", "VBZ"], "3": ["I-NP", "I-VP"], "4": ["I-ORG", "O"]},
        {"1": ["#", "\u3000"], "2": ["NNP", "NN"], "3": ["I-NP", "I-NP"], "4": ["O", "O"]},
    ]
    assert [row.where for row in rows] == [f"{path}, line 3", f"{path}, line 6"]


@pytest.mark.parametrize("name", ["in.iob", "in.bio", "in.conll.gz", "in.txt"])
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


@pytest.mark.parametrize(
    ("name", "data", "line"),
    [
        ("in.conll", b"a O\nb X O\n", 2),
        ("in.conll", b"a X O\n\nb O\n", 3),
        ("in.conll", b"a O\nb\n", 2),
        ("in.conll", b"a\tO\n\tO\n", 2),
        ("in.conll", b"a\tO\nb\t\n", 2),
        ("in.conllu", CONLLU + b"2\tcolumns\n", 11),
        ("in.conllu", CONLLU.replace(b"2.1", b"two"), 6),
        ("in.conll", b"a O\n\xff O\n", 2),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, name: str, data: bytes, line: int) -> None:
    with pytest.raises(InputError, match=rf"{name}, line {line}: "):
        read_rows(write(tmp_path / name, data))


@pytest.mark.parametrize("data", [b"# id 1\na O\n", b"a O\n\n# id 1\nb O\n"])
def test_a_hint_says_that_conll_has_no_comments(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError) as failure:
        read_rows(write(tmp_path / "in.conll", data))
    assert "#" in (failure.value.hint or "")


def test_a_single_column_cannot_hold_words_and_tags(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"in\.conll: the only column is 1") as failure:
        find_usual_columns(read_rows(write(tmp_path / "in.conll", b"Paris\nis\n")), "tag")
    assert "separate the columns" in (failure.value.hint or "")


@pytest.mark.parametrize("data", [b"", b"\n\n", b"-DOCSTART- O\n\n"])
def test_a_file_without_sentences_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match="no records"):
        read_rows(write(tmp_path / "in.conll", data))


def test_sentences_are_no_texts(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="sentences"):
        read_records(write(tmp_path / "in.conll", CONLL))


@pytest.mark.parametrize(
    ("name", "content", "column"),
    [
        ("eng.train", CONLL, "4"),
        ("train.txt", b"EU\tB-ORG\nrejects\tO\n\t\nPeter\tB-PER\n", "2"),
        ("train.tsv", b"EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\n", "2"),
        ("train.txt.gz", b"EU ORG\nrejects O\n\n", "2"),
        ("ewt", CONLLU, "upos"),
    ],
)
def test_sentences_of_words_are_known_by_their_look(tmp_path: Path, name: str, content: bytes, column: str) -> None:
    path = write(tmp_path / name, content)
    rows = read_rows(path, words=True)
    assert find_usual_columns(rows, "tag").label == column
    assert not name.endswith(".txt") or read_rows(path).columns == ("text",)


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.tsv", b"words\ttags\nthe cat\tO O\ndogs\tO\n\n", ("words", "tags")),
        ("b.tsv", b'words\ttags\n["the","cat"]\t["O","O"]\n\n', ("words", "tags")),
        ("a.csv", b"words,tags\nthe cat,O O\n\nthe dog,O O\n", ("words", "tags")),
        ("a.txt", b"the cat\nsat on the mat\n\n", ("text",)),
        ("a.jsonl", b'{"words": ["a"], "tags": ["O"]}\n\n{"words": ["b"], "tags": ["O"]}\n', ("words", "tags")),
        ("a.conll", CONLLU.split(b"\n", 2)[2].split(b"\n\n")[0], (*"123456789", "10")),
    ],
)
def test_other_data_of_words_are_read_as_their_names_say(
    tmp_path: Path, name: str, content: bytes, columns: tuple[str, ...]
) -> None:
    assert read_rows(write(tmp_path / name, content), words=True).columns == columns


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
