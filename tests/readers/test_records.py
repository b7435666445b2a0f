"""Records from Python: .parquet, .gz, files and paths; the text formats are tested through the command line as well."""

import datetime
import gc
import gzip
import io
import json
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.other_libraries import install_command
from mlxbert.readers.formats import FormatName, read_records
from mlxbert.readers.input_files import InputFile
from mlxbert.readers.stream import Record, RecordStream
from tests.helpers.cases import together
from tests.helpers.rooms import needs

CONTENTS = {
    "in.txt": b"\xef\xbb\xbfthe\r\n\r\ncat\n",
    "in.jsonl": b'{"text": "the"}\n\n{"text": ""}\n{"text": "cat"}\n',
    "in.csv": b'n,text\r\n1,the\r\n\r\n2,""\r\n3,"cat"\r\n',
    "in.tsv": b"text\tn\nthe\t1\n\t2\ncat\t3\n",
}


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def write_table(path: Path, columns: Any, **options: Any) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns) if isinstance(columns, dict) else columns, path, **options)
    return path


def contents(records: Iterable[Record]) -> list[Any]:
    """The text, the pair or the problem of each document."""
    return [one.problem or (one.text if one.pair is None else (one.text, one.pair)) for one in records]


def whole_records(source: Any, **how: Any) -> list[Record]:
    """The records with all their values; the first problem is raised."""
    found = [*read_records(source, None, **how)]
    for record in found:
        if record.problem is not None:
            raise record.located(record.problem)
    return found


def failures(records: RecordStream) -> list[str]:
    return [one.problem.message for one in records if one.problem is not None]


@together("name,ending", [*zip(CONTENTS, ["", ".gz", ".GZ", ""], strict=True), ("in.txt", ".gz"), ("in.csv", "")])
def test_texts_are_read_from_every_format_plain_or_compressed(tmp_path: Path, name: str, ending: str) -> None:
    path = tmp_path / (name + ending)
    path.write_bytes(gzip.compress(CONTENTS[name], mtime=0) if ending else CONTENTS[name])
    records = read_records(path)
    assert records.read_as == (name[3:], "text")
    (file,) = records.files
    assert isinstance(file, InputFile) and file.name == path
    assert records.done == 0
    assert contents(records) == ["the", "", "cat"]
    assert records.done == records.size == path.stat().st_size
    assert contents(records) == []


def test_two_names_give_pairs_in_their_order(tmp_path: Path) -> None:
    for name, content in (("a.jsonl", b'{"a": "the", "b": "cat"}\n'), ("a.csv.gz", b"b,c,a\ncat,x,the\n")):
        path = write(tmp_path / name, content)
        assert contents(read_records(path, "a", "b")) == [("the", "cat")]
        assert contents(read_records(path, "b")) == ["cat"]
    assert contents(read_records(write(tmp_path / "a.txt", b"the\n"), "x")) == ["the"]


def test_an_open_file_is_read_as_the_format_says_and_stays_open() -> None:
    file = io.BytesIO(b"text\nthe\n")
    records = read_records(file, format="csv", name="memory")
    assert (records.name, records.files, records.size) == ("memory", (), None)
    assert contents(records) == ["the"]
    assert not file.closed


