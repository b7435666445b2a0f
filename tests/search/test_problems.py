"""The problems of an index: what was left out, cut or guessed, with its place and the reason."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mlxbert
from mlxbert.errors import StoreError
from mlxbert.search.documents.document import Document, ReadProblem
from mlxbert.search.documents.document_kinds import KINDS, DocumentKind
from mlxbert.search.index import Index, open_index
from mlxbert.search.index_problems import ProblemList, grouped, pattern_of
from mlxbert.search.store import IndexProblem
from mlxbert.search.update_events import FileIndexed, IndexUpdated
from tests.helpers.indexes import build
from tests.helpers.tiny import save, with_nan

FIVE = b'{"text": "the cat"}\n{"text": "a dog"}\n{"text": \n{"text": "paris"}\n{"text": "tokyo"}\n'
FILES = {
    "five.jsonl": FIVE,
    "binary": b"\0\1\2",
    "broken.ipynb": b"{",
    "empty.txt": b"",
    "guessed.csv": b"id,remark\n1,the cat sat\n2,\n",
    "lost.csv": b"text,id\nthe lamp is broken, please,1\nmilk,2\n",
    "good.md": b"# The city\n\nthe cat sat\n",
    ".hidden": b"the cat",
    "space.md": b" \n\n",
}
EXPECTED = {
    ("binary", "", "left out"), ("broken.ipynb", "", "left out"), ("empty.txt", "", "left out"),
    ("space.md", "", "left out"), ("five.jsonl", "line 3", "left out"), ("guessed.csv", "", "guessed"),
    ("guessed.csv", "line 3", "left out"), ("lost.csv", "line 2", "left out"),
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "docs").mkdir()
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
        os.utime(folder / name, (1_600_000_000, 1_600_000_000))
    return folder


@pytest.fixture
def index(tmp_path: Path, folder: Path, model: mlxbert.Model) -> Iterator[Index]:
    with build(tmp_path / "index.db", folder, model) as made:
        yield made


def places(index: Index) -> set[tuple[str, str, str]]:
    return {(Path(problem.path or "").name, problem.place, problem.kind) for problem in index.problems()}


def last(index: Index) -> IndexUpdated:
    *_, event = index.update()
    assert isinstance(event, IndexUpdated)
    return event


def test_everything_that_was_left_out_or_guessed_is_a_problem(index: Index, tmp_path: Path) -> None:
    assert places(index) == EXPECTED
    assert all(problem.reason and problem.more == 0 for problem in index.problems())
    assert [problem.path for problem in index.problems()] == sorted(problem.path or "" for problem in index.problems())
    for happened in (last(index), last(index)):
        assert happened.problems == {"left out": 7, "guessed": 1} == index.stats().problems
    assert index.stats().documents == 4 + 1 + 1 + 1  # those without a chunk are none
    index.check()


def test_problems_follow_their_file(index: Index, folder: Path) -> None:
    (folder / "five.jsonl").write_bytes(FIVE.replace(b'{"text": \n', b"\n"))
    (folder / "binary").write_bytes(b"the dog")
    (folder / "lost.csv").unlink()
    (folder / "good.md").write_bytes(b"\0")
    [*index.update()]
    changed = {"five.jsonl", "binary", "lost.csv"}
    assert places(index) == {entry for entry in EXPECTED if entry[0] not in changed} | {("good.md", "", "left out")}
    folder.rename(folder.with_name("moved"))
    index.move(folder, folder.with_name("moved"))
    assert {Path(problem.path or "").parent.name for problem in index.problems()} == {"moved"}
    assert last(index).problems == index.stats().problems and index.stats().problems["left out"] == 5
    index.check()


def test_a_file_without_a_document_is_a_problem(tmp_path: Path, model: mlxbert.Model, monkeypatch: Any) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.mine").write_bytes(b"x")
    left_out = Document("", "The subject", place="message 1", problems=(ReadProblem("left out", "an attachment"),))
    read: list[Document] = []
    monkeypatch.setitem(KINDS, "mine", DocumentKind(lambda data, name: iter(read), (".mine",)))
    with open_index(tmp_path / "index.db", model=model, paths=[tmp_path / "docs"]) as index:
        assert [event.documents for event in index.update() if isinstance(event, FileIndexed)] == [0]
        assert places(index) == {("a.mine", "", "left out")}
        read += [left_out, Document("the cat", place="message 2", problems=(ReadProblem("cut", "a \ud800 picture"),))]
        (tmp_path / "docs" / "a.mine").write_bytes(b"xy")
        assert [event.documents for event in index.update() if isinstance(event, FileIndexed)] == [1]
        assert places(index) == {("a.mine", "message 1", "left out"), ("a.mine", "message 2", "cut")}


def test_a_text_that_the_tokenizer_drops_is_a_problem(index: Index, folder: Path) -> None:
    (folder / "dropped.jsonl").write_text('{"text": "\\u200b\\u200d"}\n{"text": "the cat"}\n')
    [*index.update()]
    assert ("dropped.jsonl", "line 1", "left out") in places(index)


def test_a_text_without_numbers_costs_only_its_file(tmp_path: Path, folder: Path) -> None:
    """The model's vector of one word is NaN."""
    (folder / "mad.txt").write_text("a dog in tokyo")
    model = mlxbert.load(with_nan(save(tmp_path / "model"), "tokyo"), dtype="float32")
    (folder / "five.jsonl").unlink()
    with build(tmp_path / "index.db", folder, model) as index:
        assert [Path(path).name for path, _ in index.stats().failed if "mad" in path] == ["mad.txt"]
        assert [Path(str(hit.path)).name for hit in index.search("the cat sat", top_k=1)] == ["good.md"]


