"""Records from Python: .parquet, .gz, files and paths; the text formats are tested through the command line as well."""

import csv
import datetime
import gc
import gzip
import io
import json
import logging
import lzma
import os
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mlxbert.errors import ArgumentError, InputError, MlxbertError
from mlxbert.other_libraries import install_command
from mlxbert.readers import json_records
from mlxbert.readers.formats import FormatName, read_records
from mlxbert.readers.input_files import InputFile
from mlxbert.readers.pipes import LONGEST, as_it_comes, first_line
from mlxbert.readers.stream import Record
from mlxbert.readers.text_lines import Lines, read_text
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


GZIP = gzip.compress(b"the\n" * 9, mtime=0)
Case = tuple[str, bytes | None, dict[str, Any], str, str]
REFUSED: list[Case] = [
    # name, content, arguments, what the message has, what the hint has
    ("in.data", b"the\n", {}, "'.data'", "format='jsonl'"),
    ("in.parquet.gz", b"the\n", {}, "'.gz'", ""),
    ("in", b"the\n", {}, "''", ""),
    ("in.txt", b"the\n", {"text": "a", "pair": "b"}, "a and b", ""),
    ("in.txt", b"the\n", {"format": "xml"}, "'xml'", ""),
    *((name, None, {}, "(No such file", "") for name in ("none.txt", "none", "none.data")),
    ("a\0b.txt", None, {}, "null", ""),
    ("note.txt", None, {}, "", "a file with a similar name is {}/notes.txt"),
    ("nothere.txt", None, {}, "", "check the path, because {} has no file with this name"),
    ("no/notes.txt", None, {}, "", "the folder {}/no does not exist"),
    ("", None, {}, "is a folder", "open_index"),
    ("notes.md", b"a\n", {}, "", "format='txt'"),
    ("in.csv", b"te\xe9xt\nthe\n", {}, "line 1: byte 0xe9", "encoding='latin-1'"),  # no line could be used
    ("in.csv", "text\nthe\n".encode("utf-16"), {}, "line 1: the file begins like UTF-16", "iconv"),
    ("in.csv", GZIP, {}, "line 1: the file begins like gzip", ".gz"),
    ("in.txt.gz", b"the\n", {}, "{}/in.txt.gz: cannot be read (damaged gzip data: Not a gzipped file", ""),
    ("in.txt.gz", GZIP[:-9], {}, "damaged gzip data", ""),
    ("in.txt.gz", GZIP[:-8] + bytes(8), {}, "damaged gzip data: CRC", ""),
    ("in.txt.gz", GZIP[:10] + b"\xff" * 20, {}, "damaged gzip data", ""),
    ("in.json", b'[{"text": "the"},\n{"text" 1}]', {}, "line 2 column 9", ""),
    ("in.json", b'[{"text": "the"} {"text": "cat"}]', {}, "line 1 column 18", ""),
    ("in.json", b'[{"text": "the"}', {}, "line 1 column 17", ""),
    ("in.json", b'[{"text": "the"}] x', {}, "line 1 column 19", ""),
    ("in.json", b"[" * 10**5, {}, "{}/in.json: the input is not valid JSON", ""),
    ("in.json", b"", {}, "not valid JSON", ""),
    ("in.json", b'[{"text": "a", "n": ' + b"1" * 5000 + b"}]", {}, "a number has 5,000 digits", ""),
    ("in.json", b'{"text": "the"}', {}, "the content is an object, expected a JSON array", ""),
    ("in.json", b'[\n{"text": "\xe9"}]', {}, "line 2: byte 0xe9 at offset 12", ""),
    ("in.json", b'[{"text": "the\0"}]', {}, "line 1: the byte at offset 14 is zero", ""),
    *(
        ("in.txt", b"the\n", {"encoding": name}, "`encoding` is", "encoding='latin-1'")
        for name in ("nope", "rot13", "hex", "idna", "undefined", "a\0b", "", "\ud800", 3)
    ),
    *(
        ("in.txt", "the\n".encode(name), {"encoding": name}, "ASCII", "iconv")
        for name in ("utf-16", "utf-16-le", "utf-32", "cp037")
    ),
]


