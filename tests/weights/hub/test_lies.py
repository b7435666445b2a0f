"""A hub that lies about a file in every way: what the user reads, what the cache holds, the next honest download."""

import shutil
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import huggingface_hub.constants
import pytest

from mlxbert.weights.hub import guard
from tests.helpers import lying_hub as lies
from tests.helpers.fake_hub import FakeHub, Files, files_of, hashes_of, serve
from tests.helpers.hub_machine import NAME, Machine

pytestmark = pytest.mark.slow

LISTING, SMALL, LARGE = "", "config.json", "model.safetensors"
FILES = (LISTING, SMALL, LARGE)
DEAD = "http://127.0.0.1:9/x"
# What is said of a lie about the listing, and of one about a file; `None`: there is no such lie.
TABLE: dict[str, tuple[lies.Lie, str | None, str | None]] = {
    "longer": (lies.longer, "expected JSON", "more bytes than"),
    "endless": (lies.endless, "more than 16,777,216 bytes", "sends more than"),
    "shorter": (lies.shorter, "expected JSON", "expected {size:,}"),
    "cut": (lies.cut, "broke", "broke"),
    "other bytes": (lies.other_bytes, "expected JSON", "has the hash {other}, expected {hash}"),
    "other hash": (lies.other_hash, None, "announces the hash {reversed}, but lists {hash}"),
    "redirect to nothing": (lies.redirect(DEAD), "http://127.0.0.1:9 cannot be reached", "http://127.0.0.1:9"),
    "redirect in a circle": (lies.redirect("?again"), "redirects endlessly", "redirects endlessly"),
    "stall": (lies.stall, "no data arrived for", "no data arrived for"),
    "silence": (lies.silence, "no data arrived for", "no data arrived for"),
    "trickle": (lies.trickle(0.05), "per second", "per second"),
    "page": (lies.page(200), "web page (status 200)", "not how a hub answers"),
    "page for content": (lies.only_get(lies.page(200)), "web page (status 200)", "web page (status 200)"),
    "page 403": (lies.page(403), "web page (status 403)", "web page (status 403)"),
    "401": (lies.status(401), "denies access (status 401)", "denies access (status 401)"),
    "403": (lies.status(403), "denies access (status 403)", "denies access (status 403)"),
    "404": (lies.status(404), "bare status 404", "bare status 404"),
    "407": (lies.status(407), "the proxy asks", "the proxy asks"),
    "429": (lies.status(429, Retry_After="3600"), "wait 3,600 s", "wait 3,600 s"),
    "500": (lies.status(500), "status 500", "status 500"),
}
CASES = [(lie, file) for lie, (_, *said) in TABLE.items() for file in FILES if said[bool(file)] is not None]


@pytest.fixture
def quick() -> Iterator[None]:
    """Waits that are short."""
    constants = huggingface_hub.constants
    clock = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    with (
        mock.patch.multiple(guard, SPEED_WINDOW=0.4),
        mock.patch.multiple(constants, HF_HUB_DOWNLOAD_TIMEOUT=0.5, HF_HUB_ETAG_TIMEOUT=0.5),
        mock.patch("huggingface_hub.utils._http.time", clock),
        mock.patch("huggingface_hub.file_download.time", clock),
    ):
        yield


def tell(machine: Machine, lie: str, about: str) -> None:
    answer = TABLE[lie][0]
    machine.repository.answer = lambda handler, file, data: file == about and answer(handler, file, data)


def hash_of(file: str, data: bytes) -> str:
    hashes = hashes_of(file, data)
    return hashes.get("X-Linked-ETag", hashes["ETag"]).strip('"')