def test_problems_of_added_records(index: Index) -> None:
    before = index.stats().documents
    assert index.add([{"id": "a", "text": ""}, {"id": "b", "text": "milk"}, {"id": "c", "text": " "}]) == 3
    added = [problem for problem in index.problems() if problem.path is None]
    assert [(problem.place, problem.kind) for problem in added] == [("a", "left out"), ("c", "left out")]
    index.add([{"id": "x" * 1000, "text": ""}])
    assert len(index.problems()) == len(EXPECTED) + 3 and index.remove(["x" * 1000]) == 1
    index.add([{"id": "a", "text": ""}, {"id": "a", "text": "milk"}])
    assert index.remove(["c"]) == 1 and index.stats().documents == before + 2
    assert not [problem for problem in index.problems() if problem.path is None]


def test_a_reason_that_no_database_stores(index: Index, folder: Path) -> None:
    (folder / "half.jsonl").write_text('{"\\ud800": 3}\n')
    [*index.update()]
    assert ("half.jsonl", "", "left out") in places(index)
    index.check()


def test_a_million_problems_are_a_few(index: Index, folder: Path) -> None:
    rows = "".join(f"{number},a,b\nx,{number}\n" for number in range(500))
    (folder / "lost.csv").write_text(f"text,id\n{rows}")
    [*index.update()]
    lost = [problem for problem in index.problems() if problem.path == str(folder / "lost.csv")]
    assert len(lost) == 100 and [problem.more for problem in lost] == [0] * 99 + [400]
    assert (lost[0].place, lost[99].place) == ("line 2", "line 200")
    assert index.stats().problems["left out"] == 7 - 1 + 500


def test_problems_are_bounded_whatever_their_reasons() -> None:
    listed = ProblemList("/a")
    for number in range(3000):
        word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        listed.add(f"line {number}", ReadProblem("left out", f"{word} " + "x" * 1000))
    kept = listed.kept()
    assert len(kept) == 99 + 1 + 100 and sum(1 + problem.more for problem in kept) == 3000
    assert max(len(problem.reason) for problem in kept) <= 500


def test_groups() -> None:
    problems = [
        IndexProblem("/a", "line 2", "left out", "the row has 3 columns, but the header has 2"),
        IndexProblem("/b", "", "guessed", "the column of the text is probably 'body'"),
        IndexProblem("/a", "line 9", "left out", "the row has 4 columns, but the header has 2", 5),
    ]
    first, second = grouped(problems)
    assert (first.kind, first.reason, first.count) == ("left out", "the row has … columns, but the header has …", 7)
    assert (second.reason, second.count) == ("the column of the text is probably 'body'", 1)
    assert pattern_of("byte 0xe9 at offset 12, line 3: no") == pattern_of("byte 0x81 at offset 7, line 45: no")


def test_a_damaged_problem_is_refused(index: Index) -> None:
    for change in ("kind = x'61'", "more = 'x'", "reason = CAST(x'6100' AS TEXT)"):
        with pytest.raises(StoreError), index.store.writing():
            index.store._connection.execute(f"UPDATE problems SET {change}")  # type: ignore[attr-defined]
            index.problems()
    with index.store.writing():
        index.store._connection.execute("UPDATE problems SET file = 99999")  # type: ignore[attr-defined]
    with pytest.raises(StoreError, match="problem"):
        index.check()