@together("name,content,how,said,hint", REFUSED)
def test_what_cannot_be_read_is_refused_with_what_would_help(
    name: str, content: bytes | None, how: dict[str, Any], said: str, hint: str, tmp_path: Path
) -> None:
    folder = Path(tempfile.mkdtemp(dir=tmp_path))
    (folder / "notes.txt").write_bytes(b"a\n")
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(MlxbertError) as caught:
        list(read_records(folder / name, **how))
    assert said.replace("{}", str(folder)) in caught.value.message
    assert hint.replace("{}", str(folder)) in (caught.value.hint or "")


def test_files_that_it_opened_are_closed_and_others_stay_open(tmp_path: Path) -> None:
    path = write(tmp_path / "in.txt", b"the\ncat\n")
    records = read_records(path)
    (file,) = records.files
    assert isinstance(file, InputFile) and not file.closed
    assert contents(records) == ["the", "cat"]
    assert file.closed
    (file,) = read_records(path).files  # nobody reads it
    gc.collect()
    assert isinstance(file, InputFile) and file.closed
    given = io.BytesIO(b"text\nthe\n")
    records = read_records(given, format="csv", name="memory")
    assert (records.name, records.files, records.size) == ("memory", (), None)
    assert contents(records) == ["the"] and not given.closed


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
        records = read_records(write_table(tmp_path / "in.parquet", {"text": pa.array([], kind)}))
        assert (list(records), records.done) == ([], 0)


def test_values_of_a_parquet_that_are_not_texts_fail_in_their_place(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    raw = pa.array([b"the", b"c\xe9t", b"dog"])
    invalid = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    path = write_table(tmp_path / "in.parquet", {"text": ["the", None, "cat"], "b": invalid})
    assert contents(read_records(path))[::2] == ["the", "cat"]
    for column, said in (("text", "'text' is null, expected a string"), ("b", "'b': byte 0xe9 is not UTF-8")):
        assert f"column {said}" == contents(read_records(path, column))[1].message
    path = write_table(tmp_path / "in.parquet", {"body": ["the"], "n": [1]})
    with pytest.raises(InputError, match=r"column.*'text'") as caught:  # at once
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


def test_without_pyarrow_or_from_a_pipe_a_parquet_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "in.parquet", b"PAR1")
    with (
        mock.patch.dict(sys.modules, {"pyarrow": None, "pyarrow.parquet": None}),
        pytest.raises(MlxbertError, match="pyarrow, which is not installed") as caught,
    ):
        read_records(path)
    assert caught.value.hint == install_command("parquet")
    pytest.importorskip("pyarrow")
    read_end, write_end = os.pipe()
    os.close(write_end)
    with open(read_end, "rb") as file, pytest.raises(InputError, match="stdin: is a pipe"):
        read_records(file, format="parquet", name="stdin")


@together(
    "name,content,encoding,problem",
    [
        ("in.txt", b"the\nc\xe9t\ndog\n", "utf-8", "line 2: byte 0xe9 at offset 5 is not UTF-8"),
        ("in.txt", b"the\nc\x81t\ndog\n", "cp1252", "line 2: byte 0x81 at offset 5 is not CP1252"),
        ("in.txt.gz", b"the\ncat\0\ndog\n", "utf-8", "line 2: the byte at offset 7 is zero"),
        ("in.txt.gz", b"the\na\0\ndog\n", "latin-1", "line 2: the byte at offset 5 is zero"),
        ("in.jsonl", b'{"text": "the"}\n{"text": "\xff"}\n{"text": "dog"}\n', "utf-8", "line 2: byte 0xff"),
        ("in.csv", b'n,text\n1,the\n"\0\n\xe9",cat\n3,dog\n', "utf-8", "line 3: the byte at offset 14 is zero"),
        ("in.tsv", b"text\tn\nthe\t1\ncat\t\xe9\ndog\t3\n", "utf-8", "line 3: byte 0xe9"),
    ],
)
def test_a_damaged_line_is_a_bad_record_in_its_place(
    tmp_path: Path, name: str, content: bytes, encoding: str, problem: str
) -> None:
    records = [*read_records(write(tmp_path / name, content), encoding=encoding)]
    first, bad, last = contents(records)
    assert (first, last) == ("the", "dog")
    assert records[1].place == problem.partition(":")[0] and not records[1].text
    assert isinstance(bad, InputError) and bad.message.startswith(problem)
    if encoding == "utf-8":
        assert bad.hint and ("iconv" if "zero" in problem else "encoding='latin-1'") in bad.hint


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


