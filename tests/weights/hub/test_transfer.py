"""One file of the hub into the cache: what is kept, what is fetched again, and several processes at once."""

import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.helpers import lying_hub as lies
from tests.helpers.fake_hub import Files, hashes_of
from tests.helpers.hub_machine import NAME, Machine
from tests.helpers.program import command, environment

WEIGHTS = "model.safetensors"
LARGE = bytes(range(256)) * 12 * 2**10  # 3 MiB: huggingface_hub resumes at whole MiB


def other(data: bytes) -> bytes:
    """As many bytes, and not the same."""
    return data[:-1] + bytes([data[-1] ^ 1])


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


def test_a_file_without_a_hash_is_checked_against_the_listing(machine: Machine) -> None:
    machine.repository.lies = {"ETag": '"abc"', "X-Linked-ETag": '"abc"'}
    machine.repository.answer = lambda handler, file, data: file == WEIGHTS and lies.other_bytes(handler, file, data)
    machine.download().fails(1, WEIGHTS, "has the hash")
    machine.repository.answer = None
    assert machine.download().status == 0
    assert (machine.snapshot / WEIGHTS).resolve().name == "abc"


@pytest.mark.parametrize(("header", "value"), [("X-Linked-Size", "7"), ("X-Linked-ETag", '"' + "0" * 64 + '"')])
def test_what_a_file_announces_is_compared_with_the_listing(machine: Machine, header: str, value: str) -> None:
    machine.repository.lies = {header: value}
    machine.download().fails(1, NAME, value.strip('"'), "lists")
    assert machine.hub.fetched() == set()


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
    assert outcome.status == 0 and "thrown away" in outcome.err
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
