"""A model of the hub that is not in the cache is inspected without its weights: which bytes are asked for."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from mlxbert.machine.device import mx
from tests.helpers.fake_hub import files_of
from tests.helpers.hub_machine import FILL, NAME, Machine, write_shards
from tests.helpers.program import call, change_weights
from tests.helpers.st_folder import NORMALIZE, dense, pooling, save_st

pytestmark = pytest.mark.slow

WEIGHTS = "model.safetensors"


def served(machine: Machine) -> dict[str, list[tuple[int, int]]]:
    """Which bytes of weights were sent, by file."""
    found: dict[str, list[tuple[int, int]]] = {}
    for file, start, end in machine.hub.served:
        if file.endswith(".safetensors"):
            found.setdefault(file, []).append((start, end))
    return found


def header_end(data: bytes) -> int:
    """Where the header of a safetensors file ends and its weights begin."""
    length: int = struct.unpack("<Q", data[:8])[0]
    return 8 + length


def told(found: dict[str, Any]) -> dict[str, Any]:
    """What is said of a model, wherever its files lie."""
    return found | {
        "folder": "", "weights": found["weights"] | {"here": None}, "fit": found["fit"] | {"free": None},
    }  # fmt: skip


def local(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = call("inspect", str(folder)).lines[0]
    return found


def test_of_the_weights_only_the_header_is_sent(machine: Machine, tiny: Path) -> None:
    data = (tiny / WEIGHTS).read_bytes()
    outcome = machine.run("inspect", NAME)
    (found,) = outcome.lines
    assert served(machine) == {WEIGHTS: [(0, 8), (8, header_end(data))]}
    assert told(found) == told(local(tiny))
    assert (found["weights"]["here"], found["weights"]["bytes"]) == (False, len(data))
    assert found["folder"] == str(machine.snapshot)
    assert set(files_of(machine.snapshot)) == {"config.json", "vocab.txt"}
    assert outcome.err.startswith("note: downloading org/tiny (") and outcome.err.count("\n") == 1
    sent = sum(end - start for _, start, end in machine.hub.served)
    small = sum((tiny / file).stat().st_size for file in ("config.json", "vocab.txt"))
    assert sent == small + header_end(data) < len(data)


def test_an_inspected_model_does_not_pass_for_a_whole_one(machine: Machine) -> None:
    machine.inspect()
    machine.run("models", "path", NAME).fails(1, f"{NAME}", "cache")
    machine.run(*FILL, "--offline").fails(1, "cache", "offline")
    machine.run("inspect", NAME, "--offline").fails(1, "cache", "offline")
    (listed,) = machine.run("models", "list").lines
    assert [revision["complete"] for model in listed["models"][1:] for revision in model["revisions"]] == [False]
    machine.hub.forget()
    assert machine.run(*FILL).status == 0
    assert machine.hub.fetched() == {WEIGHTS}  # the small files were there
    machine.hub.forget()
    assert machine.inspect()["weights"]["here"] is True
    assert machine.inspect("--offline")["weights"]["here"] is True
    assert machine.run(*FILL).err == ""
    assert machine.hub.requests == []


def test_what_was_inspected_can_be_removed(machine: Machine) -> None:
    machine.inspect()
    (removed,) = machine.run("models", "remove", NAME, "--yes").lines
    assert removed["revisions"] == [machine.commit]
    assert not machine.snapshot.exists()


def test_a_commit_that_was_inspected_does_not_pass_for_a_whole_one(machine: Machine) -> None:
    at = ("--revision", machine.commit)
    machine.inspect(*at)
    machine.run(*FILL, *at, "--offline").fails(1, "cache")
    machine.run("models", "path", NAME, *at).fails(1, "cache")
    assert machine.run(*FILL, *at).status == 0
    assert (machine.snapshot / WEIGHTS).is_file()


def test_headers_are_read_where_the_hub_says_that_the_file_is(machine: Machine, tiny: Path) -> None:
    machine.repository.redirected = machine.hub.url
    assert told(machine.inspect()) == told(local(tiny))
    assert served(machine) == {WEIGHTS: [(0, 8), (8, header_end((tiny / WEIGHTS).read_bytes()))]}


def test_small_files_are_sent_once(machine: Machine) -> None:
    first = machine.inspect()
    machine.hub.forget()
    outcome = machine.run("inspect", NAME)
    assert (told(outcome.lines[0]), outcome.err) == (told(first), "")
    assert machine.hub.fetched() == {WEIGHTS}


def test_a_revision_is_inspected_as_it_is(machine: Machine, tiny: Path) -> None:
    files = files_of(tiny)
    config = json.loads(files["config.json"]) | {"architectures": ["Other"]}
    machine.repository.commit(files | {"config.json": json.dumps(config).encode()}, "v2")
    assert machine.inspect("--revision", "v2")["architectures"] == ["Other"]
    assert machine.inspect()["architectures"] is None


def test_headers_of_shards_are_read_one_by_one(machine: Machine, tiny: Path, tmp_path: Path) -> None:
    sharded = tmp_path / "sharded"
    shards = write_shards(tiny, sharded)
    machine.repository.commit(files_of(sharded))
    found = machine.inspect()
    ends = {file: header_end((sharded / file).read_bytes()) for file in shards}
    assert served(machine) == {file: [(0, 8), (8, end)] for file, end in ends.items()}
    assert told(found) == told(local(sharded))
    assert [*found["weights"]["files"]] == shards
    machine.hub.forget()
    assert machine.run(*FILL).status == 0
    assert machine.hub.fetched() == set(shards)


def test_headers_of_modules_are_read_too(machine: Machine, tmp_path: Path) -> None:
    specs = [pooling("cls"), dense(mx.ones((7, 24)), mx.ones(7)), NORMALIZE]
    folder = save_st(tmp_path / "st", *specs, settings={"similarity_fn_name": "dot"})
    machine.repository.commit(files_of(folder))
    found = machine.inspect()
    ends = {file: header_end((folder / file).read_bytes()) for file in (WEIGHTS, f"2_Dense/{WEIGHTS}")}
    assert served(machine) == {file: [(0, 8), (8, end)] for file, end in ends.items()}
    assert told(found) == told(local(folder))
    assert found["parameters"]["2_Dense"] == 175


def test_weights_that_are_here_are_read_here(machine: Machine, tiny: Path) -> None:
    assert machine.run(*FILL).status == 0
    machine.forget_listing()
    (machine.snapshot / "vocab.txt").unlink()
    machine.hub.forget()
    found = machine.inspect()
    assert served(machine) == {}
    assert (told(found), found["weights"]["here"]) == (told(local(tiny)), True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-1], "truncated, because tensor"),
        (lambda data: data[:5], "truncated or not a safetensors file (5 bytes"),
        (lambda data: struct.pack("<Q", 10**9) + data[8:], "header of 1000000000"),
        (lambda data: data.replace(b'"shape":[24,16]', b'"shape":[16,16]'), "the header is damaged, because tensor"),
    ],
)
def test_damaged_weights_are_known_by_their_header(machine: Machine, tiny: Path, change: Any, said: str) -> None:
    files = files_of(tiny)
    changed = change(files[WEIGHTS])
    assert changed != files[WEIGHTS]
    machine.repository.commit(files | {WEIGHTS: changed})
    machine.run("inspect", NAME).fails(1, f"{NAME}/{WEIGHTS}: ", said)


def test_an_unknown_tensor_is_named_with_the_file_on_the_hub(machine: Machine, tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for file, data in files_of(tiny).items():
        (other / file).write_bytes(data)
    change_weights(other, lambda arrays: arrays.update({"other.weight": mx.zeros(3)}))
    machine.repository.commit(files_of(other))
    machine.run("inspect", NAME).fails(1, f"{NAME}/{WEIGHTS}: tensor 'other.weight'", "hint: ")


def test_a_hub_that_cannot_send_a_part_is_refused(machine: Machine) -> None:
    machine.repository.whole = True
    machine.run("inspect", NAME).fails(1, "the hub sends the whole file model.safetensors", f"models download {NAME}`")
    machine.repository.whole = False
    machine.repository.dropped[WEIGHTS] = 3
    machine.run("inspect", NAME).fails(1, NAME, "hint: ")


def test_files_of_a_gated_model_are_refused(machine: Machine, tiny: Path) -> None:
    machine.inspect()
    machine.repository.gated = True
    machine.run("inspect", NAME).fails(1, "restricted model", "hint: request access")
