"""A hub that lies in every way: what the user reads, what the cache holds, and the next honest download."""

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import huggingface_hub.constants
import pytest

from mlxbert.weights.hub.errors import explain_download
from tests.helpers import lying_hub as lies
from tests.helpers.fake_hub import FakeHub, Files, files_of, hashes_of, serve
from tests.helpers.hub_machine import HTTPX, NAME, Machine
from tests.helpers.program import command, environment

pytestmark = pytest.mark.slow

LISTING, SMALL, LARGE = "", "config.json", "model.safetensors"
FILES = (LISTING, SMALL, LARGE)
DEAD = "http://127.0.0.1:9/x"
BIG = bytes(range(256)) * 2**16  # 16 MiB: huggingface_hub reads 10 MiB at once
# What is said of a lie about the listing, and of one about a file; `None`: there is no such lie.
TABLE: dict[str, tuple[lies.Lie, str | None, str | None]] = {
    "longer": (lies.longer, "not how a hub answers", "did not arrive as announced"),
    "endless": (lies.endless, None, "did not arrive as announced"),
    "shorter": (lies.shorter, "not how a hub answers", "did not arrive as announced"),
    "cut": (lies.cut, "broke", "broke"),
    "other bytes": (lies.other_bytes, "not how a hub answers", "has the hash {other}, expected {hash}"),
    "redirect to nothing": (lies.redirect(DEAD), "http://127.0.0.1:9 cannot be reached", "http://127.0.0.1:9"),
    "redirect in a circle": (lies.redirect("?again"), "redirects endlessly", "redirects endlessly"),
    "stall": (lies.stall, "no data arrived in time", "no data arrived in time"),
    "silence": (lies.silence, "no data arrived in time", "no data arrived in time"),
    "page": (lies.page(200), "not how a hub answers", "not how a hub answers"),
    "page for content": (lies.only_get(lies.page(200)), "not how a hub answers", "did not arrive as announced"),
    "page 403": (lies.page(403), "web page (status 403)", "web page (status 403)"),
    "401": (lies.status(401), "denies access (status 401)", "denies access (status 401)"),
    "403": (lies.status(403), "denies access (status 403)", "denies access (status 403)"),
    "404": (lies.status(404), "bare status 404", "bare status 404"),
    "407": (lies.status(407), "status 407", "status 407"),
    "429": (lies.status(429, Retry_After="3600"), "(Retry-After: 3600)", "(Retry-After: 3600)"),
    "500": (lies.status(500), "status 500", "status 500"),
}
CASES = [(lie, file) for lie, (_, *said) in TABLE.items() for file in FILES if said[bool(file)] is not None]


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    constants = huggingface_hub.constants
    clock = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    with (
        mock.patch.multiple(constants, HF_HUB_DOWNLOAD_TIMEOUT=0.5, HF_HUB_ETAG_TIMEOUT=0.5),
        mock.patch("huggingface_hub.utils._http.time", clock),
        mock.patch("huggingface_hub.file_download.time", clock),
        mock.patch("huggingface_hub.file_download._ETAG_RETRY_TIMEOUT", 0.5),
    ):
        yield


@pytest.fixture
def large(machine: Machine, files: Files) -> Machine:
    machine.repository.commit(files | {LARGE: BIG})
    return machine


def tell(machine: Machine, lie: lies.Lie, about: str) -> None:
    machine.repository.answer = lambda handler, file, data: file == about and lie(handler, file, data)


def hash_of(file: str, data: bytes) -> str:
    hashes = hashes_of(file, data)
    return hashes.get("X-Linked-ETag", hashes["ETag"]).strip('"')


def holds_only_right_files(machine: Machine, files: Files) -> None:
    """Nothing is outside the cache, and all files in the cache are as the owner of the hub made them."""
    assert {path.name for path in machine.home.glob("*")} <= {"hub"}
    assert {path.name for path in machine.home.glob("hub/*")} <= {"models--org--tiny", ".locks"}
    assert {path.name for path in machine.folder.glob("*")} <= {"blobs", "snapshots", "refs", "trees"}
    right = {hash_of(file, data): data for file, data in files.items()}
    assert all(path.read_bytes() == right[path.name] for path in machine.folder.glob("blobs/*"))
    for path in machine.folder.glob("snapshots/*/*"):
        assert path.resolve().parent == machine.folder / "blobs" and path.read_bytes() == files[path.name]


