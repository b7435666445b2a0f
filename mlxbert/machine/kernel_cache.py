"""Where MLX keeps the kernels that it compiles on CUDA: next to mlxbert's other caches, for later runs.

Left to itself, MLX keeps them in the system's folder for temporary files, by their names alone: not by the GPU, and
written in place, so that a process reads what another one has half written, and what a killed one left
(mlx/backend/cuda/jit_module.cpp). Here a folder belongs to a version of MLX and a kind of GPU. Each process has one of
its own, with links to the kernels that are kept, and moves the kernels that it has compiled there, each file whole:
after the first update of a training, with each saved state, and when the program ends.

A kernel is a `.ptx`, its code, and a `.txt`, the list of its functions; MLX divides long names into folders.
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
_OWN = "process-"
_ABANDONED = 7 * 24 * 3600  # seconds after which a folder of another machine's process is removed
_process: tuple[Path, Path, int] | None = None  # the folder of this process, that of the kept kernels, its number


def keep_kernels(version: str, gpu: Mapping[str, object]) -> None:
    """Has MLX keep the kernels that this process compiles, unless the user has named a folder.

    Args:
        version: That of MLX.
        gpu: What MLX says of the GPU.
    """
    global _process
    cache, named = cache_folder(), os.environ.get(VARIABLE)
    if cache is None or (named and not _is_own(Path(named), cache)):
        return
    kept = cache / "ptx" / f"{version}-{_kind(gpu)}"
    try:
        kept.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_private(kept):  # what is in it runs on the GPU
            return
        _remove_abandoned(kept)
        own = Path(tempfile.mkdtemp(prefix=f"{_OWN}{os.getpid()}@{_machine()}-", dir=kept))
        for path in _files(kept):
            if path.suffix != ".txt" or path.with_suffix(".ptx").exists():  # half of a kernel is compiled again
                link = own / path.relative_to(kept)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
    except OSError:  # nothing can be written there: MLX compiles again, each time
        return
    os.environ[VARIABLE], _process = str(own), (own, kept, os.getpid())
    atexit.register(end)


def move_compiled() -> None:
    """Moves the kernels that this process has compiled to those that are kept. Not while one is being compiled."""
    if _process is None or _process[2] != os.getpid():  # a fork, which uses the folder of its parent
        return
    own, kept, _ = _process
    # The list of a kernel's functions is read after its code: it has to be there first.
    for path in sorted(_files(own), key=lambda path: path.suffix == ".ptx"):
        if not path.is_symlink():
            with suppress(OSError):
                target = kept / path.relative_to(own)
                target.parent.mkdir(parents=True, exist_ok=True)
                replace_file(path, target)


def end() -> None:
    """`move_compiled`, and removes the folder of this process."""
    move_compiled()
    if _process is not None and _process[2] == os.getpid():
        shutil.rmtree(_process[0], ignore_errors=True)


def builds_first(what: str) -> bool:
    """Whether no process has yet built the kernels of `what` (a word); asked once, as this one does."""
    if _process is None or _process[2] != os.getpid() or (mark := _process[0] / f"built-{what}").exists():
        return False
    try:
        mark.touch()
    except OSError:
        return False
    return True


def _files(folder: Path) -> Iterator[Path]:
    """The files in a folder of kernels, but for those of processes."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(_OWN):
            yield path


def _is_own(folder: Path, cache: Path) -> bool:
    """Whether a folder is that of a process: of this one, or of the one that has started it."""
    return folder.name.startswith(_OWN) and cache / "ptx" in folder.parents


def _kind(gpu: Mapping[str, object]) -> str:
    """The compute capability, `9.0`; without one the name of the GPU, as a name of a file."""
    numbers = [gpu.get(f"compute_capability_{part}") for part in ("major", "minor")]
    if all(isinstance(number, int) for number in numbers):
        return ".".join(map(str, numbers))
    return re.sub(r"\W+", "-", str(gpu.get("architecture") or gpu.get("device_name")))


def _machine() -> str:
    return re.sub(r"\W+", "_", os.uname().nodename)


def _remove_abandoned(kept: Path) -> None:
    """Removes the folders of processes that were killed: of this machine's at once, as their numbers are known here."""
    for folder in kept.glob(f"{_OWN}*"):
        number, _, machine = folder.name.removeprefix(_OWN).rpartition("-")[0].partition("@")
        here = machine == _machine() and number.isdecimal()
        with suppress(OSError):
            if not _runs(int(number)) if here else time.time() - folder.stat().st_mtime > _ABANDONED:
                shutil.rmtree(folder, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True
