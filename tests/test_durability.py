"""What survives a power cut on macOS, and how often the cache of the whole disk is emptied for it.

That takes tens of milliseconds on Apple's SSDs (`F_FULLFSYNC`); `os.fsync` hands files to the disk and does not wait.
"""

import fcntl
import os
import sys
from pathlib import Path

import pytest

from mlxbert.cli.output.resumable_file import PART
from mlxbert.durable_files import atomic_write, write_record
from mlxbert.machine.device import mx
from tests.helpers.rooms import needs
from tests.test_apple_double import interrupt, output, result

FULL = 51


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """How each file and folder was flushed, and renamed, by its name."""
    done: list[tuple[str, str]] = []
    replace = os.replace

    def name(descriptor: int) -> str:
        return os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))

    def move(source: Path, target: Path) -> None:
        done.append(("rename", os.path.basename(target)))
        replace(source, target)

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda file, command: done.append(({FULL: "full"}[command], name(file))))
    monkeypatch.setattr(os, "fsync", lambda file: done.append(("fsync", name(file))))
    monkeypatch.setattr(os, "replace", move)
    return done


pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="names of open files are read in /proc")


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_flushed_before_it_has_its_name(
    flushed: list[tuple[str, str]], tmp_path: Path, durable: bool
) -> None:
    how = "full" if durable else "fsync"
    with atomic_write(tmp_path / "x", durable=durable) as file:
        file.write(b"x")
    write_record(tmp_path / "y", {}, durable=durable)
    assert flushed == [
        (how, "x.unfinished"), ("rename", "x"), (how, tmp_path.name),
        (how, "y.unfinished"), ("rename", "y"), (how, tmp_path.name),
    ]  # fmt: skip


def full(flushed: list[tuple[str, str]]) -> list[str]:
    return [name for how, name in flushed if how == "full"]


@pytest.mark.parametrize("parts", [1, 4])
def test_an_output_of_any_size_empties_the_cache_of_the_disk_five_times(
    flushed: list[tuple[str, str]], tmp_path: Path, parts: int
) -> None:
    with output(tmp_path / "x.npy") as out:
        for number in range(parts * PART):
            out.write(result(number))
    partial = "x.npy.partial"
    expected = ["manifest.json.unfinished", partial, "whole.unfinished", partial, tmp_path.name]
    assert full(flushed) == expected
    assert [name for how, name in flushed if how == "fsync" and name != partial] == [
        f"part-{part:06}.{kind}.unfinished" for part in range(parts) for kind in ("rows", "json")
    ]


def test_a_resumed_output_empties_it_no_more_often(flushed: list[tuple[str, str]], tmp_path: Path) -> None:
    interrupt(tmp_path / "x.npy")
    del flushed[:]
    with output(tmp_path / "x.npy") as out:
        out.write(result(out.done))
    assert len(full(flushed)) == 3


@needs("train")
def test_arrays_are_on_the_disk_before_the_state_that_names_them(
    flushed: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Flushing `state.json` empties the cache of the disk, in which the arrays are, before it has its name."""
    from mlxbert.train.loop.adamw import AdamW
    from mlxbert.train.loop.saved_run import Progress, RunState, RunStore

    arrays = {"a": mx.zeros((2,))}
    best = Progress(step=1, best_step=1)
    RunStore(tmp_path, "owner").save(RunState(best, arrays, AdamW(arrays, arrays), best=arrays))
    folder = tmp_path.name
    assert flushed == [
        *(("fsync", "best-00000001.safetensors.unfinished"), ("rename", "best-00000001.safetensors")),
        ("fsync", folder),
        *(("fsync", "state-00000001.safetensors.unfinished"), ("rename", "state-00000001.safetensors")),
        ("fsync", folder),
        *(("full", "state.json.unfinished"), ("rename", "state.json"), ("full", folder)),
    ]


@needs("train")
def test_a_finished_run_empties_it_for_its_result(flushed: list[tuple[str, str]], tmp_path: Path) -> None:
    from mlxbert.train.training_folders import Workspace

    Workspace(tmp_path / "out", {}).finish(0, {}, {"a": mx.zeros((2,))})
    assert full(flushed) == ["result.json.unfinished", "000"]
