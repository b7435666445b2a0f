"""What layers compute with, each in the way that is fastest here: the file of this room that knows the device.

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
from mlxbert.machine.device import mx, nn, on_gpu
from mlxbert.nn import fused_kernels, gpu_attention
from mlxbert.nn.activations import ACTIVATIONS, Activation, gelu, linear, relu
from mlxbert.nn.cpu import mlx_kernels, numpy_attention, numpy_layers, window_attention
from mlxbert.nn.dropout import KeyedDropout

T = TypeVar("T")
Pass = TypeVar("Pass", bound=Callable[..., Any])
staged, unstaged, unfilled = cores.staged, cores.unstaged, cores.unfilled  # layers know them from here
_FAN_IN = 16  # of the tree that sums a long row
_FAR = 4096  # tokens of a text from which on bfloat16 does not tell distances apart
_SLOPED = 1024  # queries of a block whose scores are lowered by their distances, on a GPU


class Linear(nn.Linear):
    """A dense layer. `mx.addmm` copies the bias into every row, 1.1 ns an element; adding it later takes 0.2."""

    def __call__(self, x: mx.array) -> mx.array:
        """(…, input size) → (…, output size)."""
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
        if x.dtype == mx.float32 and inferring():
            return numpy_layers.unit_rms(x, self.eps) * weight
        return mx.fast.rms_norm(x, weight, self.eps).astype(x.dtype)


def activate(name: str, x: mx.array) -> mx.array:
    """Applies one of `ACTIVATIONS` elementwise."""
    function = ACTIVATIONS[name]
    if _trains_on_gpu():  # tanh is that of a pooler
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
    """The function in float32: in half precision, near -3, GELU's `1 + erf` has no digits left."""

    def wide(x: mx.array) -> mx.array:
        return function(x.astype(mx.float32)).astype(x.dtype)

    return function if function in (relu, linear) else wide


def activated(name: str, layer: nn.Module, x: mx.array) -> mx.array:
    """The activation of `layer(x)`."""
    if isinstance(layer, Linear) and numpy_layers.activates(name, layer, x):
        return numpy_layers.activated(name, layer, x)
    if isinstance(layer, Linear) and numpy_layers.learns(name, layer, x):
        return staged(numpy_layers.learned(name, layer, x))
    return activate(name, layer(x))


def exponentials(x: mx.array) -> mx.array:
    """`exp(x)` for x <= 0, float32; on a CPU it stays at 2**-64 below that."""
    return mx.exp(x) if on_gpu() else cast(mx.array, mlx_kernels.exp2(x * (1 / math.log(2))))


def softmax(x: mx.array) -> mx.array:
    """Softmax over the last axis of float32, accurate for rows as long as a vocabulary."""
    if on_gpu():
        return mx.softmax(x, axis=-1)
    shares = mx.exp(x - x.max(axis=-1, keepdims=True))
    return shares / _tree_sum(shares)


def log_sum_exp(x: mx.array) -> mx.array:
    """The logarithm of the sum of exponentials over the last axis, which stays with length 1; as accurate."""
    if on_gpu():
        return mx.logsumexp(x, axis=-1, keepdims=True)
    found: mx.array = cast(Any, _log_sum_exp)(x)[0]
    return found


@mx.custom_function
def _log_sum_exp(x: mx.array) -> Any:
    """`log_sum_exp`, and what its derivative needs."""
    largest = x.max(axis=-1, keepdims=True)
    shares = exponentials(x - largest)
    total = _tree_sum(shares)
    return largest + mx.log(total), shares, total


@_log_sum_exp.vjp
def _log_sum_exp_vjp(x: mx.array, cotangents: Any, outputs: Any) -> mx.array:
    _, shares, total = outputs
    return cast(mx.array, shares * (cotangents[0] / total))


def _tree_sum(x: mx.array) -> mx.array:
    """The sum over the last axis, which stays with length 1, in float32 to its last digits.

    MLX's CPU backend sums a row in order: of a vocabulary's probabilities, 30,000 small ones fall below the last digit
    of the sum. A GPU's sums are trees.
    """
    while x.shape[-1] > 1:
        x = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % _FAN_IN)])
        x = x.reshape(*x.shape[:-1], -1, _FAN_IN).sum(axis=-1)
    return x


def step_by_step() -> AbstractContextManager[Any]:
    """Where many small operations run, each of which needs the one before: a Mac's CPU, not its GPU.

    The GPU takes longer to start each than to compute it, and both have the same memory.
    """
    return mx.stream(mx.cpu) if on_gpu() and gpu_attention.on_metal() else contextlib.nullcontext()


