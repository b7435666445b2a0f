"""Chooses the device and the dtype. No other file imports MLX.

All other modules write `from mlxbert.machine.device import mx, nn`. On Linux, where MLX's wheel ships the reference
BLAS (5 to 8 GFLOP/s on two cores that can do 250), this guarantees that a fast BLAS is loaded before MLX binds its
symbols. Loading it later has no effect.
"""

import contextlib
import ctypes
import functools
import logging
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from mlxbert.errors import ArgumentError, DeviceError, ThreadError
from mlxbert.machine import kernel_cache, mac
from mlxbert.machine.blas_library import Blas
from mlxbert.machine.interrupts import held
from mlxbert.option_declarations import Device, DType, check_choice

_GIB = 2**30
# By default MLX caches freed buffers up to about the memory of the device (mlx-lm and others were seen at ten times the
# size of their weights); one batch of any encoder allocates less than a gibibyte.
_CACHE = _GIB
_CONTAINER, _MEMINFO = Path("/sys/fs/cgroup"), Path("/proc/meminfo")
_LOG = logging.getLogger("mlxbert")


def _keep_freed_memory() -> None:
    """Keeps glibc from returning every large buffer to the kernel.

    On a CPU, MLX allocates each intermediate array with malloc. By default, glibc maps fresh pages for each array above
    a threshold, at first 128 KB and later up to 32 MB. Clearing these pages costs more than the arithmetic: a GELU over
    4096 x 3072 takes 164 ms instead of 65. Also makes glibc use a single arena, so that all threads can reuse the
    memory that one of them has freed: training takes a fifth less memory.
    """
    try:
        libc = ctypes.CDLL(None)
        m_trim_threshold, m_mmap_threshold, m_arena_max = -1, -3, -8
        libc.mallopt(m_mmap_threshold, _GIB)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
        libc.mallopt(m_arena_max, 1)
    except (OSError, AttributeError):  # another libc without these settings; only slower
        pass


os.environ.setdefault("MLX_ENABLE_TF32", "0")  # MLX reads it once; without it, M5 chips and CUDA round float32 products
# MLX 0.32.4 has a kernel for the gradient of attention on Metal. It raises an error for 8 tokens or fewer, and its
# numbers have not been verified.
os.environ.setdefault("MLX_SDPA_VJP_FALLBACK", "1")
BLAS = Blas("accelerate")
if sys.platform == "linux":
    # By name: the other files of this package import MLX, from here.
    BLAS = import_module("mlxbert.cpu.blas").load_blas()
    _keep_freed_memory()

try:
    with held():  # an exception while MLX defines its classes aborts the process
        import mlx.core as mx
        import mlx.nn as nn
except ImportError as problem:
    from mlxbert.machine import missing_mlx

    raise DeviceError(
        f"MLX cannot be loaded on {platform.system()} {platform.machine()} ({problem})", hint=missing_mlx.advice()
    ) from None

__all__ = ["mx", "nn"]  # for type checkers: what other modules import from here and is defined elsewhere


def use(device: str = "auto", *, fast_float32: bool = False) -> mx.Device:
    """Makes `device` MLX's default device, and limits MLX's memory and its cache of freed buffers.

    Args:
        device: `gpu`, `cpu` or `auto`, which means the device in `MLXBERT_DEVICE`, else the GPU if there is one.
        fast_float32: Whether float32 products may be rounded to TF32; MLX reads this once, before its first product.

    Returns:
        The device now in use.
    """
    global _in_use
    check_not_forked()
    _in_use = True
    argument = "device"
    if device == "auto" and os.environ.get("MLXBERT_DEVICE"):
        argument, device = "MLXBERT_DEVICE", os.environ["MLXBERT_DEVICE"]
    check_choice(argument, device, Device)
    gpu = mx.is_available(mx.gpu)
    _choose_tf32(fast_float32, gpu=gpu)
    if device == "gpu" and not gpu:
        advice = '; with an NVIDIA GPU, uninstall mlx-cpu, then install "mlx[cuda13]"' * (sys.platform == "linux")
        raise DeviceError(
            f"`{argument}` is 'gpu', but MLX finds no GPU here",
            hint=f"`{argument}='auto'` uses the CPU if there is no GPU{advice}",
        )
    mx.set_default_device(mx.Device(mx.gpu if gpu and device != "cpu" else mx.cpu))
    if (limit := memory_limit()) is not None:
        mx.set_memory_limit(limit)
    reset_cache()
    if not gpu and BLAS.hint:
        hint_once(BLAS.hint)
    if gpu and on_cuda():
        _keep_kernels()
    return mx.default_device()


