"""The layers that every network is made of, and the choice of what computes them; no other file of `nn` asks for it."""

import contextlib
import functools
import sys
import threading
from collections.abc import Iterator
from importlib import import_module

from mlxbert.machine.device import mx, nn, on_gpu
from mlxbert.nn.backend import Backend
from mlxbert.nn.gpu import GpuBackend, GpuTraining

_passes = threading.local()
_GPU = GpuTraining(), GpuBackend()


def backend() -> Backend:
    """What computes this thread's layers now."""
    if (chosen := getattr(_passes, "backend", None)) is not None:
        return chosen
    return (_GPU if on_gpu() else _of_cpu())[evaluating()]


@functools.cache
def _of_cpu() -> tuple[Backend, Backend]:
    """The backends of a CPU, for passes outside and within `inference`."""
    if sys.platform != "linux":
        return Backend(), Backend()
    found: tuple[Backend, Backend] = import_module("mlxbert.cpu.backend").BACKENDS
    return found


@contextlib.contextmanager
def computed_by(chosen: Backend) -> Iterator[None]:
    """Makes a backend compute this thread's layers within the `with` block, whatever the device."""
    outside, _passes.backend = getattr(_passes, "backend", None), chosen
    try:
        yield
    finally:
        _passes.backend = outside


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """Makes this thread's forward passes, within the `with` block, the fastest that have no gradients.

    Like torch's `inference_mode`: nothing can be differentiated or compiled. On a Linux CPU, they run eagerly and on
    all cores. Outside, a pass is an ordinary MLX graph.
    """
    outside, _passes.evaluating = evaluating(), True
    try:
        yield
    finally:
        _passes.evaluating = outside


def evaluating() -> bool:
    """Whether this thread is within `inference`."""
    return getattr(_passes, "evaluating", False)


class Linear(nn.Linear):
    """A dense layer."""

    def __call__(self, x: mx.array) -> mx.array:
        """(…, input size) → (…, output size)."""
        return backend().dense(self, x)


class LayerNorm(nn.LayerNorm):
    """A norm over the last axis."""

    def __call__(self, x: mx.array) -> mx.array:
        """(…, D) → (…, D)."""
        return backend().layer_norm(self, x)


class RMSNorm(nn.RMSNorm):
    """A norm over the last axis that does not subtract the mean; `plus_one` adds 1 to its weight."""

    def __init__(self, dims: int, *, eps: float, plus_one: bool) -> None:
        super().__init__(dims, eps)
        self.plus_one = plus_one
        if plus_one:
            self.weight = mx.zeros(dims)

    def __call__(self, x: mx.array) -> mx.array:
        """(…, D) → (…, D)."""
        weight = 1 + self.weight.astype(mx.float32) if self.plus_one else self.weight
        return backend().rms_norm(x, weight, self.eps)
