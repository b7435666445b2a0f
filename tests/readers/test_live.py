"""Pipes: read as they come, without waiting for more than a line."""

import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from mlxbert.errors import InputError
from mlxbert.readers.formats import read_records
from mlxbert.readers.pipes import Pipe, as_it_comes, first_line


@pytest.fixture
def pipe() -> Iterator[tuple[int, BinaryIO]]:
    """The end of a pipe to write to, and the other one."""
    reading, writing = os.pipe()
    with open(reading, "rb") as file:
        yield writing, file


def test_lines_are_there_as_soon_as_they_are_whole(pipe: tuple[int, BinaryIO]) -> None:
    writing, file = pipe
    arriving = as_it_comes(file)
    assert isinstance(arriving, Pipe)
    stream = read_records(arriving, format="txt", name="stdin")
    records = iter(stream)
    assert not stream.ready()
    os.write(writing, b"the\ncat\ndo")
    assert stream.piped and stream.ready() and next(records).text == "the"
    assert stream.ready() and next(records).text == "cat"
    assert not stream.ready()
    os.write(writing, b"g")
    os.close(writing)
    assert stream.ready() and next(records).text == "dog"
    assert stream.ready() and list(stream) == []
    assert not file.closed


def test_a_line_may_be_longer_than_what_is_read_at_a_time(pipe: tuple[int, BinaryIO]) -> None:
    writing, file = pipe
    content = b"w" * 300_000 + b"\n\n" + b"v" * 70_000

    def write() -> None:
        with open(writing, "wb") as written:
            written.write(content)

    writer = threading.Thread(target=write)
    writer.start()
    assert list(as_it_comes(file)) == [b"w" * 300_000 + b"\n", b"\n", b"v" * 70_000]
    writer.join()


def test_the_first_line_stays_to_be_read(pipe: tuple[int, BinaryIO], tmp_path: Path) -> None:
    writing, file = pipe
    os.write(writing, b"the\ncat\n")
    os.close(writing)
    (tmp_path / "in.txt").write_bytes(b"the\ncat\n")
    with (tmp_path / "in.txt").open("rb") as stored:
        for source in (as_it_comes(file), as_it_comes(stored), as_it_comes(io.BytesIO(b"the\ncat\n"))):
            assert [first_line(source), first_line(source)] == [b"the\n", b"the\n"]
            assert list(source) == [b"the\n", b"cat\n"]


def test_what_cannot_be_read_is_told_by_whoever_reads() -> None:
    with open(os.devnull, "wb") as file:  # not a file to read from
        arriving = as_it_comes(file)
        assert isinstance(arriving, Pipe) and arriving.ready() and first_line(arriving) == b""
        with pytest.raises(InputError, match="stdin: cannot be read"):
            list(read_records(arriving, format="txt", name="stdin"))