OBJECTS: list[dict[str, Any]] = [{"text": "the", "id": 1}, {"text": "cat\n", "more": [None, {"a": 0.5}]}]


@together("indent,ending", [(None, ""), (2, ".gz")])
def test_an_array_is_read_as_records(tmp_path: Path, indent: int | None, ending: str) -> None:
    raw = b"\xef\xbb\xbf" + json.dumps(OBJECTS, indent=indent).encode()
    path = write(tmp_path / f"in.json{ending}", raw)
    rows = whole_records(path)
    assert [dict(row.values) for row in rows] == OBJECTS
    assert [row.where for row in rows] == [f"{path}, record 1", f"{path}, record 2"]
    records = [*read_records(path, keep=["id"])]
    assert [(one.text, one.values["id"], one.place) for one in records] == [
        ("the", 1, "record 1"), ("cat\n", None, "record 2"),
    ]  # fmt: skip


def test_records_that_are_none_fail_in_their_place() -> None:
    raw = io.BytesIO(b'[{"text": "the"}, 3, {"body": "x"}, {"text": 1}, {"text": "cat"}]')
    first, number, without, other, last = contents(read_records(raw, format="json"))
    assert (first, last) == ("the", "cat")
    for problem, said in ((number, "the record is a number"), (without, "no field 'text'"), (other, "is a number")):
        assert isinstance(problem, InputError) and said in problem.message
    assert "body" in without.message and "text=" in without.hint
    raw.seek(0)
    with pytest.raises(InputError, match=r"record 2: the record is a number, expected a JSON object"):
        whole_records(raw, format="json")


def test_json_has_a_limit_with_a_way_out() -> None:
    raw = b'[{"text": "the"},\n{"text": "cat"}]'
    with mock.patch.object(json_records, "_MAX_SIZE", 20), pytest.raises(InputError, match="more than 20") as caught:
        list(read_records(io.BytesIO(raw), format="json"))
    assert caught.value.hint and "jq" in caught.value.hint
    with mock.patch.object(json_records, "_MAX_SIZE", len(raw)):
        assert contents(read_records(io.BytesIO(raw), format="json")) == ["the", "cat"]


@needs("train")
def test_corpora_may_be_arrays(tmp_path: Path) -> None:
    from mlxbert.train.pretraining.corpus.documents import DocumentReader, check_files

    raw = '[{"text": "Café. Yes."}, {"text": "No."}]'.encode("latin-1")
    files = check_files([write(tmp_path / "in.json.gz", raw)], "text", "blank")
    parts = DocumentReader(files, encoding="latin-1")
    assert [[sentence.strip() for sentence in part.sentences] for part in parts] == [["Café.", "Yes."], ["No."]]


ACCENTED = ["café", "naïve", "the"]
IN_ENCODINGS = {
    "in.txt": "\n".join(ACCENTED),
    "in.txt.gz": "\n".join(ACCENTED),
    "in.csv": "text\r\n" + "\r\n".join(f'"{text}"' for text in ACCENTED),
    "in.tsv": "text\n" + "\n".join(ACCENTED),
    "in.jsonl": "\n".join(f'{{"text": "{text}"}}' for text in ACCENTED),
    "in.json": "[" + ",\n".join(f'{{"text": "{text}"}}' for text in ACCENTED) + "]",
}