@pytest.mark.sampled
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("lie", "about"), CASES)
def test_a_lie_leaves_nothing_wrong(machine: Machine, files: Files, lie: str, about: str) -> None:
    tell(machine, lie, about)
    outcome = machine.download()
    assert outcome.out == ""
    outcome.fails(1, NAME, "hint: ", said(lie, about, files.get(about, b"")))
    assert len(machine.hub.requests) < 40
    folder = machine.folder
    assert not (folder / "refs").exists() and not list(folder.glob(f"snapshots/*/{about or '*'}"))
    right = {hash_of(file, data): data for file, data in files.items()}
    for path in folder.glob("blobs/*"):  # whole files, or how one begins
        data = path.read_bytes()
        whole = right[path.stem]
        assert 0 < len(data) < len(whole) and whole.startswith(data) if path.suffix else data == whole

    machine.repository.answer = None
    again = machine.download()
    assert again.status == 0
    assert files_of(Path(again.out.strip())) == files
    assert machine.run("models", "verify", NAME).status == 0


def said(lie: str, about: str, data: bytes) -> str:
    """What the user is told."""
    _, of_listing, of_file = TABLE[lie]
    told = of_file if about else of_listing
    assert told is not None
    right, wrong = hash_of(about, data), hash_of(about, bytes(byte ^ 1 for byte in data))
    return told.format(size=len(data), hash=right, other=wrong, reversed=right[::-1])


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("about", FILES)
@pytest.mark.parametrize("wait", ["0", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_a_busy_hub_is_asked_again_when_it_says_so(machine: Machine, about: str, wait: str) -> None:
    answers = iter([503, 429])

    def busy(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
        number = next(answers, None) if file == about else None
        return number is not None and lies.send(handler, b"", number, Retry_After=wait)

    machine.repository.answer = busy
    outcome = machine.download()
    assert (outcome.status, next(answers, None)) == (0, None)
    assert "status 503" in outcome.err and "status 429" in outcome.err


@pytest.mark.usefixtures("quick")
def test_lies_that_end_are_got_over_in_the_same_run(hub: FakeHub, tmp_path: Path, files: Files) -> None:
    """One bad transfer of each kind; what came before a break is kept."""
    for number, lie in enumerate((lies.shorter, lies.cut, lies.other_bytes, lies.longer, lies.stall)):
        left = [lie]

        def once(handler: BaseHTTPRequestHandler, file: str, data: bytes, left: list[lies.Lie] = left) -> bool:
            return handler.command == "GET" and file == LARGE and bool(left) and left.pop()(handler, file, data)

        hub.repositories[NAME].answer = once
        outcome = Machine(hub, tmp_path / str(number)).download()
        assert outcome.status == 0 and not left
        assert files_of(Path(outcome.out.strip())) == files


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("lie", "kept"), [("cut", 2**22), ("endless", 0)])
def test_attempts_at_a_large_file_end(machine: Machine, tmp_path: Path, files: Files, lie: str, kept: int) -> None:
    """Each brings a lot, and none of it is new."""
    machine.repository.commit(files | {LARGE: bytes(2**23)})
    tell(machine, lie, LARGE)
    assert machine.download().status == 1
    assert len([request for request in machine.hub.requests if request.startswith("GET") and LARGE in request]) <= 5
    (left, *more) = [path.stat().st_size for path in tmp_path.rglob("*.incomplete")] or [0]
    assert 0 <= left <= kept and not more


@pytest.mark.usefixtures("quick")
def test_other_bytes_elsewhere_are_noticed(machine: Machine, tmp_path: Path, files: Files) -> None:
    with serve() as other:
        other.add(NAME, files).answer = lies.other_bytes
        machine.repository.redirected = other.url
        machine.download().fails(1, "has the hash")
    assert not list(tmp_path.rglob("snapshots/*/*"))


def test_a_hub_does_not_learn_which_agent_asks(machine: Machine) -> None:
    """huggingface_hub reads a list for that, of any length."""
    with mock.patch("huggingface_hub.utils._detect_agent._registry", None):  # it asks once in a process
        assert machine.download().status == 0
    assert "GET /api/agent-harnesses" not in machine.hub.requests


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(machine: Machine, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    with mock.patch.object(shutil, "disk_usage", lambda place: usage._replace(free=1000)):
        machine.download().fails(1, "1,000 bytes are free", "HF_HOME")
    assert machine.hub.fetched() == set()
