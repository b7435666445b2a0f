"""Files that become something else between the walk that finds them and their reading."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mlxbert
from mlxbert.search import update_events
from mlxbert.search.index import Index, open_index

SECRET = "paris paris paris"


@pytest.fixture(autouse=True)
def deadline() -> Iterator[None]:
    """Ends a test that waits for a FIFO."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def index(tmp_path: Path, tiny: mlxbert.Model) -> Iterator[Index]:
    """A new index of a folder that a link leads to, next to files that are none of its business."""
    for name in ("real/a.txt", "real/inner/b.txt", "real/inner/rows.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\nthe cat sat on the mat\n")
    (tmp_path / "outside").mkdir()
    for name in ("a.txt", "b.txt", "rows.csv"):
        (tmp_path / "outside" / name).write_text(f"text\n{SECRET} {name}\n")
    (tmp_path / "docs").symlink_to("real")
    with open_index(tmp_path / "index.db", model=tiny, paths=[tmp_path / "docs"]) as found:
        yield found


def updated(index: Index, swap: Callable[[], object]) -> dict[str, str]:
    """Brings an index up to date; `swap` is called when the walk is done. Which files could not be read, and why."""
    failed = {}
    for event in index.update():
        if isinstance(event, update_events.Scanned):
            swap()
        elif isinstance(event, update_events.FileFailed):
            failed[Path(event.path).name] = event.reason
    return failed


def texts(index: Index) -> set[str]:
    return {
        hit.text for word in ("cat", "paris") for hit in index.search(word, mode="words", top_k=50, all_chunks=True)
    }


def test_a_link_that_is_named_is_followed(index: Index) -> None:
    assert updated(index, lambda: None) == {} and texts(index)
    assert index.stats().files == 3


@pytest.mark.parametrize("name", ["a.txt", "inner/b.txt", "inner/rows.csv"])
def test_a_file_that_becomes_a_fifo_is_not_waited_for(name: str, index: Index, tmp_path: Path) -> None:
    path = tmp_path / "real" / name

    def swap() -> None:
        path.unlink()
        os.mkfifo(path)

    assert updated(index, swap) == {path.name: "is a FIFO, not a regular file"}
    assert index.stats().files == 2


@pytest.mark.parametrize("name", ["a.txt", "inner/b.txt", "inner/rows.csv"])
def test_a_file_that_becomes_a_link_is_not_followed(name: str, index: Index, tmp_path: Path) -> None:
    path = tmp_path / "real" / name

    def swap() -> None:
        path.unlink()
        path.symlink_to(tmp_path / "outside" / path.name)

    assert [*updated(index, swap)] == [path.name]
    assert not any(SECRET in text for text in texts(index))


def test_a_folder_that_becomes_a_link_is_not_followed(index: Index, tmp_path: Path) -> None:
    def swap() -> None:
        (tmp_path / "real" / "inner").rename(tmp_path / "away")
        (tmp_path / "real" / "inner").symlink_to(tmp_path / "outside")

    assert {*updated(index, swap)} == {"b.txt", "rows.csv"}
    assert not any(SECRET in text for text in texts(index))


def test_records_that_become_a_link_while_they_are_read_are_read_as_they_were(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlxbert.search.documents import table_documents

    look = table_documents._find_text

    def swapped(*given: object) -> object:
        path = tmp_path / "real" / "inner" / "rows.csv"
        path.unlink()
        path.symlink_to(tmp_path / "outside" / "rows.csv")
        return look(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(table_documents, "_find_text", swapped)
    updated(index, lambda: None)
    assert "the cat sat on the mat" in texts(index) and not any(SECRET in text for text in texts(index))
