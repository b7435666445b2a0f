"""The kernels that MLX compiles on CUDA: kept for later runs, each whole, by the version of MLX and the kind of GPU."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mlxbert.machine import device, kernel_cache
from mlxbert.machine.kernel_cache import VARIABLE, builds_first, end, keep_kernels, move_compiled

H200 = {"device_name": "NVIDIA H200", "compute_capability_major": 9, "compute_capability_minor": 0}
LONG = "/".join("x" * 245 for _ in range(2)) + "/adamw"  # MLX divides long names into folders
MACHINE = os.uname().nodename.replace("-", "_").replace(".", "_")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="MLX runs on CUDA on Linux alone")


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the kernels of an H200; no process has begun yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")  # so that it is unset afterwards
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setattr(kernel_cache, "_process", None)
    monkeypatch.setattr(kernel_cache.atexit, "register", lambda call: None)  # type: ignore[attr-defined]
    return tmp_path / "mlxbert" / "ptx" / "0.32.4-9.0"


def begin(patch: pytest.MonkeyPatch, version: str = "0.32.4", gpu: dict[str, object] = H200) -> Path:
    """Another process; its own folder."""
    patch.delenv(VARIABLE, raising=False)
    patch.setattr(kernel_cache, "_process", None)
    keep_kernels(version, gpu)
    return Path(os.environ[VARIABLE])


def kept(folder: Path) -> list[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if not path.parts[0].startswith("process-"))


def compiled(own: Path, *names: str) -> None:
    """MLX compiles kernels: it writes two files of each, in place."""
    for name in names:
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        for ending in (".ptx", ".txt"):
            assert not (own / f"{name}{ending}").exists()
            (own / f"{name}{ending}").write_text(f"{name}{ending}")


def has(own: Path, *names: str) -> bool:
    """Whether MLX finds kernels, and need not compile them."""
    return all((own / f"{name}.ptx").read_text() == f"{name}.ptx" for name in names)


def both(*names: str) -> list[str]:
    return sorted(f"{name}{ending}" for name in names for ending in (".ptx", ".txt"))


def test_a_later_process_has_the_kernels_of_earlier_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = begin(monkeypatch)
    compiled(first, "gelu", LONG)
    assert kept(folder) == []  # half of a file may be there
    move_compiled()
    assert kept(folder) == both("gelu", LONG) and first.exists()
    compiled(first, "relu")
    end()
    assert kept(folder) == both("gelu", LONG, "relu") and not first.exists()
    second = begin(monkeypatch)
    assert has(second, "gelu", LONG, "relu")
    compiled(second, "softmax", LONG + "-2", "a")
    end()
    assert has(begin(monkeypatch), "gelu", LONG, "softmax", LONG + "-2", "a")
    assert not any((folder / name).is_symlink() for name in kept(folder))


def test_two_processes_at_the_same_time_keep_the_kernels_of_both(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = begin(monkeypatch)
    state = kernel_cache._process
    second = begin(monkeypatch)
    assert first != second
    compiled(first, "gelu", LONG)
    compiled(second, "gelu", LONG, "softmax")
    end()
    monkeypatch.setattr(kernel_cache, "_process", state)
    end()
    assert kept(folder) == both("gelu", LONG, "softmax")


def test_half_of_a_kernel_is_compiled_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process is between both files, or was killed there: nothing is written through a link."""
    begin(monkeypatch)
    (folder / "gelu.txt").write_text("functions")
    compiled(begin(monkeypatch), "gelu")
    assert (folder / "gelu.txt").read_text() == "functions"
    end()
    assert kept(folder) == both("gelu") and (folder / "gelu.txt").read_text() == "gelu.txt"


def test_versions_and_kinds_of_gpu_have_kernels_of_their_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(monkeypatch, "0.33.0")
    others: list[dict[str, object]] = [H200, {"architecture": "sm_121a"}, {"device_name": "GB10 / test"}]
    for gpu in others:
        begin(monkeypatch, gpu=gpu)
    found = {path.name for path in folder.parent.iterdir()}
    assert found == {"0.32.4-9.0", "0.33.0-9.0", "0.32.4-sm_121a", "0.32.4-GB10-test"}


def test_what_killed_processes_left_is_removed_and_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = 2**22 + 1  # more than a system has
    names = {
        "left": f"process-{killed}@{MACHINE}-a", "running": f"process-{os.getppid()}@{MACHINE}-b",
        "elsewhere": f"process-{killed}@another-c", "long ago": f"process-{killed}@another-d",
    }  # fmt: skip
    for name in names.values():
        (folder / name).mkdir(parents=True, mode=0o700)
        (folder / name / "half.ptx").write_text("co")
    folder.chmod(0o700)
    folder.parent.chmod(0o700)
    os.utime(folder / names["long ago"], (time.time() - 30 * 24 * 3600,) * 2)
    own = begin(monkeypatch)
    assert {kind for kind, name in names.items() if (folder / name).exists()} == {"running", "elsewhere"}
    assert not [*own.iterdir()]


def test_the_folder_that_a_user_names_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("own", "process-of-mine"):
        monkeypatch.setenv(VARIABLE, str(tmp_path / name))
        keep_kernels("0.32.4", H200)
        assert os.environ[VARIABLE] == str(tmp_path / name) and not builds_first("training")
        move_compiled()
        end()
    assert not [*tmp_path.iterdir()]


def test_a_process_that_another_one_starts_has_a_folder_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begin(monkeypatch)
    compiled(first, "gelu")
    with monkeypatch.context() as fork:
        fork.setattr(os, "getpid", lambda: 1)
        end()
    assert first.exists() and kept(folder) == []
    monkeypatch.setattr(kernel_cache, "_process", None)
    keep_kernels("0.32.4", H200)  # with the environment of the other
    assert Path(os.environ[VARIABLE]) != first


def test_where_nothing_can_be_written_or_others_can_write_nothing_is_kept(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    for cache in ("/proc/none", str(tmp_path)):
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
        keep_kernels("0.32.4", H200)
        assert VARIABLE not in os.environ


def test_that_kernels_are_built_is_said_once_for_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(device, "on_cuda", lambda: True)
    monkeypatch.setattr(device, "hint_once", said.append)
    for _ in range(2):
        begin(monkeypatch)
        for what in ("inference", "inference", "training"):
            device.say_what_is_built(what)
        end()
    assert ["inference" in text for text in said] == [True, False] and "training" in said[1]
    begin(monkeypatch)
    shutil.rmtree(tmp_path / "mlxbert")
    end()  # without its folder
    assert not builds_first("training")


CODE = """
import os, sys
from mlxbert.machine import device, kernel_cache
kernel_cache.keep_kernels("0.32.4", {"architecture": "sm_90a"})
open(os.path.join(os.environ["MLX_PTX_CACHE_DIR"], "gelu.ptx"), "w").write("code")
"""
ENDS = {
    "a script": "",
    "an error": "raise ValueError",
    "the program": "sys.argv = ['mlxbert', '--version']; from mlxbert.cli import main; main()",
    "a wrong call of the program": "sys.argv = ['mlxbert', 'nothing']; from mlxbert.cli import main; main()",
}


@pytest.mark.slow
@pytest.mark.parametrize("ends", ENDS)
def test_kernels_are_kept_however_a_process_ends(ends: str, folder: Path) -> None:
    subprocess.run([sys.executable, "-c", CODE + ENDS[ends]], capture_output=True, check=False)
    assert [path.name for path in folder.with_name("0.32.4-sm_90a").rglob("*")] == ["gelu.ptx"]
