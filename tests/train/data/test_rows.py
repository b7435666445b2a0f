"""Rows with all their fields: formats, places, damaged records, hashes."""

import gzip
import hashlib
import io
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import pytest

from mlxbert.errors import ArgumentError, HubError, InputError, MlxbertError
from mlxbert.other_libraries import install_command
from mlxbert.readers.stream import Record
from mlxbert.train.data.labelled_rows import LabelledRows, read_rows
from tests.helpers.cases import together
from tests.readers.test_records import write, write_table


def values(rows: LabelledRows) -> list[dict[str, Any]]:
    return [dict(row.values) for row in rows]


def places(rows: LabelledRows, path: Path) -> list[str]:
    return [row.where.removeprefix(f"{path}, ") for row in rows]


CSV = b'\xef\xbb\xbfid,text,label\r\n1,"two\r\nlines, a ""quote""",a\r\n\r\n2,plain,b\r\n'


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_csv_has_fields_and_the_lines_where_records_begin(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"in.csv{ending}", CSV)
    rows = read_rows(path)
    assert rows.columns == ("id", "text", "label")
    assert values(rows) == [
        {"id": "1", "text": 'two\nlines, a "quote"', "label": "a"},
        {"id": "2", "text": "plain", "label": "b"},
    ]
    assert places(rows, path) == ["line 2", "line 5"]
    assert (rows.files, rows.resumable) == ((str(path),), True)
    assert rows.sha256 == {str(path): hashlib.sha256(path.read_bytes()).hexdigest()}
    assert rows[1] == rows[-1] == [*rows][1] and list(rows[:1]) == [rows[0]] and len(rows) == 2


@together("name,content,expected,lines", [
    ("a.csv", b'text;price\n"a; b";3,5\nc, d;4\n',
     [{"text": "a; b", "price": "3,5"}, {"text": "c, d", "price": "4"}], [2, 3]),
    ("a.tsv", b"text;price\na, b;3,5\n", [{"text": "a, b", "price": "3,5"}], [2]),
    ("a.tsv", b'text\tlabel\nsay "x\ta\n', [{"text": 'say "x', "label": "a"}], [2]),
    ("a.txt", b"the, cat\n\n \n\tsat\r\n", [{"text": "the, cat"}, {"text": "\tsat"}], [1, 4]),
    ("a.jsonl", b'{"text": "the", "label": [1, true, null, 1.5]}\n\n{"more": "\\n"}\n',
     [{"text": "the", "label": [1, True, None, 1.5]}, {"more": "\n"}], [1, 3]),
    # Each column with a name is read by a name of its own; the first one here is the index of pandas.
    ("a.csv", b",text,label,\n0,a,b,\n", [{"text": "a", "label": "b"}], [2]),
    ("a.csv", b"text,label,,\na,b\n", [{"text": "a", "label": "b"}], [2]),
    ("a.csv", b"text,label\na,b,,\n", [{"text": "a", "label": "b"}], [2]),
    ("a.csv", b"id, text ,id,id_2,id\n1,a,2,3,4\n",
     [{"id": "1", "text": "a", "id_3": "2", "id_2": "3", "id_4": "4"}], [2]),
    ("a.tsv", b"text\tid\tid\na\t1\t2\n", [{"text": "a", "id": "1", "id_2": "2"}], [2]),
])  # fmt: skip
def test_lines_become_rows(
    tmp_path: Path, name: str, content: bytes, expected: list[dict[str, Any]], lines: list[int]
) -> None:
    path = write(tmp_path / name, content)
    rows = read_rows(path)
    assert values(rows) == expected and places(rows, path) == [f"line {number}" for number in lines]
    assert [*rows.columns] == list(dict.fromkeys(column for row in expected for column in row))