_in_use = _is_fork = False


def _forked() -> None:
    global _is_fork
    _is_fork = _in_use


os.register_at_fork(after_in_child=_forked)


def check_not_forked() -> None:
    """Raises ThreadError in a fork of a process that has used MLX, whose threads a fork does not have."""
    if _is_fork:
        raise ThreadError(
            "this process was forked from one that has used MLX, and would wait for ever for its threads",
            hint="start processes with multiprocessing.get_context('spawn')",
        )


class _ThreadState:
    """Clears what MLX keeps for a thread, when Python frees this object at the end of the thread.

    MLX keeps streams, random numbers and traces of compiled functions for each thread, and with them Python objects.
    Its own destructors run after Python's part of the thread, and before Python 3.13 after `Thread.join`. They abort
    the process if Python is ending by then.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    # Defaults, since Python may have emptied this module. At its end, and in a fork, it frees this on another thread.
    def __del__(
        self, this: Callable[[], int] = threading.get_ident, clear: Callable[[], None] = mx.clear_streams
    ) -> None:
        if this() == self._thread:
            clear()


_own = threading.local()  # Python frees a thread's values as the last act of the thread, before `Thread.join` returns


def clear_when_thread_ends() -> None:
    """Makes this thread clear what MLX keeps for it when it ends (see `_ThreadState`).

    Does nothing on the main thread, which MLX itself clears (ml-explore/mlx#4373), and on threads that Python has
    not started: there, values of `threading.local` may end with each call of Python, and a cleared thread can
    no longer compute.
    """
    thread = threading.current_thread()
    started = not isinstance(thread, threading._DummyThread) and thread is not threading.main_thread()
    if started and not hasattr(_own, "state"):
        _own.state = _ThreadState()


@functools.cache
def _keep_kernels() -> None:
    kernel_cache.keep_kernels(mx.__version__, mx.device_info(mx.gpu))  # type: ignore[attr-defined]


def say_what_is_built(what: str) -> None:
    """Logs a hint if MLX has to compile the kernels of `inference` or `training` on CUDA, which takes a while."""
    if on_cuda() and kernel_cache.builds_first(what):
        hint_once(f"compiling the {what} kernels for this GPU, which takes up to a minute, once per version of MLX")


_tf32_chosen: list[bool] = []


def _choose_tf32(fast: bool, *, gpu: bool) -> None:
    """Lets float32 products be rounded to TF32 if `fast`.

    On a GPU, the first call in a process decides, because MLX reads the setting once; a later call that asks for TF32
    in vain raises an error.
    """
    if fast and gpu and _tf32_chosen == [False]:
        raise ArgumentError(
            "`fast_float32` is True, but TF32 is already switched off in this process",
            hint="use `fast_float32=True` in a new process, or set MLX_ENABLE_TF32=1",
        )
    if fast:
        os.environ["MLX_ENABLE_TF32"] = "1"
    elif gpu and tf32() and _tf32_chosen == [True]:
        hint_once(
            "this process rounds float32 products to TF32, because an earlier call or MLX_ENABLE_TF32 turned this on"
        )
    _tf32_chosen[:] = _tf32_chosen or [tf32()]


@functools.cache
def hint_once(text: str) -> None:
    """Logs a hint, once per process."""
    _LOG.warning(text)


def _metal() -> Mapping[str, str | int]:
    """Metal's description of the GPU and its memory; empty if there is no Metal."""
    return mx.device_info(mx.gpu) if mx.metal.is_available() else {}


def memory_limit() -> int | None:
    """Returns the memory in bytes beyond which MLX waits for running work; `None` to keep MLX's own limit.

    On Metal, it is the recommended working set size: MLX's own limit is 0.95 of the machine's memory, but macOS begins
    to swap long before. On other systems, it is `None`.
    """
    recommended = _metal().get("max_recommended_working_set_size")
    return recommended if isinstance(recommended, int) and recommended > 0 else None


def reset_cache() -> None:
    """Sets MLX's cache of freed memory to the size that inference needs."""
    if mx.is_available(mx.gpu):
        mx.set_cache_limit(_CACHE)


def fit_cache() -> None:
    """On Metal, lets MLX cache as much freed memory as was used at the peak, because the next update needs it again."""
    if (limit := memory_limit()) is not None:
        mx.set_cache_limit(max(min(mx.get_peak_memory(), limit - mx.get_active_memory()), 0))


def gpu_size() -> mac.GpuSize | None:
    """The size of the GPU that MLX computes on, `small`, `medium` or `large`; `None` on a CPU."""
    if not on_gpu():
        return None
    info = _metal()
    return mac.gpu_size(str(info.get("device_name")), int(info.get("memory_size", 0))) if info else "large"


_passes = threading.local()
_on_cpu = threading.RLock()


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Makes the CPU the default device within the `with` block.

    MLX has one default device for the whole process. So such blocks of several threads run one after another: otherwise
    they could restore the device in the wrong order. To other threads, `on_gpu` is false meanwhile.
    """
    with _on_cpu, mx.stream(mx.cpu):
        yield


@contextlib.contextmanager
def plain_graphs() -> Iterator[None]:
    """Makes this thread's forward passes graphs of MLX's plain primitives, to be read by an export, not computed.

    Layers then choose the operations of a GPU, which are those of MLX, and MLX's CPU device replaces each of its fused
    functions by the operations that define it.
    """
    with on_cpu():
        outside, _passes.plain = in_plain_graphs(), True
        try:
            yield
        finally:
            _passes.plain = outside


def in_plain_graphs() -> bool:
    """Whether this thread is within `plain_graphs`."""
    return getattr(_passes, "plain", False)


def on_gpu() -> bool:
    """Whether MLX computes on a GPU now, or builds a graph of the same operations (see `plain_graphs`)."""
    return in_plain_graphs() or mx.default_device().type == mx.DeviceType.gpu


def on_cuda() -> bool:
    """Whether MLX computes on an NVIDIA GPU now."""
    return on_gpu() and not mx.metal.is_available()


def dispatch(*arrays: Any) -> None:
    """Evaluates trees of arrays; waits for the results on a CPU, but not on a GPU."""
    (mx.async_eval if on_gpu() else mx.eval)(*arrays)


def scalar(array: mx.array) -> float:
    """The value of a scalar; waits for the device."""
    return cast(float, array.item())


def tf32() -> bool:
    """Whether chips with TF32 may round float32 products to it; not if `MLX_ENABLE_TF32` is 0 or not a number."""
    return not _is_off("MLX_ENABLE_TF32", "1")


def _is_off(variable: str, default: str) -> bool:
    """Whether an environment variable is 0 or not a number, which MLX reads as 0."""
    number = re.match(r"\s*[-+]?[0-9]+", os.environ.get(variable, default))
    return number is None or float(number[0]) == 0  # not int(): Python refuses integers of thousands of digits


def fused_attention_gradient() -> bool:
    """Whether MLX may use Metal's kernel for the gradient of attention; not if `MLX_SDPA_VJP_FALLBACK` is nonzero."""
    return _is_off("MLX_SDPA_VJP_FALLBACK", "0")


# What `auto` means in inference, in training, and for models whose values float16 cannot hold; and the reason.
_DTYPES = {
    "cpu": ("float32", "float32", "float32", "a CPU emulates half precision"),
    "cuda": ("bfloat16", "bfloat16", "bfloat16", "faster than float32, with the same range"),
    "metal": (
        "float16", "float32", "bfloat16",
        "M1 and M2 have no bfloat16 units; training is in float32, and a model whose values float16 cannot hold in "
        "bfloat16",
    ),
}  # fmt: skip


def _backend() -> str:
    return "cpu" if not on_gpu() else "metal" if mx.metal.is_available() else "cuda"


def choose_dtype(name: str = "auto", *, training: bool = False, wide_range: bool = False) -> mx.Dtype:
    """Returns the dtype to compute in: the named one, or for `auto` the best one for the device in use.

    `auto` is float32 on a CPU (half precision is emulated there) and bfloat16 on CUDA. On an Apple GPU it is float32 in
    training, otherwise float16 (M1 and M2 have no bfloat16 units), or bfloat16 for a model whose values float16 cannot
    hold (`wide_range`).
    """
    check_choice("dtype", name, DType)
    if name == "auto":
        usual, trained, wide, _ = _DTYPES[_backend()]
        name = trained if training else wide if wide_range else usual
    dtype: mx.Dtype = getattr(mx, name)
    return dtype


def dtype_name(dtype: mx.Dtype) -> str:
    """The name of a dtype, such as `float32`."""
    return str(dtype).removeprefix("mlx.core.")


def describe() -> dict[str, object]:
    """The facts about the device in use that `mlxbert doctor` shows."""
    info, this_mac = mx.device_info(), mac.read_mac()
    on_metal = _backend() == "metal"  # only Metal has a kernel for the gradient of attention
    return {
        "device": "gpu" if on_gpu() else "cpu",
        "gpu_found": mx.is_available(mx.gpu),
        "chip": this_mac.chip if this_mac else info.get("device_name") or platform.processor(),
        **({"macos": this_mac.macos, "wheel_for": this_mac.wheel} if this_mac else {}),
        "dtype": dtype_name(choose_dtype()),
        "dtype_reason": _DTYPES[_backend()][-1],
        "float32_products": "TF32" if on_gpu() and tf32() else "float32",
        **({"attention_gradient": "fused" if fused_attention_gradient() else "unfused"} if on_metal else {}),
        "cores": os.cpu_count(),
        "memory_gib": None if (memory := available_memory()) is None else round(memory / _GIB, 1),
        "memory_free_gib": None if (unused := unused_memory()) is None else round(unused / _GIB, 1),
        "memory_limit_gib": round(mx.get_memory_limit() / _GIB, 1),
        "cache_limit_gib": _CACHE / _GIB if mx.is_available(mx.gpu) else None,
        "blas": BLAS.name,
        "blas_path": BLAS.path,
        "blas_hint": BLAS.hint,
    }


def available_memory() -> int | None:
    """The memory for computing on the device in use, in bytes: the GPU's recommended limit, or the machine's memory.

    In a container, only the container's share of the machine's memory counts. What programs hold of it counts, too (see
    `unused_memory`).
    """
    memory = memory_limit() or mx.device_info().get("total_memory")
    if on_gpu() and isinstance(memory, int):
        return memory
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    return min([total, *_container_limits()])


def unused_memory() -> int | None:
    """The part of `available_memory` that neither other programs nor the arrays of this one hold, in bytes."""
    available = available_memory()
    if available is None:
        return None
    if on_cuda():
        unused = mx.device_info().get("free_memory")
    else:
        unused = mac.unused_memory() if sys.platform == "darwin" else _linux_memory()
    # What MLX keeps for new arrays is not free for others, but for this process.
    rest = available - mx.get_active_memory()
    return max(min(rest, int(unused) + mx.get_cache_memory()) if unused is not None else rest, 0)


def _linux_memory() -> int | None:
    """The memory that new programs can get without swapping, in bytes, if the kernel states it."""
    with contextlib.suppress(OSError):
        match = re.search(r"^MemAvailable:\s+(\d+) kB$", _MEMINFO.read_text(), re.MULTILINE)
        return int(match[1]) * 1024 if match else None
    return None


def _container_limits() -> Iterator[int]:
    """The container's memory limits in bytes, if the kernel states them (cgroups, versions 1 and 2)."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            yield int((_CONTAINER / name).read_text())
