"""Where MLX keeps the kernels that it compiles on CUDA: beside mlxbert's other caches, for later runs.

Left to itself, MLX keeps them in the system's folder for temporary files, by their names alone: not by the GPU, and
written in place, so that a process reads what another one has half written, and what a killed one left
(mlx/backend/cuda/jit_module.cpp). Here a folder belongs to a version of MLX and a kind of GPU. Each process has one of
its own, with links to the kernels that are kept; when it ends, it moves those that it compiled to them, each whole.
"""

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mlxbert.machine.cache import own_folder

VARIABLE = "MLX_PTX_CACHE_DIR"  # MLX reads it when it compiles its first kernel
_OWN = "process-"


def keep_kernels(version: str, gpu: Mapping[str, object]) -> None:
    """Has MLX keep the kernels that this process compiles, unless the user has named a folder.

    Args:
        version: That of MLX.
        gpu: What MLX says of the GPU.
    """
    cache, named = own_folder(), os.environ.get(VARIABLE)
    if cache is None or (named and not _is_own(Path(named))):
        return
    kept = cache / "ptx" / f"{version}-{_kind(gpu)}"
    try:
        kept.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(kept)
        own = Path(tempfile.mkdtemp(prefix=f"{_OWN}{os.getpid()}-", dir=kept))
        for path in kept.iterdir():
            if path.is_file():
                (own / path.name).symlink_to(path)
    except OSError:  # nothing can be written there: MLX compiles again, each time
        return
    os.environ[VARIABLE] = str(own)
    atexit.register(_move, own, kept, os.getpid())


def builds_first(what: str) -> bool:
    """Whether no process has yet built the kernels of `what` (a word); asked once, as this one does."""
    own = Path(os.environ.get(VARIABLE, ""))
    if not _is_own(own) or (mark := own / f"built-{what}").exists():
        return False
    try:
        mark.touch()
    except OSError:
        return False
    return True


def _is_own(folder: Path) -> bool:
    """Whether a folder is that of a process: of this one, or of the one that has started it."""
    return folder.name.startswith(_OWN)


def _kind(gpu: Mapping[str, object]) -> str:
    """The compute capability, `9.0`; without one the name of the GPU, as a name of a file."""
    numbers = [gpu.get(f"compute_capability_{part}") for part in ("major", "minor")]
    if all(isinstance(number, int) for number in numbers):
        return ".".join(map(str, numbers))
    return re.sub(r"\W+", "-", str(gpu.get("architecture") or gpu.get("device_name")))


def _move(own: Path, kept: Path, process: int) -> None:
    """Moves the kernels that a process compiled, at its end, and removes its folder."""
    if os.getpid() != process:  # this is a fork of it, which goes on
        return
    with suppress(OSError):
        # The list of a kernel's functions is read after its code: it has to be there first.
        for path in sorted(own.iterdir(), key=lambda path: path.suffix == ".ptx"):
            if not path.is_symlink():
                path.replace(kept / path.name)
    shutil.rmtree(own, ignore_errors=True)


def _remove_abandoned(kept: Path) -> None:
    """Removes the folders of processes that were killed."""
    for folder in kept.glob(f"{_OWN}*"):
        number = folder.name.removeprefix(_OWN).partition("-")[0]
        if number.isdecimal() and not _runs(int(number)):
            shutil.rmtree(folder, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is another user's
        return True
    return True
