"""The layers of an encoder for few tokens on a Linux CPU: on numpy's arrays, with direct calls of the BLAS.

MLX takes about 10 microseconds for even the smallest operation, and a layer has about eighty operations: with a few
dozen tokens, this overhead would take most of the time. An operation of numpy or a call of the BLAS takes one or two
microseconds. A head's part of queries, keys and values is a matrix whose rows are far apart, which numpy multiplies
without a copy.

The layers get arrays of numpy instead of MLX's; the code of the blocks is the same for both.

Shapes: B batch, L length, D hidden size, H heads, d head size.
"""

from collections.abc import Callable
from typing import Any, cast

from mlxbert.cpu import mlx_kernels, numpy_layers
from mlxbert.cpu.cores import is_worker
from mlxbert.lazy_numpy import np
from mlxbert.machine.device import BLAS, mx, nn
from mlxbert.nn import ops
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.attention import RotaryAttention, SelfAttention
from mlxbert.nn.backend import Backend, PositionedQK
from mlxbert.nn.blocks import FeedForward, PostNormBlock, PreNormBlock
from mlxbert.nn.dropout import KeyedDropout

Floats = Any  # an array of numpy, float32, in the place of an array of MLX
_MAX_TOKENS = 256  # with more, it pays to compute on all cores what is not a product (see `numpy_layers`)
_MULTIPLE = 8  # the BLAS needs a third less time for 16 rows than for 14
_BY_ROWS, _AS_IT_IS, _TRANSPOSED = 101, 111, 112  # CBLAS's names
_MIN_WEIGHT = 2.0**-64  # see `mlx_kernels.exp2`
# Modules that compute with the operations of `FewTokens` only.
_PLAIN: frozenset[type[nn.Module]] = frozenset([
    PostNormBlock, PreNormBlock, SelfAttention, RotaryAttention, FeedForward,
    ops.Linear, ops.LayerNorm, ops.RMSNorm, KeyedDropout,
])  # fmt: skip


def takes(encoder: Any, tokens: int, *, output_attentions: bool) -> bool:
    """Whether the layers of a batch of this many tokens take less time on numpy's arrays, in inference.

    Not in one of several threads, as the BLAS that numpy brings has all cores in each of them. What a process has done
    before does not matter: the same text must have the same digits in each.
    """
    if tokens > _MAX_TOKENS or is_worker() or BLAS.sgemm is None or not numpy_layers.shares_memory():
        return False
    if encoder.training or output_attentions or "convolution" in encoder:
        return False
    norms = [encoder.final_norm] if "final_norm" in encoder else []
    return encoder.embeddings.word.weight.dtype == mx.float32 and _are_plain([*encoder.layers, *norms])


def _are_plain(modules: list[nn.Module]) -> bool:
    """Whether all of these modules and their parts are in `_PLAIN`, in float32: no adapters, no quantized weights."""
    while modules:
        module = modules.pop()
        if type(module) not in _PLAIN or (isinstance(module, ops.Linear) and module.weight.dtype != mx.float32):
            return False
        modules += [value for value in module.values() if isinstance(value, nn.Module)]
    return True


def layers(run: Callable[[mx.array], tuple[list[mx.array], list[mx.array]]], x: mx.array) -> Any:
    """Runs the function that computes the hidden states of all layers; none returns attention weights."""
    # NaN and infinity are detected later, with the text that they belong to.
    with ops.computed_by(_FEW), np.errstate(all="ignore"):
        states, _ = run(_memory(x))
    return [*map(mx.array, states)], []


def _memory(x: mx.array) -> Floats:
    """The memory of an array, in numpy's form; evaluates the array."""
    return np.asarray(x)


