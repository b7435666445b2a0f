"""Measures how fast this machine multiplies matrices, and finds what keeps a Mac from its full speed."""

import time

from mlxbert.machine import mac
from mlxbert.machine.device import mx, on_gpu, tf32


def mac_problems() -> list[str]:
    """The problems of a Mac that its user can fix, each with advice; empty on other systems."""
    this_mac = mac.read_mac()
    if this_mac is None:
        return []
    comparable = on_gpu() and not tf32()  # with TF32, matrix units compute float32 products, too
    return mac.problems(
        this_mac, metal=mx.is_available(mx.gpu), float16_gain=_measure_float16_gain if comparable else None
    )


def _measure_float16_gain() -> float:
    half, single = (measure_gflops(4096, runs=3, dtype=dtype) for dtype in (mx.float16, mx.float32))
    return half / single


def measure_gflops(size: int = 1024, runs: int = 5, dtype: mx.Dtype = mx.float32) -> float:
    """Measures a square matrix product, in billions of operations per second; returns the best of a few runs."""
    a, b = (mx.random.normal((size, size)).astype(dtype) for _ in range(2))
    mx.eval(a @ b)
    seconds = []
    for _ in range(runs):
        start = time.perf_counter()
        mx.eval(a @ b)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds) / 1e9
