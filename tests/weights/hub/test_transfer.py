"""One file of the hub into the cache: what is kept, what is fetched again, and several processes at once."""

import hashlib
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.utils._http import default_client_factory

from mlxbert.errors import HubError
from mlxbert.weights.hub.cache import Snapshot, repository_folder
from mlxbert.weights.hub.download import library
from mlxbert.weights.hub.file_hashes import AnnouncedFile
from mlxbert.weights.hub.transfer import fetch_file
from tests.helpers import lying_hub as lies
from tests.helpers.fake_hub import Files, client_settings, hashes_of
from tests.helpers.hub_machine import HTTPX, NAME, Machine
from tests.helpers.program import command, environment

WEIGHTS = "model.safetensors"
LARGE = bytes(range(256)) * 12 * 2**10  # 3 MiB: huggingface_hub resumes at whole MiB
DATA = bytes(range(256)) * 40
SHA256 = hashlib.sha256(DATA).hexdigest()
GIT = hashlib.sha1(b"blob %d\0" % len(DATA) + DATA).hexdigest()
COMMIT = "1" * 40


class HubOfOneFile:
    """A hub with one file, in place of the network of huggingface_hub; `bodies` are what it sends, in order."""

    def __init__(self) -> None:
        self.headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{SHA256}"', "X-Linked-Size": str(len(DATA))}
        self.bodies: list[bytes] = []
        self.received: list[int] = []
        self.snapshot = Snapshot(NAME, COMMIT, repository_folder(NAME) / "snapshots" / COMMIT)

    def answer(self, request: Any) -> Any:
        """The answer to a request of a file."""
        content = None if request.method == "HEAD" else self.bodies.pop(0)
        return HTTPX.Response(200, headers=self.headers, content=content)

    def fetch(self, listed: AnnouncedFile = AnnouncedFile(len(DATA), SHA256)) -> bytes:  # noqa: B008 - it cannot be changed
        """The file after it was fetched."""
        with library(NAME, COMMIT) as hub:
            return fetch_file(hub, self.snapshot, "x", listed, self.received.append).read_bytes()

    def kept(self) -> list[str]:
        """The names of the files in the cache."""
        return sorted(path.name for path in self.snapshot.folder.parents[1].rglob("*") if path.is_file())


@pytest.fixture
def hub_of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubOfOneFile]:
    monkeypatch.setenv("HF_HUB_CACHE", f"{tmp_path}/hub")
    hub = HubOfOneFile()
    with client_settings(str(tmp_path), "http://hub", ""):
        huggingface_hub.set_client_factory(lambda: HTTPX.Client(transport=HTTPX.MockTransport(hub.answer)))
        yield hub
    huggingface_hub.set_client_factory(default_client_factory)


def other(data: bytes) -> bytes:
    """As many bytes, and not the same."""
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (other(DATA), "has the hash"),
        (DATA + b"x", f"more bytes than the {len(DATA):,}"),
        (DATA[:-1], f"has {len(DATA) - 1:,} bytes, expected {len(DATA):,}"),
    ],
)
def test_what_differs_is_fetched_twice_and_not_kept(hub_of_file: HubOfOneFile, sent: bytes, message: str) -> None:
    hub_of_file.bodies = [sent, sent, sent, DATA]
    with pytest.raises(HubError, match=message):
        hub_of_file.fetch()
    assert (hub_of_file.kept(), len(hub_of_file.bodies)) == ([], 2)
    assert hub_of_file.fetch() == DATA
    assert hub_of_file.received[-1] == len(DATA)


@pytest.mark.parametrize("etag", ["abc", GIT, SHA256])
def test_a_file_is_compared_with_all_that_is_known(hub_of_file: HubOfOneFile, etag: str) -> None:
    hub_of_file.headers["ETag"] = f'"{etag}"'
    known = AnnouncedFile() if etag != "abc" else AnnouncedFile(None, SHA256)
    hub_of_file.bodies = [other(DATA), DATA]
    assert hub_of_file.fetch(known) == DATA
    assert not hub_of_file.bodies and hub_of_file.kept() == sorted([etag, "x"])


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"ETag": f'"{GIT}"'}, f"announces the hash {GIT}, but lists {SHA256}"),
        ({"X-Linked-Size": "7"}, f"announces 7 bytes, but lists {len(DATA):,}"),
        ({"X-Repo-Commit": "2" * 40}, "returned the commit 22"),
        ({"ETag": '"../x"'}, "returned the ETag '../x'"),
        ({"Content-Type": "text/html"}, "web page"),
    ],
)
def test_a_file_that_is_not_the_listed_one_is_not_requested(
    hub_of_file: HubOfOneFile, headers: dict[str, str], message: str
) -> None:
    hub_of_file.headers |= headers
    with pytest.raises(HubError, match=message):
        hub_of_file.fetch()
    assert hub_of_file.kept() == []


