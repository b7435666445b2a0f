"""Records too long for the memory, each a failure in its place; and lines that end with carriage returns."""

import gzip
import io
import lzma
import os
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import InputError
from mlxbert.readers.formats import read_records
from mlxbert.readers.pipes import LONGEST, as_it_comes, first_line
from mlxbert.readers.text_lines import Lines
from tests.helpers.cases import together
from tests.readers.test_records import contents, whole_records

SMALL = 2**14  # what a line may have in most of these tests
LONG = b"x" * SMALL  # with anything around it, too long a line
FILES = {
    "in.txt": b"the\n" + LONG + b"x\ncat",
    "in.jsonl": b'{"text": "the"}\n{"text": "' + LONG + b'"}\n{"text": "cat"}\n',
    "blank.jsonl": b'{"text": "the"}\n' + b" " * SMALL + b'{"text": ""}\n{"text": "cat"}\n',
    "in.csv": b"n,text\n1,the\n2," + LONG + b"\n3,cat\n",
    "quoted.csv": b'n,text\n1,the\n2,"a ""b"", ' + LONG + b'\n"\n3,cat\n',
    "lines.csv": b'n,text\n1,the\n2,"' + (b"x" * 1023 + b"\n") * (SMALL // 1024) + b'1,""no""\n"\n3,cat\n',
    "in.tsv": b'n\ttext\n1\tthe\n2\t"' + LONG + b"\n3\tcat\n",
}


class Endless(io.RawIOBase):
    """A file of this many bytes without a newline, and a line."""

    def __init__(self, size: int) -> None:
        self.left = size

    def readable(self) -> bool:
        return True

    def readinto(self, target: bytearray) -> int:  # type: ignore[override]
        if self.left <= 0:
            return 0
        data = (b"x" * min(len(target), self.left - 4) or b"\ncat")[: len(target)]
        target[: len(data)] = data
        self.left -= len(data)
        return len(data)


@pytest.fixture
def small_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may be as long as lines."""
    monkeypatch.setattr("mlxbert.readers.delimited.LONGEST", SMALL)


@together("name", FILES)
@pytest.mark.usefixtures("small_rows")
def test_a_record_that_is_too_long_fails_and_the_rest_is_read(name: str) -> None:
    ending = name.rpartition(".")[2]
    found = contents(read_records(io.BytesIO(FILES[name]), format=ending, name=name, most=SMALL))
    assert found[0] == "the" and found[2:] == ["cat"]
    assert isinstance(found[1], InputError)
    line = {"txt": 2, "jsonl": 2, "csv": 3, "tsv": 3}[ending]
    most = 33_554_432 if name == "lines.csv" else SMALL  # no line of the row is too long
    assert found[1].message.startswith(f"line {line}: the size is more than {most:,} bytes")


@together("pack,ending", [(gzip.compress, "gz"), (lzma.compress, "xz")])
def test_so_does_one_that_is_long_when_it_is_unpacked(pack: Callable[[bytes], bytes], ending: str) -> None:
    found = contents(read_records(io.BytesIO(pack(FILES["in.txt"])), name=f"in.txt.{ending}", most=SMALL))
    assert [found[0], found[2]] == ["the", "cat"] and isinstance(found[1], InputError)


@pytest.mark.slow
def test_the_memory_for_a_line_is_bounded() -> None:
    tracemalloc.start()
    try:
        file: Any = Endless(5 * LONGEST)
        found = contents(read_records(io.BufferedReader(file), format="txt", name="in.txt"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(found[0], InputError) and found[1:] == ["cat"]
    assert peak < 2.5 * LONGEST


@pytest.mark.slow
def test_the_memory_for_a_row_is_bounded_where_a_quote_is_missing() -> None:
    lines = io.BytesIO(b'text\n"the\n' + (b"y" * 999 + b"\n") * (3 * LONGEST // 1000))
    tracemalloc.start()
    try:
        found = contents(read_records(lines, format="csv", name="in.csv"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == 1 and isinstance(found[0], InputError) and "line 2" in found[0].message
    assert peak < 7 * LONGEST  # the reader of the standard library keeps four bytes for each character


def test_a_line_that_is_as_long_as_may_be_is_read() -> None:
    for end in (b"\n", b""):
        long = b"x" * LONGEST
        assert contents(read_records(io.BytesIO(long + end), format="txt", name="in.txt")) == [long.decode()]


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


@pytest.mark.usefixtures("small_rows")
def test_training_data_with_such_a_line_are_refused_with_its_place(tmp_path: Path) -> None:
    for name in ("in.csv", "lines.csv"):
        (tmp_path / name).write_bytes(FILES[name])
        with pytest.raises(InputError, match=rf"{name}, line 3: the size is more than"):
            whole_records(tmp_path / name, most=SMALL)


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
