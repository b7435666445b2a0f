"""The kernels that MLX compiles on CUDA: kept for later runs, each whole, by the version of MLX and the kind of GPU."""

import atexit
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlxbert.machine import device
from mlxbert.machine.kernel_cache import VARIABLE, builds_first, keep_kernels

H200 = {"device_name": "NVIDIA H200", "compute_capability_major": 9, "compute_capability_minor": 0}


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Callable[[], Any]]:
    """What is to run at the end of the process, with its cache in the folder of the test."""
    found: list[Callable[[], Any]] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")  # so that it is unset afterwards
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(atexit, "register", lambda call, *given: found.append(lambda: call(*given)))
    return found


def kept(tmp_path: Path, name: str = "0.32.4-9.0") -> list[str]:
    return sorted(path.name for path in (tmp_path / "mlxbert" / "ptx" / name).iterdir())


def compiled(*names: str) -> Path:
    """MLX compiles kernels: it writes two files of each."""
    folder = Path(os.environ[VARIABLE])
    for name in names:
        (folder / f"{name}.ptx").write_text("code")
        (folder / f"{name}.txt").write_text("functions")
    return folder


def test_a_later_process_has_the_kernels_of_an_earlier_one(
    ends: list[Callable[[], Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_kernels("0.32.4", H200)
    own = compiled("adamw")
    assert kept(tmp_path) == [own.name]  # half of a file may be there
    ends.pop()()
    assert kept(tmp_path) == ["adamw.ptx", "adamw.txt"] and not own.exists()
    monkeypatch.delenv(VARIABLE)
    keep_kernels("0.32.4", H200)
    assert (Path(os.environ[VARIABLE]) / "adamw.ptx").read_text() == "code"
    compiled("gelu")
    ends.pop()()
    assert kept(tmp_path) == ["adamw.ptx", "adamw.txt", "gelu.ptx", "gelu.txt"]
    assert not any((tmp_path / "mlxbert" / "ptx" / "0.32.4-9.0" / name).is_symlink() for name in kept(tmp_path))


def test_versions_and_kinds_of_gpu_have_kernels_of_their_own(
    ends: list[Callable[[], Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {"architecture": "sm_121a"}, {"device_name": "GB10 / test"}
    for version, gpu in (("0.32.4", H200), ("0.33.0", H200), ("0.32.4", others[0]), ("0.32.4", others[1])):
        keep_kernels(version, gpu)
        monkeypatch.delenv(VARIABLE)
    assert {path.name for path in (tmp_path / "mlxbert" / "ptx").iterdir()} == {
        "0.32.4-9.0", "0.33.0-9.0", "0.32.4-sm_121a", "0.32.4-GB10-test",
    }  # fmt: skip


def test_what_a_killed_process_left_is_removed_and_not_used(
    ends: list[Callable[[], Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = 2**22 + 1  # more than a system has
    folder = tmp_path / "mlxbert" / "ptx" / "0.32.4-9.0"
    left, running = folder / f"process-{killed}-a", folder / f"process-{os.getppid()}-b"
    for other in (left, running):
        other.mkdir(parents=True)
        (other / "half.ptx").write_text("co")
    keep_kernels("0.32.4", H200)
    assert not left.exists() and running.exists()
    assert not [*Path(os.environ[VARIABLE]).iterdir()]


def test_the_folder_that_a_user_names_is_left_alone(
    ends: list[Callable[[], Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own"))
    keep_kernels("0.32.4", H200)
    assert os.environ[VARIABLE] == str(tmp_path / "own") and not ends and not builds_first("training")


def test_a_process_that_another_one_starts_has_a_folder_of_its_own(
    ends: list[Callable[[], Any]], tmp_path: Path
) -> None:
    keep_kernels("0.32.4", H200)
    first = os.environ[VARIABLE]
    keep_kernels("0.32.4", H200)  # with the environment of the other
    assert os.environ[VARIABLE] != first and len(ends) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="/proc can be written nowhere")
def test_where_nothing_can_be_written_nothing_is_kept(
    ends: list[Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    keep_kernels("0.32.4", H200)
    assert VARIABLE not in os.environ and not ends


def test_that_kernels_are_built_is_said_once_for_what_is_new(
    ends: list[Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(device, "on_cuda", lambda: True)
    monkeypatch.setattr(device, "hint_once", said.append)
    for _ in range(2):
        keep_kernels("0.32.4", H200)
        for what in ("inference", "inference", "training"):
            device.say_what_is_built(what)
        ends.pop()()
        monkeypatch.delenv(VARIABLE)
    assert ["inference" in text for text in said] == [True, False] and "training" in said[1]


def test_a_folder_that_disappears_is_no_error(ends: list[Callable[[], Any]], tmp_path: Path) -> None:
    keep_kernels("0.32.4", H200)
    shutil.rmtree(tmp_path / "mlxbert")
    ends.pop()()
    assert not builds_first("training")
