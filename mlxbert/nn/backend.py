"""What computes layers: `Backend` is MLX as it is; a device that has faster ways overrides its methods.

`mlxbert.nn.gpu` has kernels for training on a GPU, and `mlxbert.cpu` is the backend of a Linux CPU. These compute the
same numbers up to their last digits. `mlxbert.nn.ops.backend` chooses among them.

Shapes: B batch, L length, D hidden size, H heads, d head size.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar, cast

from mlxbert.machine.device import in_plain_graphs, mx, nn
from mlxbert.nn import gpu_attention
from mlxbert.nn.activations import ACTIVATIONS, Activation, linear, relu

T = TypeVar("T")
Dropout = Any  # a `KeyedDropout`, whose file imports this one
Stage = mx.array | Callable[[], None]
Layers = Callable[[Callable[[mx.array], T], mx.array], T]  # runs a function that computes layers, on its input
_FAN_IN = 16  # of the tree that sums a long row
_FAR = 4096  # from this length in tokens on, bfloat16 does not distinguish distances
SLOPED = 1024  # queries in a block of attention with slopes


@dataclass(frozen=True)
class PositionedQK:
    """Queries and keys with positions applied, and which tokens may attend to which. Shapes: K key heads."""

    q: mx.array  # (B, H, L, d)
    k: mx.array  # (B, K, L, d); H / K query heads share each key head
    bias: mx.array | None = None  # added to the scores, broadcast to (B, H, L, L)
    mask: mx.array | None = None  # bool, broadcast to (B, 1, L, L), true if a token may be attended to
    blocks: mx.array | None = None  # the same mask in the form of `Backend.window_blocks`
    causal: bool = False  # whether tokens attend only to themselves and earlier tokens; if so, there is no mask
    slopes: mx.array | None = None  # (H,); the distance times the head's slope is subtracted from each score

    @property
    def dense(self) -> "PositionedQK":
        """Returns a copy in which `mask` replaces `causal`, or `bias` replaces `slopes`, for all pairs of tokens."""
        positions = mx.arange(self.q.shape[-2])
        if self.causal:
            return replace(self, causal=False, mask=(positions[:, None] >= positions)[None, None])
        if self.slopes is None:
            return self
        return replace(self, slopes=None, bias=_slope_bias(self.slopes, positions, positions))


def _slope_bias(slopes: mx.array, queries: mx.array, keys: mx.array) -> mx.array:
    """The bias that the slopes add to the scores of queries and keys at these positions, float32 (1, H, L, K)."""
    distances = mx.abs(queries[:, None] - keys).astype(mx.float32)
    return (-slopes[:, None, None] * distances)[None]


def _masked_bias(bias: mx.array, mask: mx.array | None) -> mx.array:
    # Half of the lowest number: scores are added to it, and a masked row that overflows to -inf gives NaN.
    return bias if mask is None else mx.where(mask, bias, mx.finfo(bias.dtype).min / 2)


class Backend:
    """The operations of layers, computed by MLX's own functions."""

    def dense(self, layer: nn.Linear, x: mx.array) -> mx.array:
        """A dense layer, (…, input size) → (…, output size)."""
        return nn.Linear.__call__(layer, x)

    def layer_norm(self, layer: nn.LayerNorm, x: mx.array) -> mx.array:
        """A norm over the last axis."""
        return nn.LayerNorm.__call__(layer, x)

    def rms_norm(self, x: mx.array, weight: mx.array, eps: float) -> mx.array:
        """A norm over the last axis that does not subtract the mean."""
        return mx.fast.rms_norm(x, weight, eps).astype(x.dtype)

    def activate(self, name: str, x: mx.array) -> mx.array:
        """Applies one of `ACTIVATIONS` elementwise."""
        return wide(ACTIVATIONS[name])(x)

    def activated(self, name: str, layer: nn.Module, x: mx.array) -> mx.array:
        """The activation of `layer(x)`."""
        return self.activate(name, layer(x))

    def scaled(self, x: mx.array, factor: float) -> mx.array:
        """Multiplies `x` by a number."""
        return x * factor

    def fusion_barrier(self, x: mx.array) -> mx.array:
        """Returns `x`; cheap operations before this call are not fused with the operations after it."""
        return x

    def exponentials(self, x: mx.array) -> mx.array:
        """`exp(x)` for x <= 0, float32; at least 2**-64 on a Linux CPU."""
        return mx.exp(x)

    def softmax(self, x: mx.array) -> mx.array:
        """Softmax over the last axis of float32, accurate for rows as long as a vocabulary."""
        shares = mx.exp(x - x.max(axis=-1, keepdims=True))
        return shares / tree_sum(shares)

    def log_sum_exp(self, x: mx.array) -> mx.array:
        """The logarithm of the sum of exponentials over the last axis (kept with length 1), as exact as `softmax`."""
        largest = x.max(axis=-1, keepdims=True)
        return largest + mx.log(tree_sum(mx.exp(x - largest)))

    def drop(self, x: mx.array, words: mx.array, least: int, factor: float) -> mx.array:
        """Multiplies elements of `x` by `factor` if their random words are at least `least`; sets others to 0."""
        return cast(mx.array, _masked(x, words >= mx.array(least, dtype=mx.uint16), mx.array(factor)))

    def step_by_step(self) -> AbstractContextManager[Any]:
        """A `with` block for many small operations that depend on each other."""
        return contextlib.nullcontext()

    def weights(self, scores: mx.array, mask: mx.array | None) -> mx.array:
        """Softmax of attention's scores, in their dtype or float32."""
        if mask is not None:
            scores = mx.where(mask, scores, mx.finfo(scores.dtype).min)
        return mx.softmax(scores, axis=-1, precise=True)

    def attention_weights(self, qk: PositionedQK, scale: float) -> mx.array:
        """Returns the softmax of the products of queries and keys times `scale`, (B, H, L, L)."""
        qk = qk.dense
        k = mx.repeat(qk.k, qk.q.shape[1] // qk.k.shape[1], axis=1)
        scores = self.scaled(qk.q, scale) @ k.swapaxes(-1, -2)
        if qk.bias is not None:
            scores = scores + qk.bias  # float32 if the bias is float32, as in `_slope_bias`
        return self.weights(scores, qk.mask).astype(qk.q.dtype)

    def attention(self, qk: PositionedQK, v: mx.array, scale: float, dropout: Dropout) -> mx.array:
        """Computes `dropout(attention_weights(qk, scale)) @ v` from values (B, K, L, d); the result is (B, H, L, d)."""
        if qk.blocks is not None:
            q, k, around, near = gpu_attention.divided(qk.q, qk.k, v, qk.blocks)
            mixed = self.attention(PositionedQK(q, k, mask=near), around, scale, dropout)
            return gpu_attention.joined(mixed, len(v), v.shape[2])
        unfused = dropout.training and qk.slopes is None and not gpu_attention.differentiates_attention(qk.q.dtype)
        if dropout.drops or unfused:  # the fused kernel has no dropout
            values = mx.repeat(v, qk.q.shape[1] // v.shape[1], axis=1)
            return dropout(self.attention_weights(qk, scale)) @ values
        if qk.slopes is not None:
            return self._sloped_attention(qk, v, scale, dropout)
        mask: mx.array | Literal["causal"] | None = "causal" if qk.causal else qk.mask
        if qk.bias is not None:
            mask = _masked_bias(qk.bias, qk.mask)
        return gpu_attention.attention(qk.q, qk.k, v, scale, mask, gradient=dropout.training)

    def _sloped_attention(self, qk: PositionedQK, v: mx.array, scale: float, dropout: Dropout) -> mx.array:
        """Attention with slopes, for one block of queries at a time, because the slopes' bias is an array in memory.

        `mx.fast` does not take a bias in a wider dtype than queries and keys, and bfloat16 has only 8 bits for a
        distance: from 2,048 to 4,096, 16 tokens share a distance. So long texts are computed in float32, others in the
        faster bfloat16.
        """
        assert qk.slopes is not None
        if qk.q.dtype == mx.bfloat16 and v.shape[2] >= _FAR:
            wide = replace(qk, q=qk.q.astype(mx.float32), k=qk.k.astype(mx.float32))
            return self._sloped_attention(wide, v.astype(mx.float32), scale, dropout).astype(v.dtype)
        keys, mixed = mx.arange(v.shape[2]), []
        # Of equal size: a last block of 8 queries or fewer would take another kernel of Metal's (ml-explore/mlx#4022).
        size = -(-v.shape[2] // -(-v.shape[2] // SLOPED))
        for start in range(0, v.shape[2], size):
            q = qk.q[:, :, start : start + size]
            bias = _slope_bias(qk.slopes, keys[start : start + size], keys)
            mask = _masked_bias(bias.astype(q.dtype), qk.mask)
            mixed.append(gpu_attention.attention(q, qk.k, v, scale, mask, gradient=dropout.training))
        return mixed[0] if len(mixed) == 1 else mx.concatenate(mixed, axis=2)

    def score_rows(self, head_size: int, length: int, dtype: mx.Dtype, *, sloped: bool) -> int:
        """How many rows of a head's scores are in memory at the same time; 0 for few scores, in a kernel or a block."""
        return length

    def window_blocks(self, length: int, window: int, mask: mx.array | None) -> mx.array | None:
        """Returns a sliding window's mask in blocks if `attention` is faster with blocks; otherwise `None`.

        From the maximum distance of tokens on each side and the mask of real tokens, bool (B, 1, 1, L); the result is
        bool (B or 1, 1, blocks, size, 3 * size).
        """
        return None if in_plain_graphs() else gpu_attention.blocks(length, window, mask)

    def rotate(self, x: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
        """Rotates vectors (B, H, L, d) by their positions, with cosines and sines (L, d / 2).

        Element n of the first half is paired with element n of the second half.
        """
        first, second = mx.split(x, 2, axis=-1)
        return mx.concatenate([*self.rotate_halves(first, second, cosines, sines)], axis=-1)

    def rotate_halves(
        self, first: mx.array, second: mx.array, cosines: mx.array, sines: mx.array
    ) -> tuple[mx.array, mx.array]:
        """The arithmetic of `rotate`."""
        return first * cosines - second * sines, second * cosines + first * sines

    def mixture(
        self, tokens: mx.array, up: mx.array, down: mx.array, chosen: mx.array, weights: mx.array, activation: str
    ) -> mx.array:
        """Sums the outputs of each token's experts, weighted: tokens (N, D) → (N, D).

        `up` and `down` are (E, I, D) for E experts, `chosen` and `weights` (N, K) for K experts of each token.
        """
        if in_plain_graphs():
            return self._sum_of_all_experts(tokens, up, down, chosen, weights, activation)
        order = mx.argsort(chosen.flatten())  # tokens of the same expert follow each other
        places, used = mx.argsort(order), chosen.shape[1]
        outputs = self.experts(tokens[order // used], up, down, chosen.flatten()[order], activation)
        return (outputs[places].reshape(*chosen.shape, -1) * weights[..., None]).sum(axis=1)

    def experts(self, tokens: mx.array, up: mx.array, down: mx.array, experts: mx.array, activation: str) -> mx.array:
        """The output of each token's expert; tokens (N, D) are sorted by their experts (N,)."""
        multiply = partial(mx.gather_mm, rhs_indices=experts, sorted_indices=True)
        dtype = mx.float32 if mx.default_device() == mx.cpu else tokens.dtype  # `gather_mm` needs float32 on a CPU
        # Reshaped, not `[:, None]` and `[:, 0]`: CUDA takes the stride of an inserted axis, 1, for the rows' stride, in
        # the gradient too (ml-explore/mlx#4253, fixed for Metal only).
        rows = tokens.reshape(-1, 1, tokens.shape[-1]).astype(dtype)
        inner = self.activate(activation, multiply(rows, up.swapaxes(1, 2).astype(dtype)))
        return multiply(inner, down.astype(dtype)).reshape(tokens.shape).astype(tokens.dtype)

    def _sum_of_all_experts(
        self, tokens: mx.array, up: mx.array, down: mx.array, chosen: mx.array, weights: mx.array, activation: str
    ) -> mx.array:
        """`mixture` with the same operations for all tokens: experts that a token does not use get the weight 0."""
        mixed = mx.zeros_like(tokens)
        for expert in range(len(up)):
            share = mx.where(chosen == expert, weights, 0).sum(axis=1, keepdims=True)
            mixed = mixed + self.activate(activation, tokens @ up[expert].T) @ down[expert] * share
        return mixed

    # Passes, and the parts of training steps.

    def run(self, encoder: Any, arrays: Sequence[mx.array | None], options: Mapping[str, bool]) -> Any:
        """Runs `encoder.run`, from arrays (B, …) to arrays (B, …) in a dataclass, on a batch or on its parts."""
        return encoder.run(arrays, options, lambda run, x: run(x))

    def prepare(self) -> None:
        """Starts what takes a while before the first pass; called while weights are read."""

    def staged(self, x: mx.array) -> mx.array:
        """Returns `x`, which within `stages` is evaluated before the operations that follow."""
        return x

    def stages(self, *, filled: bool = False) -> AbstractContextManager[list[Stage]]:
        """Collects what is to be computed, in order, before this thread's passes are evaluated.

        If `filled`, stages may also be functions, which write into arrays of the graph.
        """
        return contextlib.nullcontext([])

    def unstaged(self) -> AbstractContextManager[None]:
        """Stops collecting stages within the `with` block."""
        return contextlib.nullcontext()

    def unfilled(self) -> AbstractContextManager[None]:
        """Stops collecting functions within the `with` block, for passes without gradients."""
        return contextlib.nullcontext()

    def workers(self) -> int:
        """The number of threads that compute the parts of a training batch; 0 if the calling thread does it all."""
        return 0

    def as_cores_get_free(self, jobs: Sequence[Callable[[], T]]) -> Iterable[T]:
        """Runs jobs in parallel if there are `workers`; yields the results in order."""
        return (job() for job in jobs)

    def limit_cores(self, count: int) -> None:
        """Makes this process compute on at most `count` cores, before the first pass."""

    def join_cores(self) -> None:
        """Lets one operation use all cores."""

    @property
    def adamw(self) -> Any:
        """The module that computes AdamW in place of MLX (see `mlxbert.cpu.adamw_numpy`); `None` for none."""
        return None


@functools.cache
def wide(function: Activation) -> Activation:
    """Makes a function compute in float32: in half precision, near -3, GELU's `1 + erf` has no digits left."""

    def computed(x: mx.array) -> mx.array:
        return function(x.astype(mx.float32)).astype(x.dtype)

    return function if function in (relu, linear) else computed


@mx.custom_function
def _masked(x: mx.array, mask: mx.array, factor: mx.array) -> mx.array:
    # A product with 0 and 1 takes half as long as `where` on a CPU.
    return x * (mask.astype(x.dtype) * factor.astype(x.dtype))


@_masked.vjp
def _masked_vjp(inputs: Any, cotangent: mx.array, output: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    # This way, only the mask is kept for the backward pass, a byte per element.
    _, mask, factor = inputs
    return cast(mx.array, _masked(cotangent, mask, factor)), mx.zeros_like(mask), mx.zeros_like(factor)


def tree_sum(x: mx.array) -> mx.array:
    """The sum over the last axis, which is kept with length 1; accurate to the last digits of float32.

    MLX's CPU backend adds up a row in order. In a vocabulary's probabilities, 30,000 small numbers could then be lost
    below the last digit of the sum. A GPU sums in trees.
    """
    while x.shape[-1] > 1:
        x = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % _FAN_IN)])
        x = x.reshape(*x.shape[:-1], -1, _FAN_IN).sum(axis=-1)
    return x
