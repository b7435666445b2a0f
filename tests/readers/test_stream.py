"""A stream of records: each result has its record, and windows of what is computed of them."""

import io
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import given, strategies as st

from mlxbert.errors import InputError
from mlxbert.readers.formats import read_records
from mlxbert.readers.parsing import ReadOptions
from mlxbert.readers.pipes import Opened, Pipe, as_it_comes, first_line
from mlxbert.readers.stream import RecordSource, RecordStream, windows
from mlxbert.results.result import Failure
from tests.helpers.rooms import needs
from tests.readers.test_records import write
from tests.text.test_batch import QUICK


class Arriving(Opened):
    """A pipe, which says itself whether its next record is there."""

    piped = True

    def __init__(self, arrived: Callable[[], bool] = lambda: True) -> None:
        self._arrived = arrived

    def ready(self) -> bool:
        return self._arrived()


def stream_of(texts: Iterable[str], opened: Opened | None = None) -> RecordStream:
    items = ((f"line {number}", {"text": text}) for number, text in enumerate(texts, 1))
    return RecordStream([RecordSource("in.txt", items, opened=opened or Opened(), wanted=ReadOptions(("text",)))])


def test_each_result_has_its_record(tmp_path: Path) -> None:
    first = read_records(write(tmp_path / "a.csv", b"id,text\n7,the\n8\n"), with_id=True)
    second = read_records(write(tmp_path / "b.txt", b"cat\ndog\n"))
    stream = RecordStream([*first.sources, *second.sources], read_as=["more"], pair="mat")
    assert stream.read_as == ("csv", "text", "txt", "text", "more") and len(stream.files) == 2
    items = [*stream.items()]
    assert isinstance(items.pop(1), InputError) and items == [("the", "mat"), ("cat", "mat"), ("dog", "mat")]
    assert (stream.done, stream.size, stream.finished) == (24, 24, 0)
    found = [(result, record, stream.finished) for record, result in stream.with_results("wxyz")]
    assert [result for result, _, _ in found] == [*"wxyz"]
    places = [("a.csv", 2), ("a.csv", 3), ("b.txt", 1), ("b.txt", 2)]
    assert [record.where for _, record, _ in found] == [f"{tmp_path / name}, line {line}" for name, line in places]
    assert [dict(record.values) for _, record, _ in found] == [{"id": "7"}, {}, {}, {}]
    assert [finished for _, _, finished in found] == [14, 16, 20, 24]


def test_records_whose_results_are_there_are_passed_over(tmp_path: Path) -> None:
    stream = read_records(write(tmp_path / "a.txt", b"the\ncat\ndog\n"))
    assert (stream.skip(2), stream.finished) == (2, 8)
    found = [(record.text, result) for record, result in stream.with_results(map(len, stream.items()))]
    assert found == [("dog", 3)] and stream.skip(5) == 0


def test_a_failure_has_the_place_of_its_record(tmp_path: Path) -> None:
    stream = read_records(write(tmp_path / "a.txt", b"the\ncat\n"))
    problem = InputError("too long", hint="split it")
    for record in stream:
        failure = stream.checked(record, Failure(0, problem), 5)
        assert (failure.index, failure.error.hint) == (5, "split it")
        assert failure.error.message == f"{tmp_path / 'a.txt'}, {record.place}: too long"
        assert stream.checked(record, "fine") == "fine"
    strict = RecordStream(stream.sources, strict=True)
    with pytest.raises(InputError, match=rf"input 6: {tmp_path / 'a.txt'}, line 2: too long"):
        strict.checked(record, Failure(1, problem), 5)


DAMAGED = {
    "in.jsonl": (
        b'{"text": "the"}\n{"text" 1}\n',
        "line 2: the line is not valid JSON (Expecting ':' delimiter, column 9)",
    ),
    "in.txt": (b"the\nc\xe9t\n", "line 2: byte 0xe9 at offset 5 is not UTF-8"),
}


@needs("train")
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_record_is_one_error_for_all_who_read_it(name: str, tmp_path: Path) -> None:
    from mlxbert.train.data.labelled_rows import read_rows
    from mlxbert.train.pretraining.corpus.documents import DocumentReader

    path = write(tmp_path / name, DAMAGED[name][0])
    expected = f"{path}, {DAMAGED[name][1]}"
    (problem,) = [record.located(record.problem) for record in read_records(path) if record.problem is not None]
    assert problem.message == expected
    with pytest.raises(InputError) as caught:
        read_rows(path)
    assert caught.value.message == expected
    corpus = DocumentReader([path])
    assert len([*corpus]) == 1 and corpus.place.problems == (expected,)


