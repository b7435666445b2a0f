"""The operations of layers, each in its fastest form on the device in use; other files need not know the device.

A GPU has fused kernels: `mlxbert.nn.gpu_attention`, and for training `mlxbert.nn.fused_kernels`. On a CPU,
`mlxbert.nn.cpu` computes the same numbers up to their last digits.

Shapes: B batch, L length, D hidden size, H heads, d head size.
"""

import contextlib
import functools
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, TypeVar, cast

from mlxbert.machine import cores
from mlxbert.machine.cores import cpu_streams, evaluating, in_parallel, inference, inferring
from mlxbert.machine.device import in_plain_graphs, mx, nn, on_cpu, on_gpu
from mlxbert.nn import fused_kernels, gpu_attention
from mlxbert.nn.activations import ACTIVATIONS, Activation, gelu, linear, relu
from mlxbert.nn.cpu import few_tokens, mlx_kernels, numpy_attention, numpy_layers, window_attention
from mlxbert.nn.dropout import KeyedDropout

T = TypeVar("T")
Pass = TypeVar("Pass", bound=Callable[..., Any])
# Layers import these from here.
staged, unstaged, unfilled = cores.staged, cores.unstaged, cores.unfilled
few_tokens_pay, memory, without_warnings = few_tokens.pays, few_tokens.memory, few_tokens.without_warnings
start_importing_numpy = few_tokens.start_importing_numpy
_FAN_IN = 16  # of the tree that sums a long row
_FAR = 4096  # from this length in tokens on, bfloat16 does not distinguish distances
_SLOPED = 1024  # queries in a block of attention with slopes, on a GPU


class Linear(nn.Linear):
    """A dense layer, which adds its bias after the product where that is faster.

    On a CPU, this takes 0.2 ns per element; `mx.addmm` first copies the bias into every row, in 1.1 ns per element.
    """

    def __call__(self, x: mx.array) -> mx.array:
        """(…, input size) → (…, output size)."""
        if few_tokens.is_memory(x):
            return few_tokens.dense(self, x)
        if _trains_on_gpu():
            return cast(mx.array, fused_kernels.dense(x, self.weight, [self.bias] if "bias" in self else []))
        if on_gpu():
            return super().__call__(x)
        if inferring():
            return x @ self.weight.T + self.bias if "bias" in self else x @ self.weight.T
        if not x.dtype == self.weight.dtype == mx.float32:
            return staged(super().__call__(x))
        return staged(cast(mx.array, mlx_kernels.dense(x, self.weight, [self.bias] if "bias" in self else [])))


class LayerNorm(nn.LayerNorm):
    """A norm over the last axis."""

    def __call__(self, x: mx.array) -> mx.array:
        """(…, D) → (…, D)."""
        if few_tokens.is_memory(x):
            return few_tokens.layer_norm(self, x)
        if _trains_on_gpu() and not gpu_attention.differentiates_norms(x.shape[-1], x.dtype):
            return self._from_parts(x)
        if x.dtype != mx.float32 or on_gpu():
            return super().__call__(x)
        if inferring():
            y = numpy_layers.normalized(x, self.eps)
            y = y * self.weight if "weight" in self else y
            return y + self.bias if "bias" in self else y
        if "weight" not in self:
            return super().__call__(x)
        return mlx_kernels.layer_norm(x, self.weight, [self.bias] if "bias" in self else [], self.eps)

    def _from_parts(self, x: mx.array) -> mx.array:
        wide = x.astype(mx.float32)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        y = centred * mx.rsqrt(mx.square(centred).mean(axis=-1, keepdims=True) + self.eps)
        y = y * self.weight if "weight" in self else y
        return (y + self.bias if "bias" in self else y).astype(x.dtype)


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
        if few_tokens.is_memory(x):
            return few_tokens.unit_rms(x, self.eps) * memory(weight)
        if x.dtype == mx.float32 and inferring():
            return numpy_layers.unit_rms(x, self.eps) * weight
        return mx.fast.rms_norm(x, weight, self.eps).astype(x.dtype)


