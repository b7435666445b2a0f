"""Builds and updates that are killed, builders at once, and disks that are full: nothing is lost, nothing is twice."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import mlxbert
from mlxbert.errors import BusyError, StoreError
from mlxbert.search.index import Index, open_index
from mlxbert.search.index_stores import exists
from tests.helpers.cases import ALL
from tests.helpers.indexes import QUERIES, Contents, build, check_same, contents, copy_files, passage, write_files
from tests.helpers.object_storage import NEEDS_LANCE
from tests.helpers.sparse_folder import save_splade
from tests.helpers.tiny import save

pytestmark = pytest.mark.slow
KILLS = 50 if ALL else 2
FILES = 16
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
    return save(place / "model")


def change_files(folder: Path) -> None:
    for number in range(0, FILES, 4):
        (folder / f"{number:03}.md").write_text(f"# New\n\n{passage(('changed', number))}\n")
    (folder / "001.md").rename(folder / "moved.md")
    shutil.copy(folder / "002.md", folder / "copy.md")
    (folder / "spoiled.jsonl").write_text('{"text": "the dog"}\n{"text": 3}\n' * 9)
    for number in (3, 5, 6):
        (folder / f"{number:03}.md").unlink()
    for number in range(4):
        (folder / f"added{number}.md").write_text(passage(("added", number), 50))


def start(path: Path | str, folder: Path, model: Path, last: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", CHILD, *map(str, (path, folder, model, last))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def searched(path: Path | str, model: Path) -> Iterator[list[str]]:
    """Searches an index, opened again and again, as long as another process updates it; adds what was searched for."""
    done, queries, problems = threading.Event(), list[str](), list[BaseException]()

    def search() -> None:
        try:
            loaded = mlxbert.load(model, dtype="float32")
            while not done.wait(0 if exists(path) else 0.001):
                if exists(path):
                    with open_index(path, model=loaded) as index:
                        for query in QUERIES[:2]:
                            check_hits(index, query)
                            queries.append(query)
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=search)
    thread.start()
    try:
        yield queries
    finally:
        done.set()
        thread.join()
    assert not problems, problems


def check_hits(index: Index, query: str) -> None:
    hits = index.search(query, top_k=1000, all_chunks=True)
    assert len({hit.chunk for hit in hits}) == len(hits)
    seen = Counter((hit.path, hit.place, hit.start_line, hit.text) for hit in hits)
    assert all(count == 1 for count in seen.values())


def killed(path: Path | str, folder: Path, model: Path, number: int, seconds: float) -> tuple[int, int]:
    """Kills an update some seconds after an event; returns its status, and how many searches there were meanwhile."""
    with start(path, folder, model, number) as child:
        assert child.stdout and child.stdout.readline() == "open\n"
        with searched(path, model) as queries:
            assert all(child.stdout.readline() for _ in range(number))
            time.sleep(seconds)
            child.send_signal(signal.SIGKILL)
    return child.returncode, len(queries)


def finish(path: Path | str, folder: Path, model: Path, expected: Contents, stats: tuple[int, ...]) -> None:
    """The same command once more gives what an undisturbed build gives."""
    with open_index(path, model=model, paths=[folder]) as index:
        index.check()
        list(index.update())
        index.check()
        now = index.stats()
        assert (now.files, now.documents, now.chunks) == stats
        found = contents(index)
        if str(path).startswith("lance:"):  # its BM25 counts removed chunks until their part of the table is merged
            for content in (found, expected):
                for key in [key for key in content.hits if key[1] == "words"]:
                    del content.hits[key]
        check_same(found, expected)


@pytest.mark.parametrize("prefix", ["", pytest.param("lance:", marks=[NEEDS_LANCE, pytest.mark.weekly])])
@pytest.mark.parametrize("kind", ["build", "update"])
def test_kills(place: Path, model: Path, kind: str, prefix: str) -> None:
    kind += "-lance" * bool(prefix)
    folder, before, path = write_files(place / kind, FILES), place / f"{kind}-before.db", place / f"{kind}.db"
    location = f"{prefix}{path}"
    (folder / "spoiled.jsonl").write_text('{"text": "the dog"}\n{"text": \n' * 20)
    (folder / "empty.txt").write_text("")
    if "update" in kind:
        build(f"{prefix}{before}", folder, model).close()
        change_files(folder)
    long_ago = time.time() - 1000
    for file in folder.iterdir():
        os.utime(file, (long_ago, long_ago))
    with build(f"{prefix}{place / kind}-whole.db", folder, model) as whole:
        expected, stats = contents(whole), whole.stats()
    copy_files(before, path) if "update" in kind else None
    with start(location, folder, model, -1) as child:  # when each event of an undisturbed update comes
        assert child.stdout
        moments = [time.perf_counter() for _ in child.stdout]
    assert child.returncode == 0
    times = [moment - moments[0] for moment in moments]
    statuses, searches = Counter[int](), 0
    for number in range(KILLS):
        rng = random.Random(f"{kind} {number}")
        share = (number + rng.random()) / KILLS  # the kills are spread evenly
        for file in place.glob(f"{kind}.db*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        copy_files(before, path) if "update" in kind else None
        events = int(share * (len(times) - 1))
        event = sum(one <= share * times[-1] for one in times) - 1 if number % 2 else events
        event = min(event, len(times) - 2)
        status, some = killed(location, folder, model, event, rng.random() * (times[event + 1] - times[event]))
        statuses[status] += 1
        searches += some
        finish(location, folder, model, expected, (stats.files, stats.documents, stats.chunks))
    assert statuses == {-signal.SIGKILL: KILLS}
    assert searches >= KILLS


@pytest.mark.parametrize("last", [3, 41])
def test_a_killed_update_leaves_lists_of_sparse_vectors_that_fit(tmp_path: Path, last: int) -> None:
    sparse, docs, path = save_splade(tmp_path / "model"), write_files(tmp_path / "docs", 12), tmp_path / "index.db"
    with start(path, docs, sparse, last) as child:
        assert child.stdout and all(child.stdout.readline() for _ in range(last + 2))
        child.kill()
    loaded = mlxbert.load(sparse, task="embed", dtype="float32")
    with build(path, docs, loaded) as index, build(tmp_path / "new.db", docs, loaded) as new:
        index.check()
        for query in QUERIES:
            scores = [[hit.score for hit in each.search(query, mode="vectors")] for each in (index, new)]
            assert scores[0] == pytest.approx(scores[1], rel=2e-3)


@pytest.mark.parametrize("prefix", ["", pytest.param("lance:", marks=NEEDS_LANCE)])
def test_a_killed_copy_is_unfinished(place: Path, model: Path, prefix: str) -> None:
    name = f"copied{len(prefix)}"
    target = f"{prefix}{place / name}-to"
    with build(place / f"{name}.db", write_files(place / name, FILES), model) as index:
        for number in (FILES // 2, FILES):
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
    path.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path]).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@contextmanager
def small_files(size: int) -> Iterator[None]:
    usual, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, usual)


@pytest.mark.parametrize("way", ["disk", "file"])
def test_a_full_disk(place: Path, model: Path, way: str, tmp_path: Path) -> None:
    folder, path = write_files(place / f"full-{way}", 150), tmp_path / "disk" / "index.db"
    with build(place / f"full-{way}.db", folder, model) as whole:
        expected, stats = contents(whole), whole.stats()
    with ExitStack() as limits:
        limits.enter_context(small_disk(path.parent, 400 * 1024) if way == "disk" else small_files(300 * 1024))
        with pytest.raises(StoreError, match="no space left" if way == "disk" else None) as full:
            build(path, folder, model)
        assert way == "file" or full.value.hint == "the index still has its earlier content"
        with open_index(path, model=model) as index:
            index.check()
            assert 0 < index.stats().files < stats.files
            check_hits(index, QUERIES[0])
        if way == "disk":
            subprocess.run(["mount", "-o", "remount,size=64m", path.parent], check=True)
        else:
            limits.close()
        finish(path, folder, model, expected, (stats.files, stats.documents, stats.chunks))


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
