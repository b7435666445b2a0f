"""A model of the hub that is not in the cache is inspected without its weights."""

import struct
from pathlib import Path
from typing import Any

import pytest

from mlxbert.machine.device import mx
from tests.helpers.fake_hub import files_of
from tests.helpers.hub_machine import FILL, NAME, Machine, write_shards
from tests.helpers.program import call
from tests.helpers.st_folder import NORMALIZE, dense, pooling, save_st

pytestmark = pytest.mark.slow

WEIGHTS = "model.safetensors"


def told(found: dict[str, Any]) -> dict[str, Any]:
    """What is said of a model, wherever its files lie."""
    return found | {
        "folder": "", "weights": found["weights"] | {"here": None}, "fit": found["fit"] | {"free": None},
    }  # fmt: skip


def local(folder: Path) -> dict[str, Any]:
    return told(call("inspect", str(folder)).lines[0])


@pytest.mark.parametrize("whole", [True, False])
def test_of_the_weights_only_the_header_is_read(machine: Machine, tiny: Path, whole: bool) -> None:
    """Also from a server that cannot send a part of a file, and from another one to which the hub redirects."""
    machine.repository.redirected, machine.repository.whole = machine.hub.url, whole
    outcome = machine.run("inspect", NAME)
    (found,) = outcome.lines
    assert told(found) == local(tiny)
    assert (found["weights"]["here"], found["weights"]["bytes"]) == (False, (tiny / WEIGHTS).stat().st_size)
    assert found["folder"] == str(machine.snapshot) and {*files_of(machine.snapshot)} == {"config.json", "vocab.txt"}
    assert outcome.err.startswith("note: downloading org/tiny (") and outcome.err.count("\n") == 1
    machine.hub.forget()
    again = machine.run("inspect", NAME)
    assert (told(again.lines[0]), again.err) == (told(found), "")
    assert machine.hub.fetched() == {WEIGHTS}


def test_large_weights_are_not_sent_to_their_end(machine: Machine, tiny: Path) -> None:
    data = (tiny / WEIGHTS).read_bytes()
    length = 8 + struct.unpack("<Q", data[:8])[0]
    end = len(data) - length
    extra = 2**26  # bytes, more than the buffers of two sockets hold
    entry = b',"extra":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}}' % (extra, end, end + extra)
    header = data[8:length].rstrip()[:-1] + entry
    machine.repository.commit(
        files_of(tiny) | {WEIGHTS: struct.pack("<Q", len(header)) + header + data[length:] + bytes(extra)}
    )
    machine.run("inspect", NAME).fails(1, f"{NAME}/{WEIGHTS}: tensor 'extra'", "hint: ")
    assert machine.hub.left.get(timeout=60) == WEIGHTS


@pytest.mark.parametrize("at_commit", [True, False])
def test_an_inspected_model_does_not_pass_for_a_whole_one(machine: Machine, at_commit: bool) -> None:
    at = ("--revision", machine.commit) if at_commit else ()
    machine.inspect(*at)
    machine.run("models", "path", NAME, *at).fails(1, f"{NAME}", "cache")
    machine.run(*FILL, *at, "--offline").fails(1, "cache", "offline")
    machine.run("inspect", NAME, *at, "--offline").fails(1, "cache", "offline")
    (listed,) = machine.run("models", "list").lines
    assert [revision["complete"] for model in listed["models"][1:] for revision in model["revisions"]] == [False]
    (removed,) = machine.run("models", "remove", NAME, "--yes").lines
    assert removed["revisions"] == [machine.commit] and not machine.snapshot.exists()
    machine.inspect(*at)
    machine.hub.forget()
    assert machine.run(*FILL, *at).status == 0
    assert machine.hub.fetched() == {WEIGHTS}  # the small files were there
    machine.hub.forget()
    assert machine.inspect(*at)["weights"]["here"] is machine.inspect(*at, "--offline")["weights"]["here"] is True
    assert machine.run(*FILL, *at).err == ""
    assert machine.hub.requests == []


@pytest.mark.parametrize("kind", ["shards", "modules"])
def test_the_headers_of_all_weights_are_read(machine: Machine, tiny: Path, tmp_path: Path, kind: str) -> None:
    if kind == "shards":
        weights = write_shards(tiny, tmp_path / kind)
    else:
        specs = [pooling("cls"), dense(mx.ones((7, 24)), mx.ones(7)), NORMALIZE]
        save_st(tmp_path / kind, *specs, settings={"similarity_fn_name": "dot"})
        weights = [WEIGHTS, f"2_Dense/{WEIGHTS}"]
    machine.repository.commit(files_of(tmp_path / kind))
    found = machine.inspect()
    assert told(found) == local(tmp_path / kind)
    assert {file for file in machine.hub.fetched() if file.endswith(".safetensors")} == {*weights}
    assert [*found["weights"]["files"]] == weights or found["parameters"]["2_Dense"] == 175
    machine.hub.forget()
    assert machine.run("embed", "the cat", "--model", NAME).status == 0
    assert machine.hub.fetched() == {*weights}


def test_weights_that_are_here_are_read_here(machine: Machine, tiny: Path) -> None:
    assert machine.run(*FILL).status == 0
    machine.forget_listing()
    (machine.snapshot / "vocab.txt").unlink()
    machine.hub.forget()
    found = machine.inspect()
    assert WEIGHTS not in machine.hub.fetched()
    assert (told(found), found["weights"]["here"]) == (local(tiny), True)


def test_truncated_weights_are_known_by_their_header(machine: Machine, tiny: Path) -> None:
    files = files_of(tiny)
    machine.repository.commit(files | {WEIGHTS: files[WEIGHTS][:-1]})
    machine.run("inspect", NAME).fails(1, f"{NAME}/{WEIGHTS}: ", "truncated, because tensor")


def test_a_connection_that_breaks_in_a_header_is_an_error(machine: Machine) -> None:
    machine.repository.dropped[WEIGHTS] = 3
    machine.run("inspect", NAME).fails(1, NAME, "hint: ")