def test_a_path_is_closed_at_the_end(tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", b"the\ncat\n")
    records = read_records(path)
    (file,) = records.files
    assert isinstance(file, InputFile) and not file.closed
    assert contents(records) == ["the", "cat"]
    assert file.closed


def test_a_path_that_nobody_reads_is_closed(tmp_path: Path) -> None:
    (file,) = read_records(write(tmp_path / "in.txt", b"the\n")).files
    gc.collect()
    assert isinstance(file, InputFile) and file.closed


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("in.data", {}, "'.data'"),
        ("in.parquet.gz", {}, "'.gz'"),
        ("in", {}, "''"),
        ("in.txt", {"text": "a", "pair": "b"}, "a and b"),
        ("in.txt", {"format": "xml"}, "'xml'"),
    ],
)
def test_arguments_that_fit_no_file_are_refused(
    tmp_path: Path, name: str, arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ArgumentError, match=said):
        read_records(write(tmp_path / name, b"the\n"), **arguments)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt.*\(No such file"):
        read_records(tmp_path / "none.txt")
    with pytest.raises(InputError, match="null"):
        read_records("a\0b.txt")


@pytest.mark.parametrize("name", ["none", "none.data"])
def test_a_file_that_is_not_there_is_missing_whatever_its_ending(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"{name}.*\(No such file"):
        read_records(tmp_path / name)


@pytest.mark.parametrize(("name", "hint"), [
    ("note.txt", "a file with a similar name is {}/notes.txt"),
    ("nothere.txt", "check the path, because {} has no file with this name"),
    ("no/notes.txt", "the folder {}/no does not exist"),
])  # fmt: skip
def test_a_missing_file_has_a_hint(name: str, hint: str, tmp_path: Path) -> None:
    write(tmp_path / "notes.txt", b"a\n")
    with pytest.raises(InputError) as caught:
        read_records(tmp_path / name)
    assert caught.value.hint == hint.format(tmp_path)


def test_a_folder_and_a_file_of_notes_have_a_hint(tmp_path: Path) -> None:
    for given, hint in ((tmp_path, "open_index"), (write(tmp_path / "notes.md", b"a\n"), "format='txt'")):
        with pytest.raises(ArgumentError) as caught:
            read_records(given)
        assert caught.value.hint and hint in caught.value.hint


def test_hints_name_arguments(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError) as caught:
        read_records(write(tmp_path / "in.data", b""))
    assert caught.value.hint and "format='jsonl'" in caught.value.hint
    (record,) = read_records(write(tmp_path / "in.jsonl", b'{"body": "the"}\n'))
    problem = record.problem
    assert problem and problem.hint and "text=" in problem.hint
    assert "'text'" in problem.message and "body" in problem.message


def test_compressed_bytes_are_counted_while_a_file_is_read(tmp_path: Path) -> None:
    lines = [os.urandom(1000).hex() for _ in range(1000)]
    records = read_records(write(tmp_path / "in.txt.gz", "".join(f"{line}\n" for line in lines).encode()))
    assert records.size is not None and records.size > 10**6
    seen = [(record.text, records.done) for record in records]
    assert [record for record, _ in seen] == lines
    counts = [done for _, done in seen]
    assert counts == sorted(counts) and len(set(counts)) > 5
    assert abs(counts[500] - records.size / 2) < records.size / 5
    assert counts[-1] <= records.done == records.size


def test_a_compressed_file_may_have_several_members_and_be_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "in.txt.gz"
    os.mkfifo(pipe)
    content = gzip.compress(b"the\nc", mtime=0) + gzip.compress(b"at\n")
    writer = threading.Thread(target=pipe.write_bytes, args=(content,))
    writer.start()
    records = read_records(pipe)
    assert (records.files, records.size) == ((), None)
    assert contents(records) == ["the", "cat"]
    assert records.done == len(content)
    writer.join()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"the\n", "damaged gzip data: Not a gzipped file"),
        (gzip.compress(b"the\n" * 99, mtime=0)[:-9], "damaged gzip data"),
        (gzip.compress(b"the\n", mtime=0)[:-8] + bytes(8), "damaged gzip data: CRC"),
        (gzip.compress(b"the\n", mtime=0)[:10] + b"\xff" * 20, "damaged gzip data"),
    ],
)
def test_a_damaged_compressed_file_is_named_with_the_reason(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "in.txt.gz"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        list(read_records(path))
    assert caught.value.message.startswith(f"{path}: ") and said in caught.value.message


def test_columns_of_a_parquet_are_streamed_by_rows(tmp_path: Path) -> None:
    texts = [f"line {number}\nof text" for number in range(3000)]
    columns = {"n": list(range(3000)), "text": texts, "b.c": [str(number) for number in range(3000)]}
    path = write_table(tmp_path / "in.parquet", columns, row_group_size=700)
    records = read_records(path)
    assert (records.read_as[0], records.done, records.size) == (FormatName.parquet, 0, path.stat().st_size)
    found = []
    for record in records:
        found.append(record.text)
        if len(found) == 1500:
            assert abs(records.done - path.stat().st_size / 2) < 10
    assert found == texts
    assert records.done == path.stat().st_size
    assert contents(read_records(path, "b.c", "text"))[1] == ("1", texts[1])
    with path.open("rb") as file:
        assert len(contents(read_records(file, format="parquet"))) == 3000


def test_every_type_of_string_of_a_parquet_is_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    texts = ["the", "", "ž🦆", "the"]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        path = write_table(tmp_path / "in.parquet", {"text": pa.array(texts).cast(kind)})
        assert contents(read_records(path)) == texts


def test_values_of_a_parquet_that_are_not_texts_fail_in_their_place(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    raw = pa.array([b"the", b"c\xe9t", b"dog"])
    invalid = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    path = write_table(tmp_path / "in.parquet", {"text": ["the", None, "cat"], "b": invalid})
    assert contents(read_records(path))[::2] == ["the", "cat"]
    assert failures(read_records(path)) == ["column 'text' is null, expected a string"]
    assert failures(read_records(path, "b")) == ["column 'b': byte 0xe9 is not UTF-8"]


def test_a_parquet_without_rows_has_no_records(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    path = write_table(tmp_path / "in.parquet", {"text": pa.array([], pa.string())})
    records = read_records(path)
    assert (list(records), records.done) == ([], 0)


def test_a_column_that_is_missing_or_no_text_is_refused_at_once(tmp_path: Path) -> None:
    path = write_table(tmp_path / "in.parquet", {"body": ["the"], "n": [1]})
    with pytest.raises(InputError, match=r"column.*'text'") as caught:
        read_records(path)
    assert caught.value.hint and "text=" in caught.value.hint
    with pytest.raises(InputError, match=r"column.*'n'.*int64"):
        read_records(path, "n")


def test_classes_that_datasets_stored_are_their_names(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    label = {"names": ["no", "yes"], "_type": "ClassLabel"}
    of_lists: tuple[Any, ...] = ({"feature": label, "_type": "List"}, {"feature": label, "_type": "Sequence"}, [label])
    columns = {"text": ["a", "b", "c"], "label": [1, 0, -1], "tags": [[0, 1], [], None], "n": [1, 0, 2]}
    for tags in of_lists:
        features = {"text": {"dtype": "string", "_type": "Value"}, "odd": [], "label": label, "tags": tags}
        stored = {"huggingface": json.dumps({"info": {"features": features}})}
        table = pa.table(columns).replace_schema_metadata(stored)
        path = write_table(tmp_path / "in.parquet", table)
        rows = [dict(row.values) for row in whole_records(path)]
        assert [row["label"] for row in rows] == ["yes", "no", None]
        assert [row["tags"] for row in rows] == [["no", "yes"], [], None]
        assert [row["n"] for row in rows] == [1, 0, 2]
        kept = [record.values["label"] for record in read_records(path, keep=["label"])]
        assert kept == ["yes", "no", None]
    odd = ("{", "[]", '{"info": {"features": [1]}}', '{"info": {"features": {"label": {"_type": "ClassLabel"}}}}')
    for content in odd:
        path = write_table(tmp_path / "in.parquet", pa.table(columns).replace_schema_metadata({"huggingface": content}))
        assert [row.values["label"] for row in whole_records(path)] == [1, 0, -1]


def test_a_damaged_parquet_is_named(tmp_path: Path) -> None:
    content = write_table(tmp_path / "in.parquet", {"text": ["the"] * 100}).read_bytes()
    for damaged in (b"", b"text\nthe\n", content[:-20]):
        path = tmp_path / "bad.parquet"
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"bad\.parquet.*\.parquet"):
            read_records(path)
    path.write_bytes(content[:4] + b"\xff" * 60 + content[64:])
    with pytest.raises(InputError, match=r"bad\.parquet.*\.parquet"):
        list(read_records(path))


def test_a_parquet_cannot_be_read_from_a_pipe() -> None:
    pytest.importorskip("pyarrow")
    read_end, write_end = os.pipe()
    os.close(write_end)
    with open(read_end, "rb") as file, pytest.raises(InputError, match="stdin: is a pipe"):
        read_records(file, format="parquet", name="stdin")


def test_without_pyarrow_a_parquet_is_refused_with_a_hint(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", b"PAR1")
    with (
        mock.patch.dict(sys.modules, {"pyarrow": None, "pyarrow.parquet": None}),
        pytest.raises(MlxbertError, match="pyarrow, which is not installed") as caught,
    ):
        read_records(path)
    assert caught.value.hint == install_command("parquet")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("in.txt", b"the\nc\xe9t\ndog\n", "line 2: byte 0xe9 at offset 5 is not UTF-8"),
        ("in.txt.gz", b"the\ncat\0\ndog\n", "line 2: the byte at offset 7 is zero"),
        ("in.jsonl", b'{"text": "the"}\n{"text": "\xff"}\n{"text": "dog"}\n', "line 2: byte 0xff"),
        ("in.csv", b'n,text\n1,the\n"\0\n\xe9",cat\n3,dog\n', "line 3: the byte at offset 14 is zero"),
        ("in.tsv", b"text\tn\nthe\t1\ncat\t\xe9\ndog\t3\n", "line 3: byte 0xe9"),
    ],
)
def test_a_damaged_line_is_a_bad_record_in_its_place(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    records = [*read_records(write(tmp_path / name, content))]
    first, bad, last = contents(records)
    assert (first, last) == ("the", "dog")
    assert records[1].place == problem.partition(":")[0] and not records[1].text
    assert isinstance(bad, InputError) and bad.message.startswith(problem)
    assert bad.hint and ("iconv" if "zero" in problem else "encoding='latin-1'") in bad.hint


@pytest.mark.parametrize(
    ("content", "said", "hint"),
    [
        (b"te\xe9xt\nthe\n", "line 1: byte 0xe9", "encoding='latin-1'"),
        ("text\nthe\n".encode("utf-16"), "line 1: the file begins like UTF-16", "iconv"),
        (gzip.compress(b"text\nthe\n", mtime=0), "line 1: the file begins like gzip", ".gz"),
    ],
)
def test_a_file_of_which_no_line_could_be_used_is_refused(tmp_path: Path, content: bytes, said: str, hint: str) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        list(read_records(path))
    assert caught.value.hint and hint in caught.value.hint


def test_a_folder_in_place_of_a_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(MlxbertError, match="is a folder"):
        contents(read_records(str(tmp_path)))


def test_columns_of_a_table_without_a_header_are_numbered(tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", b"\n1,the\n\n2,cat\nx\n")
    found = contents(read_records(path, "2", header=False))
    assert found[:2] == ["the", "cat"] and isinstance(found[2], InputError)
    assert contents(read_records(path, "2", "1", header=False))[:2] == [("the", "1"), ("cat", "2")]
    damaged = write(tmp_path / "bad.tsv", b"c\xe9t\nthe\n")
    first, second = contents(read_records(damaged, "1", header=False))
    assert isinstance(first, InputError) and second == "the"
    with pytest.raises(InputError, match=r"column '3'.*1, 2") as caught:
        list(read_records(path, "3", header=False))
    assert caught.value.hint and "text=" in caught.value.hint
    with pytest.raises(ArgumentError, match="jsonl"):
        read_records(write(tmp_path / "in.jsonl", b"{}"), header=False)


def test_the_first_row_without_a_header_has_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "in.csv", b"\n\nthe,cat\nsat\n")
    assert [one.place for one in read_records(path, "1", header=False)] == ["line 3", "line 4"]


def test_other_columns_are_kept_for_each_record(tmp_path: Path) -> None:
    csv = write(tmp_path / "in.csv", b"id,text,n\n1,the,x\n2\n3,cat,y\n")
    jsonl = write(tmp_path / "in.jsonl", b'{"id": [1, NaN], "text": "the"}\n{"n": 2}\n{"text": "cat"}\n')
    cases: list[tuple[Path, dict[str, Any], list[dict[str, Any]]]] = [
        (csv, {"with_id": True}, [{"id": "1"}, {}, {"id": "3"}]),
        (csv, {"keep": ["n", "id"]}, [{"n": "x", "id": "1"}, {}, {"n": "y", "id": "3"}]),
        (jsonl, {"with_id": True}, [{"id": "[1, nan]"}, {}, {}]),
        (jsonl, {"keep": None}, [{"id": "[1, nan]", "text": "the"}, {"n": 2}, {"text": "cat"}]),
        (jsonl, {"keep": ["n"]}, [{"n": None}, {"n": 2}, {"n": None}]),
        (csv, {}, [{}, {}, {}]),
    ]
    for path, how, wanted in cases:
        records = [*read_records(path, **how)]
        assert [record.problem is None for record in records] == [True, False, True]
        assert [record.as_json() for record in records] == wanted
    with pytest.raises(InputError, match="no column 'm'") as caught:
        list(read_records(csv, keep=["m"]))
    assert caught.value.hint is None


def test_columns_of_any_type_are_kept_of_a_parquet(tmp_path: Path) -> None:
    columns = {"id": [1, 2], "text": ["the", "cat"], "day": [datetime.date(2026, 1, 2), None]}
    path = write_table(tmp_path / "in.parquet", columns)
    cases: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        ({"with_id": True}, [{"id": 1}, {"id": 2}]),
        ({"keep": ["day"]}, [{"day": "2026-01-02"}, {"day": None}]),
    ]
    for how, wanted in cases:
        records = [*read_records(path, **how)]
        assert contents(records) == ["the", "cat"]
        assert [record.as_json() for record in records] == wanted


def test_damaged_json_has_a_column_and_no_other_line(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "the"}\n{"text" "cat"}\n' + '{"n": ' + "1" * 5000 + "}\n")
    _, damaged, long = contents(read_records(tmp_path / "in.jsonl"))
    assert str(damaged) == "the line is not valid JSON (Expecting ':' delimiter, column 9)"
    assert isinstance(long, InputError) and "not valid JSON (a number has 5,000 digits" in long.message


@needs("search")
def test_ndjson_is_another_name_of_jsonl(tmp_path: Path) -> None:
    from mlxbert.search.documents.document_kinds import RECORDS, kind_of

    for name in ("in.ndjson", "in.NDJSON.gz"):
        path = write(tmp_path / name, b'{"text": "the"}\n{"text": "cat"}\n')
        records = read_records(path)
        assert records.read_as[0] == FormatName.jsonl and contents(records) == ["the", "cat"]
    assert kind_of("a/in.ndjson.xz", b"") == RECORDS
