"""Caches the kernels that MLX compiles on CUDA, so that later runs can reuse them.

By default, MLX stores kernels in the system's folder for temporary files, under the same names for every GPU. It writes
them in place: a process may read a file that another process has not finished, or that a killed process left behind
(mlx/backend/cuda/jit_module.cpp). Here, each combination of an MLX version and a kind of GPU has a folder of kept
kernels, next to mlxbert's other caches. In this folder, each process has its own folder, with links to the kept
kernels. A process moves the kernels that it has compiled to the kept kernels, as complete files: after the first update
of a training, with each saved state, and when the program ends.

A kernel consists of a `.ptx` file with its code and a `.txt` file with the list of its functions. MLX splits long names
into folders.
"""

import atexit
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from mlxbert.machine.user_folders import cache_folder, is_private
from mlxbert.paths import replace_file

VARIABLE = "MLX_PTX_CACHE_DIR"  # MLX reads it when it compiles its first kernel
_PREFIX = "process-"  # of the name of a process's folder
_ABANDONED = 7 * 24 * 3600  # seconds after which a folder of another machine's process is removed
_process: tuple[Path, Path, int] | None = None  # this process's folder, the folder of kept kernels, the process id


def keep_kernels(version: str, gpu: Mapping[str, object]) -> None:
    """Makes MLX keep the kernels that this process compiles, unless the user has chosen a folder.

    Args:
        gpu: MLX's description of the GPU.
    """
    global _process
    cache, variable = cache_folder(), os.environ.get(VARIABLE)
    if cache is None or (variable and not _is_own(Path(variable), cache)):
        return
    kept = cache / "ptx" / f"{version}-{_kind(gpu)}"
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(kept):  # the kernels in it run on the GPU
            return
        _remove_abandoned(kept)
        own = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}@{_machine()}-", dir=kept))
        for path in _files(kept):
            if path.suffix != ".txt" or path.with_suffix(".ptx").exists():  # an incomplete kernel is compiled again
                link = own / path.relative_to(kept)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
    except OSError:  # the folder is not writable: MLX compiles every time
        return
    os.environ[VARIABLE], _process = str(own), (own, kept, os.getpid())
    atexit.register(end)


def move_compiled() -> None:
    """Moves this process's compiled kernels to the kept kernels; must not run during a compilation."""
    if _process is None or _process[2] != os.getpid():  # a fork, which uses the folder of its parent
        return
    own, kept, _ = _process
    # The list of a kernel's functions is read after its code, so it has to be moved first.
    for path in sorted(_files(own), key=lambda path: path.suffix == ".ptx"):
        if not path.is_symlink():
            with suppress(OSError):
                target = kept / path.relative_to(own)
                target.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, target)


def end() -> None:
    """Moves compiled kernels (see `move_compiled`), and removes the folder of this process."""
    move_compiled()
    if _process is not None and _process[2] == os.getpid():
        shutil.rmtree(_process[0], ignore_errors=True)


def builds_first(what: str) -> bool:
    """Whether the kernels for `what`, `inference` or `training`, are not compiled yet; marks them as compiled."""
    if _process is None or _process[2] != os.getpid() or (mark := _process[0] / f"built-{what}").exists():
        return False
    try:
        mark.touch()
    except OSError:
        return False
    return True


def _files(folder: Path) -> Iterator[Path]:
    """Yields the files in a folder of kernels, except those in the folders of processes."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(_PREFIX):
            yield path


def _is_own(folder: Path, cache: Path) -> bool:
    """Whether a folder was made by `keep_kernels`, here or in a parent process, rather than chosen by the user."""
    return folder.name.startswith(_PREFIX) and cache / "ptx" in folder.parents


def _kind(gpu: Mapping[str, object]) -> str:
    """The GPU's compute capability, such as `9.0`, or else its name, spelled as a file name."""
    numbers = [gpu.get(f"compute_capability_{part}") for part in ("major", "minor")]
    if all(isinstance(number, int) for number in numbers):
        return ".".join(map(str, numbers))
    return re.sub(r"\W+", "-", str(gpu.get("architecture") or gpu.get("device_name")))


def _machine() -> str:
    return re.sub(r"\W+", "_", os.uname().nodename)


def _remove_abandoned(kept: Path) -> None:
    """Removes the folders that killed processes left behind.

    Whether a process still runs is known only on its own machine; folders from other machines are removed once they
    are old.
    """
    for folder in kept.glob(f"{_PREFIX}*"):
        number, _, machine = folder.name.removeprefix(_PREFIX).rpartition("-")[0].partition("@")
        is_local = machine == _machine() and number.isdecimal()
        with suppress(OSError):
            if not _runs(int(number)) if is_local else time.time() - folder.stat().st_mtime > _ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # the process belongs to another user
        return True
    return True
