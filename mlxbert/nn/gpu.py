"""The backends of a GPU: in inference, MLX's fused functions; in training, kernels that compile once."""

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

from mlxbert.machine.device import mx, nn, on_cpu
from mlxbert.nn import fused_kernels, gpu_attention
from mlxbert.nn.activations import ACTIVATIONS, Activation
from mlxbert.nn.backend import SLOPED, Backend, wide


class GpuBackend(Backend):
    """Inference on a GPU."""

    def activate(self, name: str, x: mx.array) -> mx.array:
        return _fused(ACTIVATIONS[name])(x)

    def fusion_barrier(self, x: mx.array) -> mx.array:
        return fused_kernels.fusion_barrier(x)

    def drop(self, x: mx.array, words: mx.array, least: int, factor: float) -> mx.array:
        numbers = fused_kernels.number(least, mx.uint16), fused_kernels.number(factor)
        return cast(mx.array, fused_kernels.dropped(x, words, *numbers))

    def softmax(self, x: mx.array) -> mx.array:
        return mx.softmax(x, axis=-1)

    def log_sum_exp(self, x: mx.array) -> mx.array:
        return mx.logsumexp(x, axis=-1, keepdims=True)

    def step_by_step(self) -> AbstractContextManager[Any]:
        # A Mac's GPU takes longer to start such an operation than to compute it, and the CPU shares its memory.
        return on_cpu() if gpu_attention.on_metal() else contextlib.nullcontext()

    def score_rows(self, head_size: int, length: int, dtype: mx.Dtype, *, sloped: bool) -> int:
        if sloped:
            return min(SLOPED, length)
        return 0 if gpu_attention.is_fused_here(head_size, length, dtype) else length

    def window_blocks(self, length: int, window: int, mask: mx.array | None) -> mx.array | None:
        return super().window_blocks(length, window, mask) if gpu_attention.blocks_pay(length, window) else None

    def rotate_halves(
        self, first: mx.array, second: mx.array, cosines: mx.array, sines: mx.array
    ) -> tuple[mx.array, mx.array]:
        return _fused_rotation()(first, second, cosines, sines)


class GpuTraining(GpuBackend):
    """Passes on a GPU whose gradients may be needed (see `mlxbert.nn.fused_kernels`)."""

    def dense(self, layer: nn.Linear, x: mx.array) -> mx.array:
        return cast(mx.array, fused_kernels.dense(x, layer.weight, [layer.bias] if "bias" in layer else []))

    def layer_norm(self, layer: nn.LayerNorm, x: mx.array) -> mx.array:
        if gpu_attention.differentiates_norms(x.shape[-1], x.dtype):
            return super().layer_norm(layer, x)
        wide = x.astype(mx.float32)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        y = centred * mx.rsqrt(mx.square(centred).mean(axis=-1, keepdims=True) + layer.eps)
        y = y * layer.weight if "weight" in layer else y
        return (y + layer.bias if "bias" in layer else y).astype(x.dtype)

    def activate(self, name: str, x: mx.array) -> mx.array:
        function = ACTIVATIONS[name]
        if function is mx.tanh:  # only the pooler uses tanh
            return cast(mx.array, fused_kernels.tanh(x))
        return fused_kernels.activation(wide(function))(x)

    def scaled(self, x: mx.array, factor: float) -> mx.array:
        return cast(mx.array, fused_kernels.times(x, fused_kernels.number(factor)))

    def weights(self, scores: mx.array, mask: mx.array | None) -> mx.array:
        return cast(mx.array, fused_kernels.softmax(scores, [] if mask is None else [mask]))


@functools.cache
def _fused(function: Activation) -> Activation:
    compiled: Activation = mx.compile(wide(function), shapeless=True)
    return compiled


@functools.cache
def _fused_rotation() -> Callable[..., tuple[mx.array, mx.array]]:
    compiled: Callable[..., tuple[mx.array, mx.array]] = mx.compile(Backend().rotate_halves, shapeless=True)
    return compiled
