"""Atomic writes, locks and hashes, and what survives a power cut on macOS."""

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlxbert.cli.output.resumable_file import PART
from mlxbert.durable_files import (
    DamagedError,
    acquire_lock,
    atomic_write,
    check_hash,
    check_space,
    read_record,
    sha256,
    write_record,
)
from mlxbert.errors import ArgumentError, MlxbertError
from mlxbert.machine.device import mx
from tests.helpers.rooms import needs
from tests.test_apple_double import interrupt, output, result


@pytest.mark.slow
def test_processes_without_a_lock_do_not_write_into_each_others_files(tmp_path: Path) -> None:
    """While one process writes, another writes the same file from beginning to end."""
    code = (
        "import sys; from pathlib import Path; from mlxbert.durable_files import atomic_write\n"
        "with atomic_write(Path(sys.argv[1]), locked=False) as file: file.write(b'other')"
    )
    path = tmp_path / "x"
    with atomic_write(path, locked=False) as file:
        file.write(b"whole ")
        file.flush()
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)
        assert path.read_bytes() == b"other"
        file.write(b"content")
    assert path.read_bytes() == b"whole content" and list(tmp_path.iterdir()) == [path]


def test_a_file_appears_whole_and_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        assert (tmp_path / "x.unfinished").exists()
        with pytest.raises(OSError):
            file.seek(0)  # the hash is that of the bytes as they come
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("x", b"new")]
    assert sha256(path) == file.sha256 == hashlib.sha256(b"new").hexdigest()


def test_a_hash_is_that_of_a_file_or_of_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    for size, content in ((None, b"abc"), (3, b"abc"), (2, b"ab"), (0, b"")):
        check_hash(path, hashlib.sha256(content).hexdigest(), size)
        with pytest.raises(DamagedError, match="x"):
            check_hash(path, hashlib.sha256(content + b"?").hexdigest(), size)


VALUES = {"a": [1, 2.5, None, True, "\udcff é"], "nan": float("inf"), "b": {"c": -0.0}}


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_record(tmp_path / "x.json", VALUES, ["owner", 1])
    assert read_record(tmp_path / "x.json", ["owner", 1]) == VALUES


@pytest.mark.parametrize(("old", "new"), [('"a"', '"e"'), ("2.5", "2.6"), ("1,", "1.0,"), ("true", "1"), ("null", "0")])
def test_a_changed_record_is_damaged(old: str, new: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_record(path, VALUES)
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(DamagedError, match=r"x\.json"):
        read_record(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b"null", b"{}", b"\xff", b'{"digest": 1}', b"[" * 100_000])
def test_what_is_no_record_is_damaged(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(DamagedError):
        read_record(tmp_path / "x.json")


def test_a_record_of_another_owner_or_name_is_damaged(tmp_path: Path) -> None:
    write_record(tmp_path / "x.json", VALUES, "one")
    shutil.copyfile(tmp_path / "x.json", tmp_path / "y.json")
    for name, owner in (("x.json", "other"), ("x.json", None), ("y.json", "one")):
        with pytest.raises(DamagedError):
            read_record(tmp_path / name, owner)
    with pytest.raises(FileNotFoundError):
        read_record(tmp_path / "z.json")


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_nothing_remains_of_a_failed_write(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), atomic_write(tmp_path / "x") as file:
        file.write(b"new")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    with acquire_lock(tmp_path / "lock", "run"), pytest.raises(ArgumentError) as caught:
        acquire_lock(tmp_path / "lock", "run", hint="wait")
    assert str(tmp_path) in caught.value.message and caught.value.hint == "wait"
    acquire_lock(tmp_path / "lock", "run").close()


@pytest.mark.parametrize("remade", [False, True])
def test_a_lock_whose_file_was_removed_meanwhile_is_not_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, remade: bool
) -> None:
    folder = tmp_path / "x.partial"
    folder.mkdir()

    def finish_first(*given: object) -> None:
        shutil.rmtree(folder)
        if remade:
            folder.mkdir()
            (folder / "lock").touch()

    monkeypatch.setattr("fcntl.flock", finish_first)
    with pytest.raises(ArgumentError, match=r"x\.partial.*another"):
        acquire_lock(folder / "lock", "run")


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_volume_without_locks_is_used_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def refuse(*given: object) -> None:
        raise OSError(number, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    with acquire_lock(tmp_path / "lock", "run") as file:
        assert not file.closed
    (record,) = caplog.records
    assert f"{tmp_path}: this volume has no locks (Operation not supported)" in record.getMessage()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOLCK])
def test_a_lock_that_fails_otherwise_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*given: object) -> None:
        raise OSError(number, "Input/output error")

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(OSError, match="Input/output"):
        acquire_lock(tmp_path / "lock", "run")


@pytest.mark.parametrize(
    ("platform", "hint", "expected"),
    [
        ("linux", None, None),
        ("linux", "set X", "set X"),
        ("darwin", None, "Finder also counts purgeable space"),
        ("darwin", "set X", "set X; Finder also counts purgeable space"),
    ],
)
def test_a_full_disk_is_refused_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, hint: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    check_space(tmp_path / "x", 1, hint=hint)
    with pytest.raises(MlxbertError, match="are free on this disk") as caught:
        check_space(tmp_path / "x", 2**62, hint=hint)
    assert (caught.value.hint or "").startswith(expected or "") and (expected is None) == (caught.value.hint is None)


FULL = 51


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """How each file and folder was flushed, and renamed, by its name, on a Mac.

    There `F_FULLFSYNC` empties the cache of the whole disk, which takes tens of milliseconds; `os.fsync` hands files to
    the disk and does not wait.
    """
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("names of open files are read in /proc")
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


def test_a_volume_that_cannot_empty_the_cache_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(descriptor: int, command: int) -> None:
        raise OSError("not on this file system")

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", refused)
    with atomic_write(tmp_path / "b") as file:
        file.write(b"y")
    assert (tmp_path / "b").read_bytes() == b"y"


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
