"""Killed copies, builders at once, and full disks: nothing is lost or twice. `tests/test_kills.py` kills builds."""

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mlxbert.errors import BusyError, StoreError
from mlxbert.search.index import open_index
from tests.helpers.indexes import Contents, build, check_same, contents, write_files
from tests.helpers.object_storage import NEEDS_LANCE
from tests.helpers.tiny import save
from tests.search.writers import check_hits

pytestmark = pytest.mark.slow
FILES = 24
# Announces every event; after the one whose number it is given it waits for its end. Few chunks are in memory, and few
# vectors wait for their file.
CHILD = """
import sys
from mlxbert.search import index_writer as writer
from mlxbert.search.index import open_index
writer._GROUP, writer._SPOOL_BYTES = 5, 200
path, folder, model, last = *sys.argv[1:4], int(sys.argv[4])
index = open_index(path, model=model, paths=[folder])
print("open", flush=True)
for number, event in enumerate(index.update()):
    print(type(event).__name__, flush=True)
    if number == last:
        sys.stdin.read()
"""
# Announces every file that it copies, and waits for its end before the one whose number it is given.
COPIER = """
import itertools, sys
from mlxbert.search import index_stores
from mlxbert.search.index import open_index
calls, usual = itertools.count(), index_stores._copy_file
def announced(*arguments):
    print(number := next(calls), flush=True)
    if number == int(sys.argv[3]):
        sys.stdin.read()
    usual(*arguments)
index_stores._GROUP, index_stores._copy_file = 5, announced
open_index(sys.argv[1]).copy(sys.argv[2])
"""


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder in memory, where there is such a disk."""
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))
    path = base / f"mlxbert-kills-{os.getpid()}"
    path.mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def model(place: Path) -> Path:
    """The folder of a tiny model."""
    return save(place / "model")


def start(path: Path | str, folder: Path, model: Path, last: int) -> "subprocess.Popen[str]":
    """Updates an index in another process."""
    command = [sys.executable, "-c", CHILD, *map(str, (path, folder, model, last))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(path: Path | str, folder: Path, model: Path, expected: Contents, stats: tuple[int, ...]) -> None:
    """The same command once more gives what an undisturbed build gives."""
    with open_index(path, model=model, paths=[folder]) as index:
        index.check()
        list(index.update())
        index.check()
        now = index.stats()
        assert (now.files, now.documents, now.chunks) == stats
        found = contents(index)
        check_same(found, expected)


@pytest.mark.parametrize("prefix", ["", pytest.param("lance:", marks=NEEDS_LANCE)])
def test_a_killed_copy_is_unfinished(place: Path, model: Path, prefix: str) -> None:
    name = f"copied{len(prefix)}"
    target = f"{prefix}{place / name}-to"
    with build(place / f"{name}.db", write_files(place / name, FILES), model) as index:
        for number in (0, FILES // 2, FILES):
            command = [sys.executable, "-c", COPIER, str(index.path), target, str(number)]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout and [int(child.stdout.readline()) for _ in range(number + 1)][-1] == number
                if not prefix:
                    with pytest.raises(BusyError):
                        index.copy(target)
                child.kill()
            assert child.returncode == -signal.SIGKILL
            with pytest.raises(StoreError, match="not finished"):
                open_index(target, model=model)
        index.copy(target)
        with open_index(target, model=model) as copy:
            copy.check()
            assert copy.about == index.about and copy.store.files() == index.store.files()
            assert contents(copy).vectors.keys() == contents(index).vectors.keys()


def test_two_builders_at_once(place: Path, model: Path) -> None:
    folder, path = write_files(place / "two", FILES), place / "two.db"
    with build(place / "two-whole.db", folder, model) as whole:
        expected, stats = contents(whole), whole.stats()
    children = [start(path, folder, model, -1) for _ in range(4)]
    statuses = []
    for child in children:
        _, _ = child.communicate()
        statuses.append(child.returncode)
    assert 0 in statuses
    with start(path, folder, model, 1) as first:
        assert first.stdout
        assert [first.stdout.readline() for _ in range(2)][1] == "Scanned\n"
        with open_index(path, model=model) as index, pytest.raises(BusyError):
            list(index.update())
        first.kill()
    finish(path, folder, model, expected, (stats.files, stats.documents, stats.chunks))


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[None]:
    """A disk of some bytes."""
    path.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """No file may become larger."""
    usual, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, usual)


@pytest.mark.parametrize("way", ["disk", "file"])
def test_a_full_disk(place: Path, model: Path, way: str, tmp_path: Path) -> None:
    folder = write_files(place / f"full-{way}", 150)
    with build(place / f"full-{way}.db", folder, model) as whole:
        expected, stats = contents(whole), whole.stats()
    if way == "disk":
        with small_disk(tmp_path / "disk", 400 * 1024):
            path = tmp_path / "disk" / "index.db"
            with pytest.raises(StoreError, match="no space left"):
                build(path, folder, model)
            check_part(path, model, stats.files)
            subprocess.run(["mount", "-o", "remount,size=64m", tmp_path / "disk"], check=True)
            finish(path, folder, model, expected, (stats.files, stats.documents, stats.chunks))
        return
    path = tmp_path / "index.db"
    with small_files(300 * 1024), pytest.raises(StoreError, match=r"no space left|cannot be read or written"):
        build(path, folder, model)
    check_part(path, model, stats.files)
    finish(path, folder, model, expected, (stats.files, stats.documents, stats.chunks))


def check_part(path: Path, model: Path, files: int) -> None:
    """An index of some of the files is whole."""
    with open_index(path, model=model) as index:
        index.check()
        assert 0 < index.stats().files < files
        check_hits(index)


def test_a_disk_that_cannot_be_written(place: Path, model: Path, tmp_path: Path) -> None:
    folder = write_files(place / "read-only", 8)
    with small_disk(tmp_path / "disk", 2**22):
        path = tmp_path / "disk" / "index.db"
        with build(path, folder, model) as index:
            expected = contents(index)
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "disk"], check=True)
        with open_index(path, model=model) as index:
            check_same(contents(index), expected)
            index.check()
            with pytest.raises(StoreError, match="cannot be written"):
                list(index.update())
        with pytest.raises(StoreError):
            open_index(tmp_path / "disk" / "new.db", model=model)
