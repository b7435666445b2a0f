"""Quotes in .tsv files: those that enclose fields, as programs write them, and those that are part of the text."""

import csv
import io
import logging
from pathlib import Path
from typing import Any

import pytest

from mlxbert.errors import InputError
from mlxbert.readers.formats import read_records
from tests.helpers.cases import together
from tests.readers.test_records import whole_records

TEXTS = ['He said "no".', '"Never," she said.', "plain", "with\ttab", "two\nlines", '"', "a, b", '"all of it"', ""]


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
    rows: list[list[Any]] = [[text, number] for number, text in enumerate(TEXTS)]
    for count in (1, 3, len(TEXTS)):
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


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    content = io.BytesIO(b'text\tn\n"a ""b"""\t1\n')
    assert [record.text for record in read_records(content, format="tsv")] == ['a "b"']


@together("line,header", [("sep=,", True), ("sep=;", True), ("SEP=,", False), ("sep=\t", True)])
def test_a_line_that_names_the_separator_is_pointed_out(line: str, header: bool, tmp_path: Path) -> None:
    for name in ("in.csv", "in.tsv"):
        (tmp_path / name).write_text(f"{line}\ntext,label\na,b\n", encoding="utf-8")
        with pytest.raises(InputError, match=r"line 1: '.*' names the separator") as caught:
            whole_records(tmp_path / name, header=header)
        assert caught.value.hint and "delete this line" in caught.value.hint