class FewTokens(Backend):
    """The operations of `_PLAIN` modules, from arrays of numpy to arrays of numpy."""

    def dense(self, layer: nn.Linear, x: Floats) -> Floats:
        """(…, input size) → (…, output size)."""
        assert BLAS.sgemm is not None
        # No copies, except of what does not fit: the BLAS trusts the addresses that it gets.
        weight = np.ascontiguousarray(_memory(layer.weight), np.float32)
        rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1]), np.float32)
        (width, inner), real = weight.shape, len(rows)
        if missing := -real % _MULTIPLE:
            rows = np.concatenate([rows, np.zeros((missing, inner), np.float32)])
        y = np.empty((len(rows), width), np.float32)
        BLAS.sgemm(
            _BY_ROWS, _AS_IT_IS, _TRANSPOSED, len(rows), width, inner,
            1.0, _address(rows), inner, _address(weight), inner, 0.0, _address(y), width,
        )  # fmt: skip
        y = y[:real].reshape(*x.shape[:-1], width)
        if "bias" in layer:
            y += _memory(layer.bias)
        return y

    def layer_norm(self, layer: nn.LayerNorm, x: Floats) -> Floats:
        """(…, D) → (…, D)."""
        sums = np.add.reduce(x, axis=-1, keepdims=True)  # `mean` takes twice as long
        sums *= 1 / x.shape[-1]
        y = x - sums
        y *= _inverse_root(y, layer.eps)
        if "weight" in layer:
            y *= _memory(layer.weight)
        if "bias" in layer:
            y += _memory(layer.bias)
        return y

    def rms_norm(self, x: Floats, weight: mx.array, eps: float) -> Floats:
        return x * _inverse_root(x, eps) * _memory(weight)

    def activated(self, name: str, layer: nn.Module, x: Floats) -> Floats:
        y = layer(x)
        if name not in numpy_layers.ACTIVATIONS:
            return _memory(ACTIVATIONS[name](mx.array(y)))
        numpy_layers.activate_in_place(name, y.reshape(-1, y.shape[-1]))
        return y

    def rotate(self, x: Floats, cosines: mx.array, sines: mx.array) -> Floats:
        first, second = np.split(x, 2, axis=-1)
        along, across = _memory(cosines), _memory(sines)
        return np.concatenate([first * along - second * across, second * along + first * across], axis=-1)

    def attention(self, qk: PositionedQK, v: Floats, scale: float, dropout: KeyedDropout) -> Floats:
        # Scores have keys as rows, which makes numpy's maxima and sums faster.
        qk = qk.dense
        q, k, mask, bias = qk.q, qk.k, qk.mask, qk.bias
        (batch, heads, length, size), shared = q.shape, k.shape[1]
        # Query heads that share a key head become an axis of their own.
        grouped = (batch, shared, heads // shared, length, size)
        mixed = np.empty((batch, length, heads, size), np.float32)
        by_head = mixed.transpose(0, 2, 1, 3)
        weights = np.empty((batch, shared, heads // shared, k.shape[2], length), np.float32)
        by_query = weights.reshape(batch, heads, -1, length).swapaxes(-1, -2)
        scaled = (cast(Floats, q) * np.float32(scale)).reshape(grouped)
        np.matmul(k[:, :, None], scaled.swapaxes(-1, -2), out=weights)
        if bias is not None:
            by_query += _memory(bias)
        if mask is not None:
            by_query += np.where(_memory(mask), np.float32(0), np.float32(mlx_kernels.MASKED))
        weights -= weights.max(axis=-2, keepdims=True)
        np.exp(weights, out=weights)
        weights += _MIN_WEIGHT
        np.matmul(weights.swapaxes(-1, -2), v[:, :, None], out=by_head.reshape(grouped))
        mixed *= np.reciprocal(by_query.sum(axis=-1)).transpose(0, 2, 1)[..., None]
        return by_head


_FEW = FewTokens()


def _address(x: Floats) -> int:
    address: int = x.__array_interface__["data"][0]
    return address


def _inverse_root(x: Floats, eps: float) -> Floats:
    """Returns 1 / sqrt(mean square + eps) over the last axis, which is kept with length 1."""
    squares = np.einsum("...i,...i->...", x, x)[..., None]
    squares *= 1 / x.shape[-1]
    squares += eps
    np.sqrt(squares, out=squares)
    return np.reciprocal(squares, out=squares)