def test_a_parquet_has_values_of_every_type_and_columns_of_one_name(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    columns = [["the", None], [1, 2], [["a", "b"], []], [0.5, float("inf")], [True, False]]
    table = pa.table([pa.array(column) for column in columns], ["text", "label", "tags", "label", "sure"])
    path = write_table(tmp_path / "in.parquet", table)
    rows = read_rows(path)
    assert values(rows) == [
        {"text": "the", "label": 1, "tags": ["a", "b"], "label_2": 0.5, "sure": True},
        {"text": None, "label": 2, "tags": [], "label_2": float("inf"), "sure": False},
    ]
    assert places(rows, path) == ["row 1", "row 2"]
    raw = pa.array([b"the", b"c\xe9t"])
    path = write_table(tmp_path / "in.parquet", {"text": pa.Array.from_buffers(pa.string(), 2, raw.buffers())})
    with pytest.raises(InputError, match=r"in\.parquet, row 2: column 'text': byte 0xe9 is not UTF-8"):
        read_rows(path)


def test_a_folder_has_texts_by_label(tmp_path: Path) -> None:
    for name, content in {
        "b/2.txt": b"c\xc3\xa9\r\nd\r\n", "a/1.txt": b"\xef\xbb\xbfthe\n", "README": b"about",
        "a/.DS_Store": b"\0", "a/._1.txt": b"\0\5\x16\7", "a/Icon\r": b"",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    rows = read_rows(tmp_path)
    assert [*rows] == [
        Record({"text": "the", "label": "a"}, str(tmp_path / "a" / "1.txt")),
        Record({"text": "cé\nd", "label": "b"}, str(tmp_path / "b" / "2.txt")),
    ]
    assert rows.files == (str(tmp_path),) and rows.resumable
    (tmp_path / "a" / "1.txt").rename(tmp_path / "b" / "1.txt")
    assert read_rows(tmp_path).sha256 != rows.sha256
    (tmp_path / "b" / "notes.md").write_bytes(b"")
    with pytest.raises(InputError, match=r"notes\.md"):
        read_rows(tmp_path)


def test_a_folder_needs_labels_and_utf8(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes(b"the")
    with pytest.raises(InputError, match="subfolders"):
        read_rows(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(InputError, match="no records"):
        read_rows(tmp_path)
    (tmp_path / "a" / "1.txt").write_bytes(b"the\nc\xe9t")
    with pytest.raises(InputError, match=r"1\.txt, line 2: byte 0xe9") as caught:
        read_rows(tmp_path)
    assert caught.value.hint and "encoding=" in caught.value.hint
    assert values(read_rows(tmp_path, encoding="latin-1")) == [{"text": "the\ncét", "label": "a"}]


@together("name,content,begins,said", [
    ("a.csv", b"text,label\na,b\nc\n", ", line 3: ", "the row has 1 column, but the header has 2.*quotes"),
    ("a.csv", b'text,label\n"a\nb",c\nd,e,f\n', ", line 4: ", "3 columns"),
    ("a.csv", b'text,label\na,b\nc,"d\ne,f\n', ", line 3: ", "the row is not valid csv"),
    ("a.csv", b'text,label\n"a\nb",c\nd,\xe9\n', ", line 4: ", "byte 0xe9"),
    ("a.csv", b"text,label\nc\xe9,b\n", ", line 2: ", "encoding='latin-1'"),
    ("a.jsonl", b'[{"text": "a"}]\n', ", line 1: ", "format='json'"),
    ("a.csv", b"", ": ", "empty"),
    ("a.csv", b"\ntext,label\n", ", line 1: ", "no column has a name"),
    ("a.csv", b"text,label\n", ": ", "no records"),
    ("a.csv", "text,label\na,b\n".encode("utf-16"), ", line 1: ", "UTF-16"),
    ("a.jsonl", b"\n", ": ", "no records"),
    ("a.jsonl", b'{"a": 1}\n\n[{"a": 1}]\n', ", line 3: ", "the line is a list"),
    ("a.jsonl", b'{"a": 1}\n{"a": 1\n', ", line 2: ", "not valid JSON"),
    ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', ", line 2: ", "not UTF-8"),
    ("a.jsonl", b"[" * 10**5, ", line 1: ", "not valid JSON"),
])  # fmt: skip
def test_damaged_records_are_named_with_their_lines(
    tmp_path: Path, name: str, content: bytes, begins: str, said: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(InputError) as caught:
        read_rows(path)
    assert caught.value.message.startswith(f"{path}{begins}")
    assert re.search(said, f"{caught.value.message} {caught.value.hint}")


def test_several_files_follow_each_other(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.csv", b"text,label\n1,x\n"), write(tmp_path / "b.jsonl", b'{"text": "2"}\n')
    sources: list[str | Path] = [a, str(b)]
    rows = read_rows(sources)
    assert [row.where for row in rows] == [f"{a}, line 2", f"{b}, line 1"]
    assert rows.files == (str(a), str(b)) and [*rows.sha256] == [*rows.files]
    with pytest.raises(ArgumentError, match="twice"):
        read_rows([a, a])
    with pytest.raises(ArgumentError, match="`encoding` is"):
        read_rows(a, format="txt", encoding="rot13")
    with pytest.raises(ArgumentError, match="jsonl"):
        read_rows(b, header=False)


def test_stdin_is_json_lines_unless_said_otherwise_and_cannot_resume() -> None:
    for content, format in ((b'{"text": "the"}\n', None), (b"text\nthe\n", "csv")):
        with mock.patch("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content))):
            rows = read_rows("-", format=format)
        assert values(rows) == [{"text": "the"}]
        assert (rows.files, rows.sha256, rows.resumable) == (("stdin",), {}, False)
        assert rows[0].where.startswith("stdin, line ")
    file: Any = io.BytesIO(gzip.compress(b"text\nthe\n"))
    file.name = "x.csv.gz"
    assert values(read_rows(file, format="csv")) == [{"text": "the"}]


def test_records_are_hashed_if_they_can_be_read_again() -> None:
    records: list[dict[str, Any]] = [{"text": "the", "label": 1}, {"label": 2, "text": "cat"}]
    rows = read_rows(records)
    assert values(rows) == records
    assert [row.where for row in rows] == ["record 1", "record 2"]
    assert rows.files == ("records",) and rows.resumable
    turned: list[dict[str, Any]] = [dict(reversed(record.items())) for record in records]
    assert rows.sha256 == read_rows(turned).sha256
    assert rows.sha256 != read_rows(records[::-1]).sha256
    again = read_rows(iter(records))
    assert values(again) == records and (again.sha256, again.resumable) == ({}, False)


@pytest.mark.parametrize(("source", "error", "said"), [
    ("a.xlsx", ArgumentError, "'.xlsx'"),
    ("none", InputError, r"none.*\(No such file"),
    ("none.data", InputError, r"none\.data.*\(No such file"),
    ([], InputError, "no records"),
    ([{"a": 1}, "b"], InputError, "record 2: the record is 'b', expected a mapping"),
    ([{1: 1}], InputError, "record 1: "),
    (["a.csv", 3], ArgumentError, "one of the paths is 3"),
    ({"text": ["a"]}, ArgumentError, "dict"),
    (3, ArgumentError, "int"),
    ("hub:", ArgumentError, "hub:NAME"),
    ("hub:a:b:c:d", ArgumentError, "hub:NAME"),
])  # fmt: skip
def test_sources_that_are_no_data_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, error: type[MlxbertError], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.xlsx", b"x the\n")
    write(tmp_path / "a.csv", b"text\nthe\n")
    with pytest.raises(error, match=said):
        read_rows(source)


class FakeDataset(list[dict[str, Any]]):
    """What `datasets` gives: records, and the names of classes next to them."""

    features: ClassVar = {
        "text": SimpleNamespace(dtype="string"),
        "label": SimpleNamespace(names=["bad", "good"]),
        "tags": SimpleNamespace(feature=SimpleNamespace(names=["x", "y"])),
    }

    def __init__(self, *labels: int) -> None:
        super().__init__({"text": "the", "label": label, "tags": [1, 0]} for label in labels)


def test_a_data_set_of_the_hub_has_names_instead_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> FakeDataset:
        asked.append((name, config, split))
        if name == "none":
            raise FileNotFoundError("Dataset 'none' doesn't exist\non the Hub")
        return FakeDataset(1, 0, -1)

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    rows = read_rows("hub:nyu-mll/glue:sst2:validation")
    assert values(rows) == [{"text": "the", "label": label, "tags": ["y", "x"]} for label in ("good", "bad", None)]
    assert rows[2].place == "hub:nyu-mll/glue:sst2:validation, row 3"
    assert rows.files == ("hub:nyu-mll/glue:sst2:validation",) and rows.resumable
    read_rows(["hub:imdb", "hub:imdb::test"])
    assert asked == [("nyu-mll/glue", "sst2", "validation"), ("imdb", None, "train"), ("imdb", None, "test")]
    with pytest.raises(HubError, match=r"hub:none: .*doesn't exist\)"):
        read_rows("hub:none")
    assert values(read_rows(FakeDataset(1)))[0]["label"] == "good"
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MlxbertError, match="not installed") as caught:
        read_rows("hub:imdb")
    assert caught.value.hint == install_command("datasets")


@pytest.mark.slow
def test_a_parquet_of_datasets_has_the_labels_that_it_has_itself(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    label = datasets.ClassLabel(names=["no", "yes"])
    features = {"text": datasets.Value("string"), "label": label, "tags": datasets.List(label)}
    columns = {"text": ["a", "b"], "label": [1, -1], "tags": [[0, 1], []]}
    data = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    data.to_parquet(str(tmp_path / "in.parquet"))
    stored = [row.values for row in read_rows(tmp_path / "in.parquet")]
    assert stored == [row.values for row in read_rows(data)]
    assert stored[0]["label"] == "yes" and stored[0]["tags"] == ["no", "yes"]