def test_a_file_of_which_nothing_is_known_is_not_requested(hub_of_file: HubOfOneFile) -> None:
    del hub_of_file.headers["X-Linked-Size"]
    with pytest.raises(HubError, match="no size"):
        hub_of_file.fetch(AnnouncedFile())


@pytest.fixture
def large(machine: Machine, files: Files) -> Machine:
    """A machine that has not fetched a model with a large file."""
    machine.repository.commit(files | {WEIGHTS: LARGE})
    return machine


@pytest.mark.parametrize("broken", ["closed", "reset"])
def test_a_broken_connection_is_taken_up_where_it_broke(large: Machine, broken: str) -> None:
    left = [lies.reset(2**21 + 10_000)]
    if broken == "closed":
        large.repository.dropped[WEIGHTS] = 2**21 + 10_000
    else:
        large.repository.answer = lambda handler, file, data: (
            file == WEIGHTS and handler.command == "GET" and bool(left) and left.pop()(handler, file, data)
        )
    outcome = large.download()
    assert (outcome.status, outcome.err.count("\n")) == (0, 1)  # not a word of huggingface_hub's
    ranges = [headers["range"] for headers in large.hub.headers if "range" in headers]
    assert len(ranges) == 1 and ranges[0] in ("bytes=1048576-", "bytes=2097152-")
    assert (large.snapshot / WEIGHTS).read_bytes() == LARGE


@pytest.mark.parametrize("linked", [True, False])
@pytest.mark.parametrize("recorded", [True, False])
def test_what_is_in_the_cache_is_compared_with_its_hash(machine: Machine, linked: bool, recorded: bool) -> None:
    """Of an unrecorded commit also without a request for it: the program may have been killed before it compared."""
    assert machine.download().status == 0
    path = machine.snapshot / WEIGHTS
    data = path.read_bytes()
    if not linked:  # as on file systems without links
        path.resolve().replace(path)
    path.write_bytes(other(data))
    if not recorded:
        machine.forget_listing()
        (machine.folder / "refs" / "main").unlink()
    machine.hub.forget()
    outcome = machine.run("models", "download", NAME) if recorded else machine.run("tokenize", "a", "--model", NAME)
    assert outcome.status == 0 and "fetched again" in outcome.err
    assert machine.hub.fetched() == {WEIGHTS} and path.read_bytes() == data


def test_links_of_the_cache_that_lead_elsewhere_cost_nothing_there(machine: Machine, tmp_path: Path) -> None:
    paths = {name: machine.snapshot / name for name in ("config.json", "vocab.txt")}
    machine.snapshot.mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.write_bytes(other(machine.repository.commits[machine.commit]["config.json"]))
    before = mine.read_bytes()
    paths["config.json"].symlink_to(mine)
    paths["vocab.txt"].symlink_to("../../blobs/gone")
    assert machine.download().status == 0
    assert mine.read_bytes() == before
    assert all(path.resolve().parent == machine.folder / "blobs" for path in paths.values())


def test_two_processes_fetch_a_file_once(large: Machine) -> None:
    both = threading.Barrier(2)

    def wait(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
        if file == WEIGHTS and handler.command == "HEAD":
            both.wait(timeout=60)  # neither has begun
        return False

    large.repository.answer = wait
    words = command("models", "download", NAME)
    running = [subprocess.Popen(words, env=environment(**large.variables), stdout=-1, stderr=-1) for _ in range(2)]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert Path(out.decode().strip()) == large.snapshot
    assert [file for file, *_ in large.hub.served].count(WEIGHTS) == 1
    assert (large.snapshot / WEIGHTS).read_bytes() == LARGE
    assert not list(large.folder.rglob("*.incomplete"))
    assert hashes_of(WEIGHTS, LARGE)["X-Linked-ETag"].strip('"') == (large.snapshot / WEIGHTS).resolve().name
