"""The library of matrix products on a CPU: a fast one is found and loaded, if there is one.

It must be loaded before MLX, whose Linux wheel brings the reference BLAS (5 to 8 GFLOP/s on two cores that can do 250):
`mlxbert.device` does both in this order.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mlxbert.errors import DeviceError


@dataclass(frozen=True)
class Blas:
    """The library that computes MLX's matrix products on a CPU.

    Attributes:
        name: `accelerate`, `openblas`, `mkl`, `reference`, or the requested path.
        path: The file that was loaded, if one was.
        hint: How to get a faster one, if that is possible.
        set_threads: Sets how many threads it uses, if it has a function for that.
    """

    name: str
    path: str | None = None
    hint: str | None = None
    set_threads: Callable[[int], None] | None = None


def _mkl_of_this_environment() -> list[str]:
    # The mkl wheel puts its libraries into <prefix>/lib, where the dynamic linker does not look.
    return [str(path) for path in sorted(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))]


def openblas_core(cpuinfo: str) -> str | None:
    """The kernels that OpenBLAS should use on a processor that it may be too old to know.

    Older releases (0.3.21, Debian 12's) use the 256-bit kernels of the first Zen on AMD's Zen 4 and 5. The 512-bit
    kernels for SkylakeX run there, too; with them, embedding with a MiniLM was about 7 % faster.

    Args:
        cpuinfo: The content of Linux's `/proc/cpuinfo`.
    """
    flags = next((line.split() for line in cpuinfo.split("\n") if line.startswith("flags")), [])
    wide = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"} <= set(flags)
    return "SKYLAKEX" if wide and "AuthenticAMD" in cpuinfo else None


def _cpuinfo() -> str:
    """What Linux says of the first processor."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            return file.read(8192)
    except OSError:
        return ""


def load_blas() -> Blas:
    """Loads a fast BLAS into the global symbol scope, where MLX's own calls then find it.

    `MLXBERT_BLAS` names a library, or is `off`. Without it: MKL if this Python environment has it (the `mkl` extra),
    and the system's OpenBLAS otherwise, or on a processor of AMD. The OpenBLAS inside numpy's wheel is of no use: its
    symbols are renamed.
    """
    if sys.platform != "linux":
        return Blas("accelerate")
    if "mlx.core" in sys.modules:
        return Blas("unknown", hint="import mlxbert.device before mlx: a fast BLAS has to be loaded first")
    wanted = os.environ.get("MLXBERT_BLAS", "")
    if wanted == "off":
        return Blas("reference")
    cpuinfo = _cpuinfo()
    mkl, openblas = [("mkl", path) for path in _mkl_of_this_environment()], [("openblas", "libopenblas.so.0")]
    # On AMD's processors OpenBLAS is the faster one: MKL had 0.70 to 0.93 of its speed.
    candidates = [*openblas, *mkl] if "AuthenticAMD" in cpuinfo else [*mkl, *openblas]
    if wanted:
        candidates = [(wanted, wanted)]
    if (core := openblas_core(cpuinfo)) is not None:
        os.environ.setdefault("OPENBLAS_CORETYPE", core)
    for name, path in candidates:
        try:
            library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError as problem:
            if wanted:
                raise DeviceError(
                    f"MLXBERT_BLAS={wanted}: the library cannot be loaded ({problem})",
                    hint="give the path of a shared library with cblas_sgemm, or 'off'",
                ) from None
            continue
        setters = (getattr(library, symbol, None) for symbol in ("openblas_set_num_threads", "MKL_Set_Num_Threads"))
        return Blas(name, path, set_threads=next((setter for setter in setters if setter), None))
    return Blas(
        "reference",
        hint="matrix products run on the reference BLAS, many times slower than this machine allows: "
        "install OpenBLAS (Debian, Ubuntu: apt install libopenblas0-pthread), or mlxbert's 'mkl' extra",
    )
