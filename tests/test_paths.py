"""What stands at a path: regular files are read and written, and nothing else is replaced or waited for."""

import io
import os
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from mlxbert.durable_files import HashedFile, acquire_lock, atomic_write, sha256, write_record
from mlxbert.errors import InputError
from mlxbert.paths import file_to_write, open_regular, replace_file
from mlxbert.readers.input_files import open_source, stamp_of
from mlxbert.readers.vector_files import read_vectors
from tests.helpers.program import call
from tests.helpers.rooms import needs


def _new(path: Path) -> Path:
    path.write_text("new")
    return path


def _append(path: Path) -> None:
    with open(path, "ab", opener=open_regular):
        pass


WRITES: dict[str, Callable[[Path], object]] = {
    "write_record": lambda path: write_record(path, {}),
    "HashedFile": lambda path: HashedFile(path).close(),
    "acquire_lock": lambda path: acquire_lock(path, "test").close(),
    "replace_file": lambda path: replace_file(_new(path.with_name("new")), path),
    "append": _append,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_fifo_is_neither_replaced_nor_waited_for(write: Callable[[Path], object], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mine")
    before = (tmp_path / "mine").stat().st_ino
    with pytest.raises(OSError, match="FIFO, not a regular file"):
        write(tmp_path / "mine")
    assert (tmp_path / "mine").stat().st_ino == before


def test_a_fifo_where_a_file_is_to_be_made_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.unfinished")
    with pytest.raises(OSError, match="FIFO"):
        write_record(tmp_path / "x", {})
    assert stat.S_ISFIFO((tmp_path / "x.unfinished").stat().st_mode)


def test_what_came_while_a_file_was_written_stays(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="FIFO"), atomic_write(tmp_path / "x") as file:
        file.write(b"content")
        os.mkfifo(tmp_path / "x")
    assert stat.S_ISFIFO((tmp_path / "x").stat().st_mode) and [*tmp_path.iterdir()] == [tmp_path / "x"]


def test_a_link_stays_and_its_file_is_replaced_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "x").symlink_to("far/real")
    for content in (b"first", b"second"):
        with atomic_write(tmp_path / "x") as file:
            file.write(content)
        assert (tmp_path / "x").is_symlink() and (tmp_path / "far" / "real").read_bytes() == content
    assert file_to_write(tmp_path / "x") == (tmp_path / "far" / "real").resolve()
    assert {path.name for path in tmp_path.rglob("*")} == {"far", "real", "x"}


def test_nothing_is_written_through_a_link_with_the_name_of_an_unfinished_file(tmp_path: Path) -> None:
    (tmp_path / "x.unfinished").symlink_to("other")
    (tmp_path / "other").write_text("precious")
    with pytest.raises(OSError, match="link"):
        write_record(tmp_path / "x", {})
    assert (tmp_path / "other").read_text() == "precious"


def test_a_pipe_that_a_link_of_the_system_names_is_not_a_new_file() -> None:
    read, write = os.pipe()
    try:
        with pytest.raises(OSError, match="FIFO"):
            file_to_write(f"/dev/fd/{write}")
    finally:
        os.close(read)
        os.close(write)


def test_a_file_that_becomes_a_fifo_before_it_is_opened_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opening = _new(tmp_path / "x"), os.open

    def swapped(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        path.unlink()
        os.mkfifo(path)
        return opening(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", swapped)
    with pytest.raises(OSError, match="FIFO, not a regular file"):
        sha256(path)


@pytest.mark.parametrize("source", ["file", pytest.param("folder", marks=needs("train"))])
def test_a_file_that_becomes_a_fifo_before_a_reader_opens_it_is_an_error(source: str, tmp_path: Path) -> None:
    path = tmp_path / "labels" / "a" / "x.txt"
    path.parent.mkdir(parents=True)
    _new(path)
    if source == "file":
        opening: Callable[[], object] = partial(open_source, path, stamp=stamp_of(path))  # it was hashed before
    else:
        from mlxbert.train.data.labelled_rows import LabelFolder

        opening = partial(list, LabelFolder(tmp_path / "labels", "labels", "utf-8"))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="is a FIFO"):
        opening()


@needs("search")
def test_vectors_and_indexes_are_not_read_from_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(InputError, match="is a FIFO"):
        read_vectors(tmp_path / "x.npy")
    call("indexes", "show", str(tmp_path / "x.npy"), MLXBERT_DATA=str(tmp_path)).fails(1, "no index")


def test_files_are_opened_as_always(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sha256(tmp_path / "x")
    with pytest.raises(IsADirectoryError):
        sha256(tmp_path)
    with open(tmp_path / "x", "wb", opener=open_regular) as file:
        assert isinstance(file, io.BufferedWriter)
        file.write(b"content")
    assert (tmp_path / "x").read_bytes() == b"content"