@dataclass(frozen=True)
class PositionedQK:
    """Queries and keys with positions applied, and who may attend to whom. Shapes: K key heads.

    Attributes:
        q: (B, H, L, d).
        k: (B, K, L, d); each key head serves H / K heads of queries.
        bias: Added to the scores, broadcast to (B, H, L, L); `None` for no bias.
        mask: bool, broadcast to (B, 1, L, L), true where a token may be attended to; `None` for no mask.
        blocks: The mask once more, as `window_blocks` gives it.
        causal: Whether no token may attend to a later one; there is no mask then.
        slopes: (H,); times the distance, they are subtracted from the scores; `None` for none.
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
        """The same with what follows from positions in arrays of (L, L)."""
        positions = mx.arange(self.q.shape[-2])
        if self.causal:
            return replace(self, causal=False, mask=(positions[:, None] >= positions)[None, None])
        if self.slopes is None:
            return self
        return replace(self, slopes=None, bias=_lowered(self.slopes, positions, positions))


def _lowered(slopes: mx.array, queries: mx.array, keys: mx.array) -> mx.array:
    """What slopes add to the scores of tokens at some positions, float32 (1, H, L, K)."""
    distances = mx.abs(queries[:, None] - keys).astype(mx.float32)
    return (-slopes[:, None, None] * distances)[None]


def scaled(x: mx.array, factor: float) -> mx.array:
    """`x * factor`."""
    return cast(mx.array, fused_kernels.times(x, fused_kernels.number(factor))) if _trains_on_gpu() else x * factor


def fusion_barrier(x: mx.array) -> mx.array:
    """`x`; on a GPU the operations before it are not fused with those after it: for what takes little time."""
    return fused_kernels.fusion_barrier(x) if on_gpu() else x


def _trains_on_gpu() -> bool:
    """Whether functions of `mlxbert.nn.fused_kernels` are to be used: a GPU computes, and may have to differentiate."""
    return on_gpu() and not evaluating()


def attention_weights(given: PositionedQK, scale: float) -> mx.array:
    """The softmax of the products of queries and keys times `scale`, (B, H, L, L)."""
    given = given.dense
    k = mx.repeat(given.k, given.q.shape[1] // given.k.shape[1], axis=1)
    scores = scaled(given.q, scale) @ k.swapaxes(-1, -2)
    if given.bias is not None:
        scores = scores + given.bias  # in float32 where that is: see `_lowered`
    if _trains_on_gpu():
        masks = [] if given.mask is None else [given.mask]
        return cast(mx.array, fused_kernels.softmax(scores, masks)).astype(given.q.dtype)
    if given.mask is not None:
        scores = mx.where(given.mask, scores, mx.finfo(scores.dtype).min)
    return mx.softmax(scores, axis=-1, precise=True).astype(given.q.dtype)


def attention(given: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
    """`dropout(attention_weights(given, scale)) @ v`, values (B, K, L, d) and result (B, H, L, d)."""
    if on_gpu():
        return _attention_of_gpus(given, v, scale, dropout)
    length = v.shape[2]
    if dividing := given.blocks is not None:
        q, k, v = window_attention.divided(given.q, given.k, v, given.blocks.shape[3])
        given = PositionedQK(q, k, mask=given.blocks)
    if given.k.shape[1] < given.q.shape[1]:
        mixed = _grouped_attention(given, v, scale, dropout)
    else:
        mixed = _attention_of_cpus(given, v, scale, dropout)
    return mixed.flatten(2, 3)[:, :, :length] if dividing else mixed


def _grouped_attention(given: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
    """Queries that share keys as one more axis, over which keys and values are broadcast."""
    shared, groups = given.k.shape[1], given.q.shape[1] // given.k.shape[1]
    q = given.q.reshape(len(given.q), shared, groups, *given.q.shape[2:])
    k, v = (mx.broadcast_to(x[:, :, None], (*q.shape[:3], *x.shape[2:])) for x in (given.k, v))
    mask = None if given.mask is None else given.mask[:, :, None]
    mixed = _attention_of_cpus(replace(given, q=q, k=k, mask=mask), v, scale, dropout)
    return mixed.reshape(given.q.shape)


def _attention_of_cpus(given: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
    size = given.q.size // given.q.shape[-1] * given.k.shape[-2]
    if numpy_layers.pays(size):
        inputs = given.q, given.k, v, scale, given.mask, given.bias
        return numpy_attention.attention(*inputs, causal=given.causal, slopes=given.slopes)
    given = given.dense
    drawn = dropout.draw((*given.q.shape[:-1], given.k.shape[-2]))
    weigh = numpy_attention.weigh if numpy_layers.pays_in_training(size) else None
    return staged(mlx_kernels.attention(given.q, given.k, v, scale, given.mask, given.bias, drawn, weigh))


def _attention_of_gpus(given: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
    if given.blocks is not None:
        q, k, around, near = gpu_attention.divided(given.q, given.k, v, given.blocks)
        mixed = _attention_of_gpus(PositionedQK(q, k, mask=near), around, scale, dropout)
        return gpu_attention.joined(mixed, len(v), v.shape[2])
    unfused = dropout.training and given.slopes is None and not gpu_attention.differentiates_attention(given.q.dtype)
    if dropout.drops or unfused:  # the fused kernel has no dropout
        values = mx.repeat(v, given.q.shape[1] // v.shape[1], axis=1)
        return dropout(attention_weights(given, scale)) @ values
    if given.slopes is not None:
        return _sloped_attention_of_gpus(given, v, scale, dropout)
    mask: mx.array | Literal["causal"] | None = "causal" if given.causal else given.mask
    if given.bias is not None:
        mask = _masked_bias(given.bias, given.mask)
    return gpu_attention.attention(given.q, given.k, v, scale, mask, gradient=dropout.training)


def _masked_bias(bias: mx.array, mask: mx.array | None) -> mx.array:
    # Half of the lowest number: scores are added to it, and a masked row that overflows to -inf gives NaN.
    return bias if mask is None else mx.where(mask, bias, mx.finfo(bias.dtype).min / 2)


def _sloped_attention_of_gpus(given: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
    """The slopes' part of the scores is an array: it is made for a block of queries at a time.

    It must not be wider than queries and keys (`mx.fast`), and bfloat16 has 8 bits for a distance: tokens at 2,048 to
    4,096 have the same for 16 tokens. So a long text is computed in float32; a shorter one in what is faster.
    """
    assert given.slopes is not None
    if given.q.dtype == mx.bfloat16 and v.shape[2] >= _FAR:
        wide = replace(given, q=given.q.astype(mx.float32), k=given.k.astype(mx.float32))
        return _sloped_attention_of_gpus(wide, v.astype(mx.float32), scale, dropout).astype(v.dtype)
    keys, mixed = mx.arange(v.shape[2]), []
    # Of equal size: a last block of 8 queries or fewer would take another kernel of Metal's (ml-explore/mlx#4022).
    size = -(-v.shape[2] // -(-v.shape[2] // _SLOPED))
    for start in range(0, v.shape[2], size):
        q = given.q[:, :, start : start + size]
        lowered = _lowered(given.slopes, keys[start : start + size], keys)
        mask = _masked_bias(lowered.astype(q.dtype), given.mask)
        mixed.append(gpu_attention.attention(q, given.k, v, scale, mask, gradient=dropout.training))
    return mixed[0] if len(mixed) == 1 else mx.concatenate(mixed, axis=2)


def score_rows(head_size: int, length: int, dtype: mx.Dtype, *, sloped: bool) -> int:
    """How many rows of the scores of a head are in memory at once: none that a kernel or small blocks compute.

    Args:
        head_size: d.
        length: L.
        dtype: Of the scores.
        sloped: Whether they are lowered by their distances.
    """
    if not on_gpu():
        return 0 if sys.platform == "linux" else length  # see `inference`
    if sloped:
        return min(_SLOPED, length)
    return 0 if gpu_attention.is_fused_here(head_size, length, dtype) else length


def mixture(
    tokens: mx.array, up: mx.array, down: mx.array, chosen: mx.array, weights: mx.array, activation: str
) -> mx.array:
    """Tokens through the feed-forward networks that each has chosen, weighted. Shapes: N tokens, E experts, K used.

    Args:
        tokens: (N, D).
        up: (E, I, D).
        down: (E, I, D).
        chosen: Integers (N, K).
        weights: (N, K).
        activation: One of `ACTIVATIONS`.

    Returns:
        (N, D).
    """
    order = mx.argsort(chosen.flatten())  # tokens of the same expert follow each other
    places, used = mx.argsort(order), chosen.shape[1]
    given, experts = tokens[order // used], chosen.flatten()[order]
    if inferring():
        found = _by_expert(given, up, down, experts, activation)
    else:
        multiply = partial(mx.gather_mm, rhs_indices=experts, sorted_indices=True)
        dtype = mx.float32 if mx.default_device() == mx.cpu else tokens.dtype  # a CPU multiplies nothing else so
        # Reshaped, not `[:, None]` and `[:, 0]`: CUDA takes the stride of an inserted axis, 1, for that of the rows, in
        # the gradient too (ml-explore/mlx#4253, mended for Metal alone).
        rows = given.reshape(-1, 1, given.shape[-1]).astype(dtype)
        inner = activate(activation, multiply(rows, up.swapaxes(1, 2).astype(dtype)))
        found = multiply(inner, down.astype(dtype)).reshape(given.shape).astype(tokens.dtype)
    return (found[places].reshape(*chosen.shape, -1) * weights[..., None]).sum(axis=1)


def _by_expert(tokens: mx.array, up: mx.array, down: mx.array, experts: mx.array, activation: str) -> mx.array:
    """The tokens of each expert in one product: on a CPU, products of single tokens are slow."""
    counts = Counter(cast(list[int], experts.tolist()))
    found, start, layer = [], 0, Linear(1, 1, bias=False)
    for expert, count in counts.items():
        part = tokens[start : start + count]
        layer.weight = up[expert]
        found.append(activated(activation, layer, part) @ down[expert])
        start += count
    return mx.concatenate(found)


def window_blocks(length: int, window: int, mask: mx.array | None) -> mx.array | None:
    """The mask of a sliding window in the form that `attention` computes fastest; `None` if that is the whole mask.

    Args:
        length: L.
        window: How far away the tokens on each side may be.
        mask: bool (B, 1, 1, L), true at real tokens; `None` when nothing is padded.
    """
    return (
        None
        if on_gpu() and not gpu_attention.blocks_pay(length, window)
        else window_attention.blocks(length, window, mask)
    )


def rotate(x: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
    """Vectors rotated by their positions: element n of the first half with element n of the second.

    Args:
        x: (B, H, L, d).
        cosines: (L, d / 2).
        sines: (L, d / 2).
    """
    if x.dtype == mx.float32 and numpy_layers.pays(6 * x.size):  # the products, sums and copies below
        return numpy_attention.rotated(x, cosines, sines)
    first, second = mx.split(x, 2, axis=-1)
    turned = _turned_in_one_kernel() if on_gpu() else _turned
    return mx.concatenate([*turned(first, second, cosines, sines)], axis=-1)


def _turned(first: mx.array, second: mx.array, cosines: mx.array, sines: mx.array) -> tuple[mx.array, mx.array]:
    return first * cosines - second * sines, second * cosines + first * sines


@functools.cache
def _turned_in_one_kernel() -> Callable[..., tuple[mx.array, mx.array]]:
    compiled: Callable[..., tuple[mx.array, mx.array]] = mx.compile(_turned, shapeless=True)
    return compiled


def by_rows(run: Pass) -> Pass:
    """Decorates a forward pass: on a Linux CPU, each core computes some rows of the batch.

    The pass is a method of a module that says whether it is `divisible`; it takes arrays (B, …) and gives arrays
    (B, …) in a dataclass. In training a batch is not split here, and BLAS gets back the threads that an earlier pass
    took from it; a loop that divides batches itself has `training_workers`.
    """

    @functools.wraps(run)
    def split(module: Any, input_ids: mx.array, *args: Any, **options: Any) -> Any:
        rows = input_ids.shape[0]
        streams = cpu_streams(1 if module.training or not module.divisible else rows)
        if len(streams) < 2:
            return run(module, input_ids, *args, **options)
        ends = [rows * number // len(streams) for number in range(len(streams) + 1)]
        jobs = []
        for part in pairwise(ends):
            given, named = nn.utils.tree_map(partial(_rows, part=slice(*part)), [(input_ids, *args), options])
            jobs.append(partial(run, module, *given, **named))
        if inferring():
            mx.eval(module.parameters(), [(job.args[1:], job.keywords) for job in jobs])
            parts = in_parallel([partial(_computed, job) for job in jobs])
            cpu_streams(1)  # a head has all cores again
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
    """The output of a part of a batch, on a thread of its own."""
    with inference():
        output = job()
    mx.eval(vars(output))
    return output


def _joined(parts: Sequence[Any]) -> Any:
    """The arrays of the outputs of all parts, as one output."""

    def join(*arrays: mx.array | None) -> mx.array | None:
        found = [array for array in arrays if array is not None]
        return mx.concatenate(found) if found else None

    return replace(parts[0], **nn.utils.tree_map(join, *map(vars, parts)))
