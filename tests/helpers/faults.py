"""A device that fails: raises the errors of MLX's backends where arrays are computed."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mlxbert.machine.device import mx, nn
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
    f"{_BUFFER}Internal Error (0000000e:Internal Error).",
)
DISPLAY = f"{_BUFFER}Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)."
VICTIM = f"{_BUFFER}Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)."
STOPPED = (*TOO_LONG, DISPLAY, VICTIM)  # may succeed when they are repeated
REFUSED = (
    f"{_BUFFER}Ignored (for causing prior/excessive GPU errors) "
    "(00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)."
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


def small_memory(
    monkeypatch: pytest.MonkeyPatch, rows: int, sentence: str = MEMORY[0], times: int | None = None
) -> list[int]:
    """Makes encoders fail for more than `rows` rows, at most `times` times; returns the rows of all calls."""
    usual, tried, left = Encoder.__call__, list[int](), itertools.repeat(0) if times is None else iter(range(times))

    def limited(self: Encoder, ids: mx.array, *more: Any, **options: Any) -> Any:
        tried.append(len(ids))
        if len(ids) > rows and next(left, None) is not None:
            raise RuntimeError(sentence)
        return usual(self, ids, *more, **options)

    monkeypatch.setattr(Encoder, "__call__", limited)
    return tried


def failing_eval(
    patch: pytest.MonkeyPatch, number: int | None, sentence: str = MEMORY[0], *, always: bool = False
) -> "itertools.count[int]":
    """Makes one call of `mx.eval` fail, or all from this one on; `number` is its index. Counts the calls."""
    usual, calls = mx.eval, itertools.count()

    def failing(*arrays: Any) -> None:
        call = next(calls)
        if call == number or (always and number is not None and call > number):
            raise RuntimeError(sentence)
        usual(*arrays)

    patch.setattr(mx, "eval", failing)
    return calls


class LateDevice:
    """A GPU that fails like Metal: failed arrays can be read, but hold anything; a later operation raises the error."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        fails: Callable[[list[mx.array]], bool] = lambda arrays: False,
        sentence: str = MEMORY[0],
    ) -> None:
        self._fails, self._sentence, self._error = fails, sentence, ""
        self._eval, self._known = mx.eval, dict[int, Any]()  # the arrays themselves: an id may be given to another
        patch.setattr(mx, "default_device", lambda: SimpleNamespace(type=mx.DeviceType.gpu))
        patch.setattr(mx, "set_default_device", lambda device: None)
        for name in ("eval", "async_eval"):
            patch.setattr(mx, name, self._compute)
        patch.setattr(mx, "synchronize", self._report)
        patch.setattr(mx, "compile", lambda function, **options: function)  # it takes a C++ compiler on a CPU

    def fail(self) -> None:
        """Makes the next operation raise the error."""
        self._error = self._sentence

    def _report(self) -> None:
        error, self._error = self._error, ""
        if error:
            raise RuntimeError(error)

    def _compute(self, *trees: Any) -> None:
        arrays = dict(nn.utils.tree_flatten(list(trees))).values()
        new = [array for array in arrays if isinstance(array, mx.array) and id(array) not in self._known]
        if not new:
            return
        self._report()
        self._known |= {id(array): array for array in new}
        self._eval(new)
        if not self._error and self._fails(new):
            self.fail()
