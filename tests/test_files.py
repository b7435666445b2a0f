"""Atomic writes, locks and hashes."""

import hashlib
import shutil
from pathlib import Path

import pytest

from mlxbert.errors import ArgumentError
from mlxbert.files import acquire_lock, atomic_write, fsync_dir, sha256


def test_a_file_appears_whole_and_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        assert (tmp_path / "x.unfinished").exists()
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("x", b"new")]
    assert sha256(path) == hashlib.sha256(b"new").hexdigest()


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_nothing_remains_of_a_failed_write(tmp_path: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), atomic_write(tmp_path / "x") as file:
        file.write(b"new")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_syncing_a_folder_that_is_missing_is_no_error(tmp_path: Path) -> None:
    fsync_dir(tmp_path / "none")


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
