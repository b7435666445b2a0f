"""A device that fails: the sentences of MLX's backends, raised where arrays are computed."""

import itertools
from typing import Any

import pytest

from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Encoder

_BUFFER = "[METAL] Command buffer execution failed: "
MEMORY = (
    f"{_BUFFER}Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory).",
    "[metal::malloc] Attempting to allocate 9663676416 bytes which is greater than the maximum allowed buffer size of "
    "9534832640 bytes.",
    "[metal::malloc] Resource limit (499000) exceeded.",
    "[malloc] Unable to allocate 4294967296 bytes.",
    "cudaMallocAsync(&data, size, stream) failed: out of memory",
    "cudaMallocManaged failed: out of memory.",
    "cublasLtCreate(&handle) failed with code: 3.",
)
TOO_LONG = (
    f"{_BUFFER}Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout).",
    f"{_BUFFER}Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity).",
)
OTHER = (
    f"{_BUFFER}Invalid Resource (00000009:kIOGPUCommandBufferCallbackErrorInvalidResource).",
    "[metal::Device] Unable to load kernel steel_gemm\nsecond line",
    "cudaGraphLaunch(exec, stream) failed: an illegal memory access was encountered",
    "graph.build(handle, {fe::HeurMode_t::A}) failed: No valid engine.",
)
NO_FAULTS = (  # of MLX, too, but not errors of the device
    "There is no Stream(gpu, 1) in current thread.",
    "[Inverse::eval_cpu] LU factorization failed with error code 1",
    "[metal_kernel] No Metal back-end.",
    "the current document failed: out of paper",
)


def small_memory(monkeypatch: pytest.MonkeyPatch, rows: int, sentence: str = MEMORY[0]) -> list[int]:
    """Encoders fail with more rows than this; returns the rows of every pass that was tried, kept up to date."""
    usual, tried = Encoder.__call__, list[int]()

    def limited(self: Encoder, ids: mx.array, *more: Any, **options: Any) -> Any:
        tried.append(len(ids))
        if len(ids) > rows:
            raise RuntimeError(sentence)
        return usual(self, ids, *more, **options)

    monkeypatch.setattr(Encoder, "__call__", limited)
    return tried


def failing_eval(patch: pytest.MonkeyPatch, number: int | None, sentence: str = MEMORY[0]) -> "itertools.count[int]":
    """A call of `mx.eval`, counted from 0, fails; the next number of the result is how many there were."""
    usual, calls = mx.eval, itertools.count()

    def failing(*arrays: Any) -> None:
        if next(calls) == number:
            raise RuntimeError(sentence)
        usual(*arrays)

    patch.setattr(mx, "eval", failing)
    return calls
