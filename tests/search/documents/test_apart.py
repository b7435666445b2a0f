"""Parsers in a process of their own: whatever they do costs one file, and the process ends with its parent."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest

from mlxbert.search.documents import isolated_parser
from mlxbert.search.documents.document import Document, UnreadableError
from mlxbert.search.documents.document_kinds import KINDS, DocumentKind, read_documents
from mlxbert.search.documents.isolated_parser import ParserLimits
from tests.search.documents import hostile

ROOT = Path(__file__).parents[3]
SHORT = ParserLimits(20.0)
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process of its own for each test, which finds `hostile`."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    isolated_parser._THREAD.__dict__.clear()
    yield
    isolated_parser._THREAD.__dict__.clear()


Read = Callable[..., Iterator[Document]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Read:
    """Reads with one of the hostile readers."""

    def run(name: str, data: bytes = b"", limits: ParserLimits = SHORT) -> Iterator[Document]:
        monkeypatch.setitem(KINDS, "hostile", DocumentKind(getattr(hostile, name), (), apart=True))
        return read_documents("a", data, "hostile", limits=limits)

    return run


def test_plain_text_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    for _ in range(2000):
        assert len([*read_documents("a.md", b"# A\ntext\n", "markdown")]) == 1


def test_a_crash_costs_one_file(read: Read) -> None:
    first, again = [*read("crash", b"1")], [*read("crash", b"1")]
    assert first == again  # the same process
    with pytest.raises(UnreadableError, match=f"crashed .status -{signal.SIGABRT.value}"):
        [*read("crash", b"die")]
    (other,) = read("crash", b"1")
    assert other.text.split()[0] == first[0].text.split()[0] and other != first[0]
    assert [*read("poison")] != [*read("poison")]  # a process that an earlier file has damaged is replaced


def test_a_hang_ends_in_time(read: Read) -> None:
    begun = time.monotonic()
    with pytest.raises(UnreadableError, match=r"more than 0\.7 seconds"):
        [*read("hang", limits=ParserLimits(seconds=0.7))]
    assert time.monotonic() - begun < 3
    assert [*read("crash", b"1")]


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has no limit of memory; see the next test")
def test_memory_is_limited(read: Read) -> None:
    limits = ParserLimits(20.0, memory=2**29)
    with pytest.raises(UnreadableError, match="memory"):
        [*read("memory", b"%d" % 2**29, limits)]
    assert [one.text for one in read("memory", b"1000", limits)] == ["1000"]
    assert [*read("memory", b"%d" % 2**29, ParserLimits(20.0))]


REFUSED = """
import resource
real = resource.setrlimit
def setrlimit(kind, limits):
    if kind == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    real(kind, limits)
resource.setrlimit = setrlimit
"""


def test_memory_is_watched_if_it_cannot_be_limited(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Mac, where the system refuses the limit."""
    (tmp_path / "sitecustomize.py").write_text(REFUSED)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    limits = ParserLimits(60.0, memory=2**28)
    large, small = b"%d" % (2**28 + 2**26), b"%d" % 2**26
    monkeypatch.setattr(sys, "platform", "linux")
    assert [one.text for one in read("fill", large, limits)] == [large.decode()]  # nothing limits it
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnreadableError, match="needs more than 268,435,456 bytes of memory"):
        [*read("fill", large, limits)]
    assert [one.text for one in read("fill", small, limits)] == [small.decode()]
    with pytest.raises(UnreadableError, match="more than 1 seconds"):
        [*read("fill", small, ParserLimits(1.0, memory=2**28))]


def test_memory_that_cannot_be_watched_costs_no_file(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for failing in (FileNotFoundError("no ps"), subprocess.TimeoutExpired("ps", 5)):
        monkeypatch.setattr(subprocess, "run", mock.Mock(side_effect=failing))
        assert [one.text for one in read("fill", b"1000")] == ["1000"]
    assert isolated_parser._resident(os.getpid()) == 0


def test_text_is_limited(read: Read) -> None:
    with pytest.raises(UnreadableError, match="more text than the maximum of 100,000 bytes"):
        [*read("much", limits=ParserLimits(20.0, text=100_000))]


def test_nothing_is_written_or_imported_from_here(read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnreadableError, match="EFBIG False") as problem:
        [*read("write", str(tmp_path / "out").encode())]
    assert problem.value.hint == "why" and (tmp_path / "out").stat().st_size == 0
    assert [one.text for one in read_documents("a", b"<p>text", "html")] == ["text"]


SCRIPT = """
import sys
import time
from mlxbert.search.documents import isolated_parser
from tests.search.documents import hostile
list(isolated_parser.read_apart(hostile.crash, b"1", ["a"], isolated_parser.ParserLimits()))
print(isolated_parser._THREAD.worker.process.pid, flush=True)
if sys.argv[1] == "busy":
    list(isolated_parser.read_apart(hostile.hang, b"1", ["a"], isolated_parser.ParserLimits()))
else:
    while True:
        time.sleep(0.05)  # a signal just before `input()` begins to read would not end it
"""


def _alive(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("state", ["idle", "busy"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_process_ends_with_its_parent(state: str, how: signal.Signals) -> None:
    command = [sys.executable, "-c", SCRIPT, state]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        worker = int(parent.stdout.readline())
        time.sleep(0.3 if state == "busy" else 0)
        assert _alive(worker) and os.getsid(worker) == worker  # no signal of the terminal reaches it
        parent.send_signal(how)
        said = parent.stderr.read()
    for _ in range(100):
        if not _alive(worker):
            break
        time.sleep(0.02)
    assert not _alive(worker)
    assert said.count("Traceback") == (how == signal.SIGINT)  # the parent's own


def test_threads_have_a_process_each(read: Read) -> None:
    found: list[Document] = []
    threads = [threading.Thread(target=lambda: found.extend(read("crash", b"1"))) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    assert len({one.text for one in found}) == 3