@pytest.mark.sampled
@pytest.mark.parametrize(("lie", "about"), CASES)
def test_a_lie_leaves_nothing_wrong(machine: Machine, files: Files, lie: str, about: str) -> None:
    answer, of_listing, of_file = TABLE[lie]
    tell(machine, answer, about)
    outcome = machine.download()
    assert outcome.out == ""
    data = files.get(about, b"")
    other = hash_of(about, bytes(byte ^ 1 for byte in data))
    said = (of_file if about else of_listing) or ""
    outcome.fails(1, NAME, "hint: ", said.format(hash=hash_of(about, data), other=other))
    assert len(machine.hub.requests) < 40 and not list(machine.home.rglob("*.incomplete"))
    assert not (machine.folder / "refs").exists() and not list(machine.folder.glob(f"snapshots/*/{about or '*'}"))
    holds_only_right_files(machine, files)

    machine.repository.answer = None
    again = machine.download()
    assert again.status == 0
    assert files_of(Path(again.out.strip())) == files
    assert machine.run("models", "verify", NAME).status == 0


@pytest.mark.parametrize(
    ("told", "status"),
    [
        # Headers are not used: not as a path, and not as a size or a hash that is known from the listing.
        *(
            ({"ETag": etag, "X-Linked-ETag": etag}, 1)
            for etag in ("../../../../../evil.pth", "{out}/evil.pth", "a" * 300)
        ),
        *(({"ETag": etag}, 0) for etag in ('".."', '""', "a", '"C:evil"')),
        *(({"X-Repo-Commit": commit}, 0) for commit in ("../../../../evil", "{out}/evil", "0" * 40)),
        ({"ETag": '"{out}/mine"', "X-Linked-ETag": '"{out}/mine"', "X-Repo-Commit": "{out}"}, 1),
        ({"X-Linked-Size": "-5"}, 1),
        ({"X-Repo-Commit": "{out}/evil", "listed": "tokenizer.json"}, 1),  # huggingface_hub would make an empty file
        *(({"sha": sha}, 1) for sha in ("../../../evil", "{out}/evil", None, "0" * 39, 5)),
        *(({"size": size}, 0) for size in (-7, "many", 1e300)),
    ],
)
def test_nothing_that_a_hub_says_becomes_a_path(
    machine: Machine, files: Files, tmp_path: Path, told: dict[str, Any], status: int
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    machine.repository.lies = {
        key: value.replace("{out}", f"{tmp_path}/out") if isinstance(value, str) else value
        for key, value in told.items()
    }
    machine.repository.listed = tuple(filter(None, [machine.repository.lies.pop("listed", "")]))
    outcome = machine.download()
    assert outcome.status == status
    assert not status or (NAME in outcome.err and "hint: " in outcome.err) or "sha" in told or "listed" in told
    assert files_of(tmp_path / "out") == {"mine": b"mine"} and not list(tmp_path.rglob("*evil*"))
    holds_only_right_files(machine, files)


def test_a_list_in_the_cache_names_no_file_elsewhere(machine: Machine, tmp_path: Path) -> None:
    """huggingface_hub keeps what a hub lists without a check, and names files in Xet after it without asking again."""
    large = {"lfs_sha256": "../../../../evil", "lfs_size": 7, "xet_hash": "0" * 64}
    listing = machine.folder / "trees" / f"{machine.commit}.json"
    listing.parent.mkdir(parents=True)
    files = {LARGE: {"size": 7, "blob_id": "0" * 40, **large}}
    listing.write_text(json.dumps({"format_version": 1, "files": files}), encoding="utf-8")
    machine.variables["HF_HUB_DISABLE_XET"] = ""
    outcome = machine.run_anew("models", "download", NAME)
    assert not list(tmp_path.rglob("*evil*"))
    assert "GET /api/agent-harnesses" not in machine.hub.requests  # a list of any length, to know which agent asks
    assert outcome.status == 0 and "evil" not in listing.read_text(encoding="utf-8")


@pytest.mark.parametrize("about", [SMALL, LARGE])
def test_a_busy_hub_is_asked_again_and_the_user_reads_it(machine: Machine, about: str) -> None:
    answers = iter([503, 429])

    def busy(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
        number = next(answers, None) if file == about else None
        return number is not None and lies.send(handler, b"", number, Retry_After="3600")

    machine.repository.answer = busy
    outcome = machine.download()
    assert (outcome.status, next(answers, None)) == (0, None)
    assert "429" in outcome.err and "3601" in outcome.err


def test_lies_that_end_are_got_over_in_the_same_run(hub: FakeHub, tmp_path: Path, files: Files) -> None:
    """One bad transfer of each kind."""
    for number, lie in enumerate((lies.shorter, lies.cut, lies.other_bytes, lies.longer, lies.stall)):
        left = [lie]

        def once(handler: BaseHTTPRequestHandler, file: str, data: bytes, left: list[lies.Lie] = left) -> bool:
            return handler.command == "GET" and file == LARGE and bool(left) and left.pop()(handler, file, data)

        hub.repositories[NAME].answer = once
        outcome = Machine(hub, tmp_path / str(number)).download()
        assert outcome.status == 0 and not left
        assert files_of(Path(outcome.out.strip())) == files


def test_other_bytes_elsewhere_are_noticed(machine: Machine, tmp_path: Path, files: Files) -> None:
    with serve() as other:
        other.add(NAME, files).answer = lies.other_bytes
        machine.repository.redirected = other.url
        machine.download().fails(1, "has the hash")
    assert not list(tmp_path.rglob("snapshots/*/*"))


def test_a_disk_that_is_too_small_is_told_before_anything_is_fetched(machine: Machine, tmp_path: Path) -> None:
    usage = shutil.disk_usage(tmp_path)
    with mock.patch.object(shutil, "disk_usage", lambda place: usage._replace(free=1000)):
        machine.download().fails(1, "1,000 bytes are free", "HF_HOME")
    assert machine.hub.fetched() == set()


def test_a_proxy_that_asks_for_a_password_is_told() -> None:
    told = explain_download(HTTPX.ProxyError("407 Proxy Authentication Required"), NAME, None)
    assert "407" in told.message and "HTTPS_PROXY" in str(told.hint)


@pytest.mark.parametrize("etag", [None, "abc"])
def test_a_mirror_that_lists_only_names_is_asked_for_each_file(
    machine: Machine, files: Files, etag: str | None
) -> None:
    def listing(handler: Any, file: str, data: bytes) -> bool:
        if not file:
            listed = [{"rfilename": name} for name in files]
            handler.json({"id": NAME, "sha": machine.commit, "siblings": listed})
        return not file

    machine.repository.answer = listing
    machine.repository.lies = {"ETag": etag, "X-Linked-ETag": etag} if etag else {}
    outcome = machine.download()
    assert outcome.status == 0 and files_of(Path(outcome.out.strip())) == files
    assert ("only its size is checked" in outcome.err) == (etag is not None)
    assert {path.name for path in machine.folder.glob("blobs/*")} >= {hash_of(LARGE, files[LARGE])}


def test_a_broken_connection_is_taken_up_where_it_broke(large: Machine) -> None:
    large.repository.dropped[LARGE] = 11 * 2**20
    outcome = large.download()
    assert outcome.status == 0
    assert [headers["range"] for headers in large.hub.headers if "range" in headers] == [f"bytes={10 * 2**20}-"]
    assert (large.snapshot / LARGE).read_bytes() == BIG


@pytest.mark.parametrize("linked", [True, False])
def test_files_of_an_unrecorded_commit_are_compared_with_their_hashes(machine: Machine, linked: bool) -> None:
    """Without a request for it: the program may have been killed before it compared."""
    assert machine.download().status == 0
    path = machine.snapshot / LARGE
    data = path.read_bytes()
    if not linked:  # as on file systems without links
        path.resolve().replace(path)
    path.write_bytes(bytes(byte ^ 1 for byte in data))
    machine.forget_listing()
    (machine.folder / "refs" / "main").unlink()
    machine.hub.forget()
    outcome = machine.run("tokenize", "a", "--model", NAME)
    assert outcome.status == 0 and "fetched again" in outcome.err
    assert machine.hub.fetched() == {LARGE} and path.read_bytes() == data


@pytest.mark.parametrize(
    "without",
    [
        mock.patch.object(Path, "symlink_to", side_effect=OSError(95, "Operation not supported")),
        mock.patch.object(huggingface_hub.constants, "HF_HUB_DISABLE_SYMLINKS", True, create=True),
    ],
)
def test_a_cache_without_links_holds_the_files_themselves(machine: Machine, files: Files, without: Any) -> None:
    with without:
        assert machine.download().status == 0
    assert files_of(machine.snapshot) == files and not any(path.is_symlink() for path in machine.snapshot.iterdir())
    machine.hub.forget()
    assert machine.download().status == 0 and machine.hub.fetched() == set()


def test_links_of_the_cache_that_lead_elsewhere_cost_nothing_there(
    machine: Machine, files: Files, tmp_path: Path
) -> None:
    machine.snapshot.mkdir(parents=True)
    mine = tmp_path / "mine"
    mine.write_bytes(files[SMALL][::-1])
    (machine.snapshot / SMALL).symlink_to(mine)
    (machine.snapshot / "vocab.txt").symlink_to("../../blobs/gone")
    assert machine.download().status == 0
    assert mine.read_bytes() == files[SMALL][::-1]
    holds_only_right_files(machine, files)


def test_two_processes_fetch_a_file_once(large: Machine) -> None:
    both = threading.Barrier(2)

    def wait(handler: BaseHTTPRequestHandler, file: str, data: bytes) -> bool:
        if not file:
            both.wait(timeout=60)  # neither has begun
        return False

    large.repository.answer = wait
    words = command("models", "download", NAME)
    running = [subprocess.Popen(words, env=environment(**large.variables), stdout=-1, stderr=-1) for _ in range(2)]
    for process in running:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert Path(out.decode().strip()) == large.snapshot
    assert [file for file, *_ in large.hub.served].count(LARGE) == 1
    assert (large.snapshot / LARGE).read_bytes() == BIG
    assert not list(large.folder.rglob(".mlxbert-*"))
