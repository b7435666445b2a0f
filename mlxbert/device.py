"""Which device, which dtype, which BLAS: the only file that knows the hardware, and the only one that imports MLX.

All other modules write `from mlxbert.device import mx, nn`. This guarantees that on Linux, where the MLX wheel brings
the reference BLAS (5 to 8 GFLOP/s on two cores that can do 250), a fast BLAS is loaded before MLX binds its symbols.
Loading it later has no effect.
"""

import ctypes
import functools
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mlxbert.errors import ArgumentError, DeviceError

DTYPES = ("auto", "float32", "float16", "bfloat16")
DEVICES = ("auto", "gpu", "cpu")
SUPPORTED = "mlxbert runs on Apple silicon (macOS 14 or newer) and on Linux with glibc 2.35 or newer (x86-64, arm64)"

_GIB = 2**30
_MAX_STREAMS = 16
T = TypeVar("T")
_streams = threading.local()  # streams belong to threads
_LOG = logging.getLogger("mlxbert")


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


def _prepare_openblas() -> None:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            core = openblas_core(file.read(8192))  # the first processor
    except OSError:
        return
    if core is not None:
        os.environ.setdefault("OPENBLAS_CORETYPE", core)


def _load_blas() -> Blas:
    """Loads a fast BLAS into the global symbol scope, where MLX's own calls then find it.

    `MLXBERT_BLAS` names a library, or is `off`. Without it: MKL if this Python environment has it (the `mkl` extra),
    else the system's OpenBLAS. The OpenBLAS inside numpy's wheel is of no use: its symbols are renamed.
    """
    if sys.platform != "linux":
        return Blas("accelerate")
    if "mlx.core" in sys.modules:
        return Blas("unknown", hint="import mlxbert.device before mlx: a fast BLAS has to be loaded first")
    wanted = os.environ.get("MLXBERT_BLAS", "")
    if wanted == "off":
        return Blas("reference")
    candidates = [(wanted, wanted)] if wanted else [("mkl", path) for path in _mkl_of_this_environment()]
    if not wanted:
        candidates.append(("openblas", "libopenblas.so.0"))
    _prepare_openblas()
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


def _keep_freed_memory() -> None:
    """Keeps glibc from returning every large buffer to the kernel.

    On a CPU, MLX takes each intermediate array from malloc. Above 32 MB (128 KB at first) glibc maps fresh pages for
    it, and clearing them costs more than the arithmetic: a GELU over 4096 x 3072 takes 164 ms instead of 65.
    """
    try:
        libc = ctypes.CDLL(None)
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc.mallopt(m_mmap_threshold, _GIB)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
    except (OSError, AttributeError):  # another libc: nothing to set, only slower
        pass


BLAS = _load_blas()
if sys.platform == "linux":
    _keep_freed_memory()

try:
    import mlx.core as mx
    import mlx.nn as nn
except ImportError as problem:
    raise DeviceError(
        f"MLX cannot be loaded on {platform.system()} {platform.machine()} ({problem})", hint=SUPPORTED
    ) from None

__all__ = [
    "BLAS",
    "DEVICES",
    "DTYPES",
    "Blas",
    "available_memory",
    "choose_dtype",
    "cpu_streams",
    "describe",
    "dtype_name",
    "in_parallel",
    "measure_gflops",
    "mx",
    "nn",
    "on_gpu",
    "training_workers",
    "use",
]


def use(device: str = "auto") -> mx.Device:
    """Makes `device` MLX's default and bounds what MLX keeps of freed buffers.

    Args:
        device: `auto` (that of `MLXBERT_DEVICE`, else the GPU if there is one), `gpu` or `cpu`.

    Returns:
        The device now in use.

    Raises:
        ArgumentError: `device` is invalid.
        DeviceError: `gpu` was requested, and there is none.
    """
    named = "device"
    if device == "auto" and os.environ.get("MLXBERT_DEVICE"):
        named, device = "MLXBERT_DEVICE", os.environ["MLXBERT_DEVICE"]
    if device not in DEVICES:
        raise ArgumentError(f"{named} is {device!r}, expected one of {', '.join(DEVICES)}")
    gpu = mx.is_available(mx.gpu)
    if device == "gpu" and not gpu:
        raise DeviceError(f"{named} is 'gpu', but MLX finds no GPU here", hint="'auto' uses what is available")
    mx.set_default_device(mx.Device(mx.gpu if gpu and device != "cpu" else mx.cpu))
    if gpu:
        # By default MLX caches freed buffers up to about the memory of the device (mlx-lm and others were seen at ten
        # times the size of their weights); a gibibyte is more than one batch of any encoder allocates.
        mx.set_cache_limit(_GIB)
    elif BLAS.hint:
        _hint_once(BLAS.hint)
    return mx.default_device()


@functools.cache
def _hint_once(text: str) -> None:
    _LOG.warning(text)