def activate(name: str, x: mx.array) -> mx.array:
    """Applies one of `ACTIVATIONS` elementwise."""
    function = ACTIVATIONS[name]
    if _trains_on_gpu():  # only the pooler uses tanh
        return (
            cast(mx.array, fused_kernels.tanh(x))
            if function is mx.tanh
            else fused_kernels.activation(_wide(function))(x)
        )
    if on_gpu():
        return _fused(function)(x)
    return cast(mx.array, mlx_kernels.gelu(x)) if function is gelu else function(x)


@functools.cache
def _fused(function: Activation) -> Activation:
    compiled: Activation = mx.compile(_wide(function), shapeless=True)
    return compiled


@functools.cache
def _wide(function: Activation) -> Activation:
    """Makes a function compute in float32: in half precision, near -3, GELU's `1 + erf` has no digits left."""

    def wide(x: mx.array) -> mx.array:
        return function(x.astype(mx.float32)).astype(x.dtype)

    return function if function in (relu, linear) else wide


def activated(name: str, layer: nn.Module, x: mx.array) -> mx.array:
    """The activation of `layer(x)`."""
    if few_tokens.is_memory(x):
        if name in numpy_layers.ACTIVATIONS:
            return cast(mx.array, few_tokens.activated(name, layer, x))
        return cast(mx.array, memory(activate(name, mx.array(layer(x)))))
    if isinstance(layer, Linear) and numpy_layers.activates(name, layer, x):
        return numpy_layers.activated(name, layer, x)
    if isinstance(layer, Linear) and numpy_layers.learns(name, layer, x):
        return staged(numpy_layers.learned(name, layer, x))
    return activate(name, layer(x))


def exponentials(x: mx.array) -> mx.array:
    """`exp(x)` for x <= 0, float32; on a CPU, at least 2**-64."""
    return mx.exp(x) if on_gpu() else cast(mx.array, mlx_kernels.exp2(x * (1 / math.log(2))))


def softmax(x: mx.array) -> mx.array:
    """Softmax over the last axis of float32, accurate for rows as long as a vocabulary."""
    if on_gpu():
        return mx.softmax(x, axis=-1)
    shares = mx.exp(x - x.max(axis=-1, keepdims=True))
    return shares / _tree_sum(shares)


def log_sum_exp(x: mx.array) -> mx.array:
    """The logarithm of the sum of exponentials over the last axis (kept with length 1), as accurate as `softmax`."""
    if on_gpu():
        return mx.logsumexp(x, axis=-1, keepdims=True)
    log_sum: mx.array = cast(Any, _log_sum_exp)(x)[0]
    return log_sum


@mx.custom_function
def _log_sum_exp(x: mx.array) -> Any:
    """Returns `log_sum_exp`, and two arrays that its derivative needs."""
    largest = x.max(axis=-1, keepdims=True)
    shares = exponentials(x - largest)
    total = _tree_sum(shares)
    return largest + mx.log(total), shares, total


@_log_sum_exp.vjp
def _log_sum_exp_vjp(x: mx.array, cotangents: Any, outputs: Any) -> mx.array:
    _, shares, total = outputs
    return cast(mx.array, shares * (cotangents[0] / total))


def _tree_sum(x: mx.array) -> mx.array:
    """The sum over the last axis, which is kept with length 1; accurate to the last digits of float32.

    MLX's CPU backend adds up a row in order. In a vocabulary's probabilities, 30,000 small numbers could then be lost
    below the last digit of the sum. A GPU sums in trees.
    """
    while x.shape[-1] > 1:
        x = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % _FAN_IN)])
        x = x.reshape(*x.shape[:-1], -1, _FAN_IN).sum(axis=-1)
    return x