@together("encoding", ["latin-1", "cp1252", "mac-roman", "UTF8", "utf-8-sig"])
@together("name", IN_ENCODINGS)
def test_every_text_format_has_an_encoding(tmp_path: Path, name: str, encoding: str) -> None:
    raw = IN_ENCODINGS[name].encode(encoding)
    path = write(tmp_path / name, raw)
    assert contents(read_records(path, encoding=encoding)) == ACCENTED
    assert [row.values["text"] for row in whole_records(path, encoding=encoding)] == ACCENTED


@together("encoding", ["shift_jis", "gb18030", "euc-jp", "iso2022_jp"])
def test_letters_of_several_bytes_are_no_ends_of_lines(encoding: str) -> None:
    texts = ["表示能力", "申請\\十", "日本"]
    raw = "\n".join(texts).encode(encoding)
    assert contents(read_records(io.BytesIO(raw), name="in.txt", encoding=encoding)) == texts


def test_whole_texts_have_one_too() -> None:
    assert read_text("c.txt", io.BytesIO(b"caf\xe9\r\n"), "latin-1") == "café\r\n"
    with pytest.raises(InputError, match=r"c\.txt, line 2: byte 0xe9 at offset 5 is not UTF-8"):
        read_text("c.txt", io.BytesIO(b"a\ncaf\xe9"))


@together("byte,likely", [(b"\x93", "cp1252"), (b"\x80", "cp1252"), (b"\xe9", "latin-1"), (b"\xfc", "latin-1")])
def test_an_error_names_an_encoding_in_which_the_byte_is_a_letter(byte: bytes, likely: str) -> None:
    (problem,) = contents(read_records(io.BytesIO(byte + b"a\n"), name="in.txt"))
    assert isinstance(problem, InputError) and problem.message.startswith(f"line 1: byte 0x{byte.hex()} at offset 0")
    assert problem.hint and f"encoding='{likely}'" in problem.hint
    assert byte.decode(likely).isprintable()


QUOTED = ['He said "no".', '"Never," she said.', "plain", "with\ttab", "two\nlines", '"', "a, b", '"all of it"', ""]


def written(rows: list[list[Any]], **dialect: Any) -> bytes:
    file = io.StringIO()
    csv.writer(file, delimiter="\t", lineterminator="\n", **dialect).writerows(rows)
    return file.getvalue().encode()


def values(path: Path, content: bytes, **how: Any) -> list[list[Any]]:
    path.write_bytes(content)
    return [[*row.values.values()] for row in whole_records(path, **how)]


