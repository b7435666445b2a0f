"""What a GPU has to make before `doctor --check` is done: on CUDA a second or two for each of these.

The paths of GPUs are taken on a CPU; MLX then computes what it is asked for with plain operations, not compiled.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mlxbert.doctor.check import check_device as module, kernels as checked_kernels
from mlxbert.machine.device import mx
from mlxbert.nn import gpu
from mlxbert.train.loop import optimizer_steps as step


class Made:
    """What was asked for.

    Attributes:
        plans: The shapes of attention in half precision that cuDNN computes, with what is masked.
        fused: The activations and rotations, each with the dtypes of its arrays.
        gathers: The dtypes of tables and indices, of rows and of elements along an axis.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.plans, self.fused, self.gathers = set[Any](), set[Any](), set[Any]()
        for name, loaded in [*sys.modules.items()]:
            if name.partition(".")[0] == "mlxbert" and "on_gpu" in vars(loaded):
                patch.setattr(loaded, "on_gpu", lambda: True)
        patch.setattr(mx.fast, "scaled_dot_product_attention", self._attention(mx.fast.scaled_dot_product_attention))
        patch.setattr(mx, "take_along_axis", self._elements(mx.take_along_axis))
        patch.setattr(mx.array, "__getitem__", self._rows(mx.array.__getitem__))
        patch.setattr(mx, "compile", self._compile(mx.compile))

    def _attention(self, right: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def call(q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any = None) -> mx.array:
            if q.dtype != mx.float32 and q.shape[-1] % 8 == 0:
                self.plans.add((q.shape, k.shape, q.dtype, (mask.dtype, mask.shape) if mask is not None else None))
            return right(q, k, v, scale=scale, mask=mask)

        return call

    def _elements(self, right: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def call(array: mx.array, indices: mx.array, axis: int) -> mx.array:
            self.gathers.add(("axis", array.dtype, indices.dtype))
            return right(array, indices, axis=axis)

        return call

    def _rows(self, right: Callable[..., mx.array]) -> Callable[..., mx.array]:
        def call(array: mx.array, index: Any) -> mx.array:
            if isinstance(index, mx.array):
                self.gathers.add(("rows", array.dtype, index.dtype))
            return right(array, index)

        return call

    def _compile(self, right: Callable[..., Any]) -> Callable[..., Any]:
        def call(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
            compiled = right(function, **options)

            def run(*given: Any) -> Any:
                if options.get("shapeless") and all(isinstance(one, mx.array) for one in given):
                    self.fused.add((id(compiled), *(one.dtype for one in given)))
                return compiled(*given)

            return run

        return call


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Counts, on a device that seems to be CUDA."""
    monkeypatch.setattr(module, "_speed", dict)
    monkeypatch.setattr(module, "_vector_error", lambda dtype: 0.0)  # loads a model, for a GPU
    monkeypatch.setattr(checked_kernels, "_LARGE", ())  # takes a CPU half a minute in half precision
    functions: list[Any] = [gpu._fused, gpu._fused_rotation, step._compiled]
    for function in functions:
        function.cache_clear()
    mx.disable_compile()
    try:
        yield Made(monkeypatch)
    finally:
        mx.enable_compile()
        for function in functions:
            function.cache_clear()


@pytest.mark.slow
def test_a_check_asks_a_gpu_for_few_kernels(made: Made) -> None:
    """Before shapes and dtypes were chosen, there were 56 plans, 24 fused functions and 11 gathers."""
    found = module.check("auto")
    assert not found["faults"] and not found["consequences"]
    assert 15 <= len(made.plans) <= 20
    assert 4 <= len(made.fused) <= 8  # two of them the update's; a step of training traces its own
    assert 5 <= len(made.gathers) <= 9
    dtypes = {str(dtype) for _, dtype, _ in made.gathers}
    assert {"mlx.core.float32", "mlx.core.float16", "mlx.core.bfloat16"} <= dtypes


@pytest.mark.slow
def test_a_quick_check_asks_for_fewer(made: Made) -> None:
    found = module.check("auto", quick=True)
    assert not found["faults"] and not found["consequences"]
    assert len(made.plans) <= 4 and len(made.gathers) <= 2
    assert len(made.fused) <= 4