def step_by_step() -> AbstractContextManager[Any]:
    """Runs many small operations that depend on each other on a Mac's CPU instead of its GPU.

    The GPU takes longer to start such an operation than to compute it, and both share the same memory.
    """
    return on_cpu() if on_gpu() and gpu_attention.on_metal() else contextlib.nullcontext()


@dataclass(frozen=True)
class PositionedQK:
    """Queries and keys with positions applied, and which tokens may attend to which. Shapes: K key heads.

    Attributes:
        q: (B, H, L, d).
        k: (B, K, L, d); H / K query heads share each key head.
        bias: Added to the scores, broadcast to (B, H, L, L); `None` for no bias.
        mask: bool, broadcast to (B, 1, L, L), true if a token may be attended to; `None` for no mask.
        blocks: The same mask in the form of `window_blocks`.
        causal: Whether tokens may attend only to themselves and to earlier tokens; if so, there is no mask.
        slopes: (H,); the distance times the head's slope is subtracted from each score; `None` for no slopes.
    """

    q: mx.array
    k: mx.array
    bias: mx.array | None = None
    mask: mx.array | None = None
    blocks: mx.array | None = None
    causal: bool = False
    slopes: mx.array | None = None

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


def scaled(x: mx.array, factor: float) -> mx.array:
    """Multiplies `x` by a number."""
    return cast(mx.array, fused_kernels.times(x, fused_kernels.number(factor))) if _trains_on_gpu() else x * factor


def fusion_barrier(x: mx.array) -> mx.array:
    """Returns `x`; on a GPU, cheap operations before this call are not fused with the operations after it."""
    return fused_kernels.fusion_barrier(x) if on_gpu() else x


def _trains_on_gpu() -> bool:
    """Whether to use `mlxbert.nn.fused_kernels`: on a GPU, if gradients may be needed."""
    return on_gpu() and not evaluating()