@together("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
def test_fields_that_a_program_has_enclosed_are_read_without_quotes(
    quoting: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[list[Any]] = [[text, number] for number, text in enumerate(QUOTED)]
    for count in (1, 3, len(QUOTED)):
        caplog.clear()
        content = written([["text", "label"], *rows[:count]], quoting=quoting)
        assert values(tmp_path / "in.tsv", content) == [[text, str(number)] for text, number in rows[:count]]
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
    excel = b'text\tlabel\nplain\t1\n"a, b"\t2\n"c ""d"""\t3\n'
    assert values(tmp_path / "in.tsv", excel) == [["plain", "1"], ["a, b", "2"], ['c "d"', "3"]]
    r_writes = b'"text"\t"label"\n"the cat"\t1\n"a dog"\tNA\n'
    assert values(tmp_path / "in.tsv", r_writes) == [["the cat", "1"], ["a dog", "NA"]]


@pytest.mark.parametrize(
    "lines",
    [
        ['"Never," she said.\t1', "plain\t0"],
        ['He said "no".\t1'],
        ['"Never."\t1', "plain\t0"],  # no program would enclose it
        ['"He said so\t1', "plain\t0"],
        ['"He said so\t1', 'and went"\t0', "plain\t1"],  # whole rows stand between
        ['"a, b"\t1', "c, d\t0"],
        ['"a ""b"" c"\t1', 'd "e" f\t0'],
        ['5" and 6"\t1', '""\t0'],
    ],
)
def test_quotes_that_no_program_would_write_are_part_of_the_text(
    lines: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = "\n".join(["text\tlabel", *lines, ""]).encode()
    assert values(tmp_path / "in.tsv", content) == [line.split("\t") for line in lines]
    assert values(tmp_path / "in.tsv", "\n".join(lines).encode(), header=False) == [line.split("\t") for line in lines]
    assert not caplog.records


def test_what_comes_after_many_lines_without_quotes_decides(tmp_path: Path) -> None:
    many = [f"text {number}\t0" for number in range(3000)]
    for last, expected in (('"a ""b"" c"\t1', 'a "b" c'), ('"a ""b"" c" d\t1', '"a ""b"" c" d')):
        content = "\n".join(["text\tlabel", *many, last, *many]).encode()
        assert values(tmp_path / "in.tsv", content)[3000] == [expected, "1"]


def test_a_line_that_is_damaged_stays_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "in.tsv"
    path.write_bytes(b'text\tn\n"a ""b"""\t1\nbad \xff\t2\nok\t3\tmore\nok\t4\n"c\td"\t5\n')
    texts = [one.text for one in read_records(path) if one.problem is None]
    assert texts == ['"a ""b"""', "ok"]  # a row has three columns: no program wrote this
    path.write_bytes(b'text\tn\n"a ""b"""\t1\nbad \xff\t2\nok\t4\n"c\td"\t5\n')
    records = [*read_records(path)]
    assert [one.text for one in records if one.problem is None] == ['a "b"', "ok", "c\td"]
    assert [one.place for one in records if one.problem is not None] == ["line 3"]
    pipe = io.BytesIO(b'text\tn\n"a ""b"""\t1\n')  # is not waited for
    assert [record.text for record in read_records(pipe, format="tsv")] == ['a "b"']


@together("line,header", [("sep=,", True), ("sep=;", True), ("SEP=,", False), ("sep=\t", True)])
def test_a_line_that_names_the_separator_is_pointed_out(line: str, header: bool, tmp_path: Path) -> None:
    for name in ("in.csv", "in.tsv"):
        (tmp_path / name).write_text(f"{line}\ntext,label\na,b\n", encoding="utf-8")
        with pytest.raises(InputError, match=r"line 1: '.*' names the separator") as caught:
            whole_records(tmp_path / name, header=header)
        assert caught.value.hint and "delete this line" in caught.value.hint


SMALL = 2**14  # what a line may have in most of these tests
LONG = b"x" * SMALL  # with anything around it, too long a line
LONG_LINES = {
    "in.txt": b"the\n" + LONG + b"x\ncat",
    "in.jsonl": b'{"text": "the"}\n{"text": "' + LONG + b'"}\n{"text": "cat"}\n',
    "blank.jsonl": b'{"text": "the"}\n' + b" " * SMALL + b'{"text": ""}\n{"text": "cat"}\n',
    "in.csv": b"n,text\n1,the\n2," + LONG + b"\n3,cat\n",
    "quoted.csv": b'n,text\n1,the\n2,"a ""b"", ' + LONG + b'\n"\n3,cat\n',
    "lines.csv": b'n,text\n1,the\n2,"' + (b"x" * 1023 + b"\n") * (SMALL // 1024) + b'1,""no""\n"\n3,cat\n',
    "in.tsv": b'n\ttext\n1\tthe\n2\t"' + LONG + b"\n3\tcat\n",
}


@pytest.fixture
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxbert.readers.delimited.LONGEST", SMALL)


@together("name", LONG_LINES)
@pytest.mark.usefixtures("small_rows")
def test_a_record_that_is_too_long_fails_and_the_rest_is_read(name: str, tmp_path: Path) -> None:
    ending = name.rpartition(".")[2]
    line = {"txt": 2, "jsonl": 2, "csv": 3, "tsv": 3}[ending]
    most = 33_554_432 if name == "lines.csv" else SMALL  # no line of the row is too long
    for content, packed in ((LONG_LINES[name], name), (gzip.compress(LONG_LINES[name]), f"{name}.gz")):
        found = contents(read_records(io.BytesIO(content), name=packed, most=SMALL))
        assert found[0] == "the" and found[2:] == ["cat"]
        assert isinstance(found[1], InputError)
        assert found[1].message.startswith(f"line {line}: the size is more than {most:,} bytes")
    (tmp_path / name).write_bytes(LONG_LINES[name])
    with pytest.raises(InputError, match=rf"{name}, line {line}: the size is more than"):  # of training data
        whole_records(tmp_path / name, most=SMALL)
    for end in (b"\n", b""):  # as long as may be
        assert contents(read_records(io.BytesIO(LONG + end), name="in.txt", most=SMALL)) == [LONG.decode()]


@pytest.mark.slow
def test_the_memory_for_a_line_is_bounded_and_for_a_row_where_a_quote_is_missing() -> None:
    line = io.BytesIO(b"x" * (5 * LONGEST) + b"\ncat")
    row = io.BytesIO(b'text\n"the\n' + (b"y" * 999 + b"\n") * (3 * LONGEST // 1000))
    # The reader of the standard library keeps four bytes for each character.
    for file, name, rest, most in ((line, "in.txt", ["cat"], 2.5), (row, "in.csv", [], 7)):
        tracemalloc.start()
        try:
            found = contents(read_records(file, name=name))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert isinstance(found[0], InputError) and found[1:] == rest
        assert f"line {1 + (name == 'in.csv')}" in found[0].message and peak < most * LONGEST


def test_a_long_line_of_a_pipe_fails_when_it_has_arrived() -> None:
    reading, writing = os.pipe()

    def write() -> None:
        with open(writing, "wb") as written:
            written.write(b'{"text": "' + b"x" * LONGEST + b'"}\n{"text": "cat"}\n')

    writer = threading.Thread(target=write)
    writer.start()
    with open(reading, "rb") as file:
        arriving = as_it_comes(file)
        assert len(first_line(arriving)) <= LONGEST + (1 << 16)
        records = read_records(arriving, format="jsonl", name="stdin")
        assert records.ready()
        found = contents(records)
    writer.join()
    assert isinstance(found[0], InputError) and found[1:] == ["cat"]


def test_a_file_of_questions_may_be_one_line() -> None:
    asked = b'{"data": [{"paragraphs": [{"context": "' + b"x" * LONGEST + b'", "qas": [{"question": "who"}]}]}]}'
    (row,) = whole_records(io.BytesIO(asked), format="squad")
    assert row.values == {"question": "who", "context": "x" * LONGEST}


@together(
    "name,content,expected",
    [
        ("in.txt", b"\xef\xbb\xbfthe\r\rcat\r", ["the", "", "cat"]),
        ("in.txt", b"the\rcat", ["the", "cat"]),
        ("in.txt", b"the\r\ncat\rdog\n", ["the", "cat\rdog"]),
        ("in.txt", b"the\rcat\n", ["the\rcat"]),
        ("in.txt", b"the\r", ["the"]),
        ("in.csv", b'text,n\rthe,1\r"cat, ""dog""",2\r', ["the", 'cat, "dog"']),
        ("in.tsv", b"text\tn\rthe\t1\rcat\t2\r", ["the", "cat"]),
        ("in.jsonl", b'{"text": "the"}\r{"text": "cat"}', ["the", "cat"]),
    ],
)
def test_where_there_are_no_newlines_lines_end_with_carriage_returns(
    name: str, content: bytes, expected: list[str]
) -> None:
    assert contents(read_records(io.BytesIO(content), name=name)) == expected
    assert contents(read_records(io.BytesIO(gzip.compress(content)), name=f"{name}.gz")) == expected
    assert contents(read_records(io.BytesIO(lzma.compress(content)), name=f"{name}.xz")) == expected


def test_problems_of_such_lines_have_their_number_and_offset() -> None:
    lines = Lines("in.txt", io.BytesIO(b"the\rcat\r\xff\rdog\r"), lenient=True)
    found = [(line, lines.problem()) for line in lines]
    assert [line for line, problem in found if problem is None] == ["the", "cat", "dog"]
    assert str(found[2][1]).startswith("line 3: byte 0xff at offset 8")
    assert lines.done == 14