def on_gpu() -> bool:
    """Whether MLX computes on a GPU now."""
    return mx.default_device().type == mx.DeviceType.gpu


def cpu_streams(batch: int) -> list[mx.Stream]:
    """The streams that the parts of a batch run on in parallel, and the threads that BLAS then has in each.

    Fewer than two streams mean: do not split the batch.

    MLX computes everything but matrix products on one core. On a Linux CPU each core gets its own stream, and BLAS
    one thread in each; a batch that cannot be split leaves the cores to BLAS.
    """
    if on_gpu() or sys.platform != "linux" or mx.default_stream(mx.cpu) in _stream_per_core():
        return []  # the last: this is a part already, of a step of training
    cores = _cores()
    count = min(cores, batch)
    if BLAS.set_threads is not None:
        BLAS.set_threads(1 if count > 1 else cores)
    elif BLAS.name != "reference":  # threads that we cannot limit would compete for the cores
        return []
    return _stream_per_core()[:count]


def training_workers() -> list[ThreadPoolExecutor]:
    """The threads that compute the parts of a training batch in parallel; empty where the calling thread does it all.

    Each has a stream of its own. A stream accepts few operations beyond the one that it runs, so a single thread that
    hands work to several streams keeps only one of them busy.

    Call it before every update: an evaluation in between changes the threads of BLAS. See `cpu_streams`; here the
    number of workers is always the same, as sums of gradients depend on it in their last digits.
    """
    if on_gpu() or sys.platform != "linux":
        return []
    return [_worker(number) for number, _ in enumerate(cpu_streams(_cores()))]


def in_parallel(jobs: Sequence[Callable[[], T]]) -> list[T]:
    """Runs the jobs of a training step on `training_workers`, or in turn where there are none; results in order.

    Arrays that jobs take must be evaluated, and jobs evaluate what they return: a thread cannot evaluate what another
    one left lazy.
    """
    workers = training_workers()
    if not workers:
        return [job() for job in jobs]
    waiting = [workers[number % len(workers)].submit(job) for number, job in enumerate(jobs)]
    return [one.result() for one in waiting]


@functools.cache
def _worker(number: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, f"mlxbert-training-{number}", initializer=_own_stream)


def _own_stream() -> None:
    """Gives the calling thread one stream, on which it computes everything."""
    _streams.found = [mx.new_stream(mx.cpu)]
    mx.set_default_device(mx.cpu)
    mx.set_default_stream(_streams.found[0])


def _cores() -> int:
    return min(len(os.sched_getaffinity(0)), _MAX_STREAMS)


def _stream_per_core() -> list[mx.Stream]:
    """The streams of this thread, on a Linux CPU."""
    if not hasattr(_streams, "found"):
        _streams.found = [mx.new_stream(mx.cpu) for _ in range(_cores())]
    found: list[mx.Stream] = _streams.found
    return found


def choose_dtype(name: str = "auto") -> mx.Dtype:
    """The dtype to compute in: as named, or the one that suits the device in use.

    `auto` is float32 on a CPU (half precision is emulated there), float16 on an Apple GPU (M1 and M2 have no bfloat16
    units), bfloat16 on CUDA.
    """
    if name not in DTYPES:
        raise ArgumentError(f"dtype is {name!r}, expected one of {', '.join(DTYPES)}")
    if name == "auto":
        name = "float32" if not on_gpu() else "float16" if mx.metal.is_available() else "bfloat16"
    dtype: mx.Dtype = getattr(mx, name)
    return dtype


def dtype_name(dtype: mx.Dtype) -> str:
    """`float32` and so on."""
    return str(dtype).removeprefix("mlx.core.")


def describe() -> dict[str, object]:
    """What `mlxbert doctor` shows of the device in use."""
    info = mx.device_info()
    return {
        "device": "gpu" if on_gpu() else "cpu",
        "gpu_found": mx.is_available(mx.gpu),
        "chip": info.get("device_name") or platform.processor(),
        "dtype": dtype_name(choose_dtype()),
        "cores": os.cpu_count(),
        "memory_gib": None if (memory := available_memory()) is None else round(memory / _GIB, 1),
        "blas": BLAS.name,
        "blas_path": BLAS.path,
        "blas_hint": BLAS.hint,
    }


def measure_gflops(size: int = 1024, runs: int = 5) -> float:
    """Billions of float32 operations a second in a square matrix product, the best of a few runs."""
    left, right = mx.random.normal((size, size)), mx.random.normal((size, size))
    mx.eval(left @ right)
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        mx.eval(left @ right)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds) / 1e9


def available_memory() -> int | None:
    """Bytes that computing on the device in use can take: what the GPU recommends, or the memory of the machine."""
    recommended = mx.device_info().get(
        "max_recommended_working_set_size" if mx.metal.is_available() else "total_memory"
    )
    if on_gpu() and isinstance(recommended, int):
        return recommended
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