def attention_weights(qk: PositionedQK, scale: float) -> mx.array:
    """Returns the softmax of the products of queries and keys times `scale`, (B, H, L, L)."""
    qk = qk.dense
    k = mx.repeat(qk.k, qk.q.shape[1] // qk.k.shape[1], axis=1)
    scores = scaled(qk.q, scale) @ k.swapaxes(-1, -2)
    if qk.bias is not None:
        scores = scores + qk.bias  # float32 if the bias is float32, as in `_slope_bias`
    if _trains_on_gpu():
        masks = [] if qk.mask is None else [qk.mask]
        return cast(mx.array, fused_kernels.softmax(scores, masks)).astype(qk.q.dtype)
    if qk.mask is not None:
        scores = mx.where(qk.mask, scores, mx.finfo(scores.dtype).min)
    return mx.softmax(scores, axis=-1, precise=True).astype(qk.q.dtype)


def attention(qk: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
    """Computes `dropout(attention_weights(qk, scale)) @ v` from values (B, K, L, d); the result is (B, H, L, d)."""
    if on_gpu():
        return _attention_of_gpus(qk, v, scale, dropout)
    if few_tokens.is_memory(v):
        qk = qk.dense
        return few_tokens.attention(qk.q, qk.k, v, scale, qk.mask, qk.bias)
    length = v.shape[2]
    if dividing := qk.blocks is not None:
        q, k, v = window_attention.divided(qk.q, qk.k, v, qk.blocks.shape[3])
        qk = PositionedQK(q, k, mask=qk.blocks)
    if qk.k.shape[1] < qk.q.shape[1]:
        mixed = _grouped_attention(qk, v, scale, dropout)
    else:
        mixed = _attention_of_cpus(qk, v, scale, dropout)
    return mixed.flatten(2, 3)[:, :, :length] if dividing else mixed


def _grouped_attention(qk: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
    """Attention with fewer key heads than query heads: each key head is broadcast to the query heads that share it."""
    shared, groups = qk.k.shape[1], qk.q.shape[1] // qk.k.shape[1]
    q = qk.q.reshape(len(qk.q), shared, groups, *qk.q.shape[2:])
    k, v = (mx.broadcast_to(x[:, :, None], (*q.shape[:3], *x.shape[2:])) for x in (qk.k, v))
    mask = None if qk.mask is None else qk.mask[:, :, None]
    mixed = _attention_of_cpus(replace(qk, q=q, k=k, mask=mask), v, scale, dropout)
    return mixed.reshape(qk.q.shape)


def _attention_of_cpus(qk: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
    size = qk.q.size // qk.q.shape[-1] * qk.k.shape[-2]
    if numpy_layers.pays(size):
        inputs = qk.q, qk.k, v, scale, qk.mask, qk.bias
        return numpy_attention.attention(*inputs, causal=qk.causal, slopes=qk.slopes)
    qk = qk.dense
    mask_and_factor = dropout.draw((*qk.q.shape[:-1], qk.k.shape[-2]))
    weigh = numpy_attention.weigh if numpy_layers.pays_in_training(size) else None
    return staged(mlx_kernels.attention(qk.q, qk.k, v, scale, qk.mask, qk.bias, mask_and_factor, weigh))


def _attention_of_gpus(qk: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
    if qk.blocks is not None:
        q, k, around, near = gpu_attention.divided(qk.q, qk.k, v, qk.blocks)
        mixed = _attention_of_gpus(PositionedQK(q, k, mask=near), around, scale, dropout)
        return gpu_attention.joined(mixed, len(v), v.shape[2])
    unfused = dropout.training and qk.slopes is None and not gpu_attention.differentiates_attention(qk.q.dtype)
    if dropout.drops or unfused:  # the fused kernel has no dropout
        values = mx.repeat(v, qk.q.shape[1] // v.shape[1], axis=1)
        return dropout(attention_weights(qk, scale)) @ values
    if qk.slopes is not None:
        return _sloped_attention_of_gpus(qk, v, scale, dropout)
    mask: mx.array | Literal["causal"] | None = "causal" if qk.causal else qk.mask
    if qk.bias is not None:
        mask = _masked_bias(qk.bias, qk.mask)
    return gpu_attention.attention(qk.q, qk.k, v, scale, mask, gradient=dropout.training)


def _masked_bias(bias: mx.array, mask: mx.array | None) -> mx.array:
    # Half of the lowest number: scores are added to it, and a masked row that overflows to -inf gives NaN.
    return bias if mask is None else mx.where(mask, bias, mx.finfo(bias.dtype).min / 2)


def _sloped_attention_of_gpus(qk: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
    """Attention with slopes, for one block of queries at a time, because the slopes' bias is an array in memory.

    `mx.fast` does not take a bias in a wider dtype than queries and keys, and bfloat16 has only 8 bits for a distance:
    from 2,048 to 4,096, 16 tokens share a distance. So long texts are computed in float32, others in the faster
    bfloat16.
    """
    assert qk.slopes is not None
    if qk.q.dtype == mx.bfloat16 and v.shape[2] >= _FAR:
        wide = replace(qk, q=qk.q.astype(mx.float32), k=qk.k.astype(mx.float32))
        return _sloped_attention_of_gpus(wide, v.astype(mx.float32), scale, dropout).astype(v.dtype)
    keys, mixed = mx.arange(v.shape[2]), []
    # Of equal size: a last block of 8 queries or fewer would take another kernel of Metal's (ml-explore/mlx#4022).
    size = -(-v.shape[2] // -(-v.shape[2] // _SLOPED))
    for start in range(0, v.shape[2], size):
        q = qk.q[:, :, start : start + size]
        bias = _slope_bias(qk.slopes, keys[start : start + size], keys)
        mask = _masked_bias(bias.astype(q.dtype), qk.mask)
        mixed.append(gpu_attention.attention(q, qk.k, v, scale, mask, gradient=dropout.training))
    return mixed[0] if len(mixed) == 1 else mx.concatenate(mixed, axis=2)


def score_rows(head_size: int, length: int, dtype: mx.Dtype, *, sloped: bool) -> int:
    """Returns how many rows of a head's scores are in memory at the same time.

    Returns 0 if only few scores are in memory, because a fused kernel is used, or the blocks are small.

    Args:
        head_size: d.
        length: L.
        dtype: The dtype of the scores.
        sloped: Whether the scores have slopes (see `PositionedQK`).
    """
    if not on_gpu():
        return 0 if sys.platform == "linux" else length  # see `inference`
    if sloped:
        return min(_SLOPED, length)
    return 0 if gpu_attention.is_fused_here(head_size, length, dtype) else length


def mixture(
    tokens: mx.array, up: mx.array, down: mx.array, chosen: mx.array, weights: mx.array, activation: str
) -> mx.array:
    """Sums the weighted outputs of each token's experts. Shapes: N tokens, E experts, K experts per token.

    Args:
        tokens: (N, D).
        up: (E, I, D).
        down: (E, I, D).
        chosen: Integers (N, K), the experts of each token.
        weights: (N, K).
        activation: One of `ACTIVATIONS`.

    Returns:
        (N, D).
    """
    if in_plain_graphs():
        return _sum_of_all_experts(tokens, up, down, chosen, weights, activation)
    order = mx.argsort(chosen.flatten())  # tokens of the same expert follow each other
    places, used = mx.argsort(order), chosen.shape[1]
    sorted_tokens, experts = tokens[order // used], chosen.flatten()[order]
    if inferring():
        outputs = _by_expert(sorted_tokens, up, down, experts, activation)
    else:
        multiply = partial(mx.gather_mm, rhs_indices=experts, sorted_indices=True)
        dtype = mx.float32 if mx.default_device() == mx.cpu else tokens.dtype  # `gather_mm` needs float32 on a CPU
        # Reshaped, not `[:, None]` and `[:, 0]`: CUDA takes the stride of an inserted axis, 1, for the rows' stride, in
        # the gradient too (ml-explore/mlx#4253, fixed for Metal only).
        rows = sorted_tokens.reshape(-1, 1, sorted_tokens.shape[-1]).astype(dtype)
        inner = activate(activation, multiply(rows, up.swapaxes(1, 2).astype(dtype)))
        outputs = multiply(inner, down.astype(dtype)).reshape(sorted_tokens.shape).astype(tokens.dtype)
    return (outputs[places].reshape(*chosen.shape, -1) * weights[..., None]).sum(axis=1)


def _sum_of_all_experts(
    tokens: mx.array, up: mx.array, down: mx.array, chosen: mx.array, weights: mx.array, activation: str
) -> mx.array:
    """`mixture` with the same operations for all tokens: experts that a token does not use get the weight 0."""
    mixed = mx.zeros_like(tokens)
    for expert in range(len(up)):
        share = mx.where(chosen == expert, weights, 0).sum(axis=1, keepdims=True)
        mixed = mixed + activate(activation, tokens @ up[expert].T) @ down[expert] * share
    return mixed


def _by_expert(tokens: mx.array, up: mx.array, down: mx.array, experts: mx.array, activation: str) -> mx.array:
    """Computes all tokens of an expert in a single product, because products of single tokens are slow on a CPU."""
    counts = Counter(cast(list[int], experts.tolist()))
    outputs, start, layer = [], 0, Linear(1, 1, bias=False)
    for expert, count in counts.items():
        part = tokens[start : start + count]
        layer.weight = up[expert]
        outputs.append(activated(activation, layer, part) @ down[expert])
        start += count
    return mx.concatenate(outputs)


def window_blocks(length: int, window: int, mask: mx.array | None) -> mx.array | None:
    """Returns a sliding window's mask in blocks if `attention` is faster with blocks; otherwise `None`.

    Args:
        length: L.
        window: The maximum distance of tokens on each side.
        mask: bool (B, 1, 1, L), true for real tokens; `None` when nothing is padded.
    """
    if in_plain_graphs() or (on_gpu() and not gpu_attention.blocks_pay(length, window)):
        return None
    return window_attention.blocks(length, window, mask)


def rotate(x: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
    """Rotates vectors by their positions; element n of the first half is paired with element n of the second half.

    Args:
        x: (B, H, L, d).
        cosines: (L, d / 2).
        sines: (L, d / 2).
    """
    if few_tokens.is_memory(x):
        return few_tokens.rotated(x, cosines, sines)
    if x.dtype == mx.float32 and numpy_layers.pays(6 * x.size):  # the products, sums and copies below
        return numpy_attention.rotated(x, cosines, sines)
    first, second = mx.split(x, 2, axis=-1)
    rotate_halves = _fused_rotate_halves() if on_gpu() else _rotate_halves
    return mx.concatenate([*rotate_halves(first, second, cosines, sines)], axis=-1)


def _rotate_halves(first: mx.array, second: mx.array, cosines: mx.array, sines: mx.array) -> tuple[mx.array, mx.array]:
    return first * cosines - second * sines, second * cosines + first * sines


@functools.cache
def _fused_rotate_halves() -> Callable[..., tuple[mx.array, mx.array]]:
    compiled: Callable[..., tuple[mx.array, mx.array]] = mx.compile(_rotate_halves, shapeless=True)
    return compiled


def by_rows(run: Pass) -> Pass:
    """Decorates a forward pass: on a Linux CPU, each core computes some rows of the batch.

    The pass is a method of a module with the attribute `divisible` and the method `takes_few_tokens`, whose
    result for the same batch it takes as `few_tokens`. It takes arrays (B, …) and returns arrays (B, …) in a dataclass.
    In training, batches are not split here, and BLAS gets back the threads that an earlier pass may have taken. A
    training loop splits batches itself, with `training_workers`.
    """

    @functools.wraps(run)
    def split(module: Any, input_ids: mx.array, *args: Any, **options: Any) -> Any:
        rows = input_ids.shape[0]
        attentions = options.get("output_attentions", False)
        few = module.takes_few_tokens(input_ids.size, output_attentions=attentions)
        whole = module.training or not module.divisible or few
        streams = cpu_streams(1 if whole else rows)
        if len(streams) < 2:
            return run(module, input_ids, *args, **options, few_tokens=few)
        ends = [rows * number // len(streams) for number in range(len(streams) + 1)]
        jobs = []
        for part in pairwise(ends):
            tensors, keywords = nn.utils.tree_map(partial(_rows, part=slice(*part)), [(input_ids, *args), options])
            jobs.append(partial(run, module, *tensors, **keywords))
        if inferring():
            mx.eval(module.parameters(), [(job.args[1:], job.keywords) for job in jobs])
            parts = in_parallel([partial(_computed, job) for job in jobs])
            cpu_streams(1)  # gives all cores back, for the head
        else:
            parts = [_on(stream, job) for stream, job in zip(streams, jobs, strict=True)]
        return _joined(parts)

    return cast(Pass, split)


def _rows(value: Any, part: slice) -> Any:
    return value[part] if isinstance(value, mx.array) else value


def _on(stream: mx.Stream, job: Callable[[], T]) -> T:
    with mx.stream(stream):
        return job()


def _computed(job: Callable[[], T]) -> T:
    """Computes the output of a part of a batch; runs on its own thread."""
    with inference():
        output = job()
    mx.eval(vars(output))
    return output


def _joined(parts: Sequence[Any]) -> Any:
    """Concatenates the arrays of the parts' outputs into a single output."""

    def join(*arrays: mx.array | None) -> mx.array | None:
        present = [array for array in arrays if array is not None]
        return mx.concatenate(present) if present else None

    return replace(parts[0], **nn.utils.tree_map(join, *map(vars, parts)))