@needs("search")
def test_a_file_without_a_record_to_search_says_why(tmp_path: Path) -> None:
    from mlxbert.search.documents.document import UnreadableError
    from mlxbert.search.documents.document_kinds import read_documents
    from mlxbert.search.documents.table_documents import DocumentColumns

    path = write(tmp_path / "in.jsonl", json.dumps({"body": 3}).encode())
    with pytest.raises(UnreadableError) as caught:
        [*read_documents(path, b"", "records", DocumentColumns("body"))]
    assert caught.value.message == "line 1: field 'body' is a number, expected a string"


@QUICK
@given(st.lists(st.integers(), max_size=40), st.integers(1, 50))
def test_windows_are_consecutive_and_full_but_for_the_last(items: list[int], size: int) -> None:
    found = [window for window, _ in windows(iter(items), size)]
    assert [item for window in found for item in window] == items
    assert all(len(window) == size for window in found[:-1]) and all(found)


@QUICK
@given(st.lists(st.integers(0, 2**13), max_size=60), st.sampled_from([1, 2, 8]), st.sampled_from([1, 4]))
def test_an_interrupted_run_resumes_at_the_end_of_any_window(lengths: list[int], usual: int, larger: int) -> None:
    size = usual * larger

    def ends(first: int) -> list[int]:
        """The records that end a window in a run that has the results of the first ones."""
        stream, found = stream_of("x" * length for length in lengths), list[int]()
        stream.skip(first)
        results = (item for window, _ in windows(stream, size, usual) for item in window)
        for number, _ in enumerate(stream.with_results(results), first + 1):
            found += [number] * stream.window_ends
        return found

    whole = ends(0)
    assert all(ends(done) == whole[number:] for number, done in enumerate(whole, 1))


def test_windows_of_long_texts_are_shorter() -> None:
    long = "x" * 2**11
    assert [len(window) for window, _ in windows(iter(["a", *[long] * 8, *["b"] * 12]), 8)] == [5, 4, 8, 4]
    pairs = [(str(number), long) for number in range(9)]
    assert [len(window) for window, _ in windows(iter(pairs), 8)] == [4, 4, 1]
    bad = InputError("no text")
    assert [len(window) for window, _ in windows(iter([bad, *[long] * 4]), 4)] == [3, 2]
    endless = iter(range(10**9))  # of which no more is taken than needed
    assert (next(windows(endless, 3)), next(endless)) == (([0, 1, 2], True), 3)


SIZES = {1: 4, 2: 8, 3: 16}


@QUICK
@given(st.lists(st.integers(0, 2**19), max_size=200), st.sampled_from([*SIZES]), st.booleans())
def test_larger_windows_hold_no_more_text_than_usual_ones(lengths: list[int], usual: int, early: bool) -> None:
    texts = ["x" * length for length in lengths]
    size = SIZES[usual]
    found = [window for window, _ in windows(iter(texts), size, usual, early=early)]
    assert [*chain(*found)] == texts
    most = 2**12 * usual
    for window in found:
        assert len(window) <= usual or sum(map(len, window[:-1])) <= most
    starts = {sum(map(len, found[:number])) for number in range(len(found))}
    assert not early or len(texts) <= usual or usual in starts


def test_texts_that_items_have_in_common_count_for_each() -> None:
    context = "x" * 2**12
    for items in ([(str(number), context) for number in range(40)], [["the", context]] * 40):
        assert [len(window) for window, _ in windows(iter(items), 40, 4)] == [4] * 10
        assert [len(window) for window, _ in windows(iter(items), 40)] == [10] * 4


def test_a_pipe_has_usual_windows_where_somebody_waits() -> None:
    for early, expected in ((True, [2] * 5), (False, [8, 2])):
        piped = stream_of(map(str, range(10)), Arriving())
        assert [len(window) for window, _ in windows(piped, 8, 2, early=early)] == expected
    in_a_file = stream_of(map(str, range(18)))
    assert [len(window) for window, _ in windows(in_a_file, 8, 2, early=True)] == [2, 6, 8, 2]


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
