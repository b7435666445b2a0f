"""The backends of a Linux CPU: lazy graphs for training, eager passes for inference.

Shapes: B batch, L length, H heads, d head size.
"""

import importlib
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar, cast

from mlxbert.cpu import adamw_numpy, cores, few_tokens, mlx_kernels, numpy_attention, numpy_layers
from mlxbert.machine.device import BLAS, mx, nn
from mlxbert.nn.activations import ACTIVATIONS, gelu
from mlxbert.nn.backend import Backend, PositionedQK
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.ops import inference

T = TypeVar("T")


class CpuBackend(Backend):
    """Passes as lazy graphs, which may be differentiated."""

    def dense(self, layer: nn.Linear, x: mx.array) -> mx.array:
        # `mx.addmm` first copies the bias into every row, in 1.1 ns per element; an addition takes 0.2 ns.
        if not x.dtype == layer.weight.dtype == mx.float32:
            return cores.staged(super().dense(layer, x))
        biases = [layer.bias] if "bias" in layer else []
        return cores.staged(cast(mx.array, mlx_kernels.dense(x, layer.weight, biases)))

    def layer_norm(self, layer: nn.LayerNorm, x: mx.array) -> mx.array:
        if x.dtype != mx.float32 or "weight" not in layer:
            return super().layer_norm(layer, x)
        return mlx_kernels.layer_norm(x, layer.weight, [layer.bias] if "bias" in layer else [], layer.eps)

    def activate(self, name: str, x: mx.array) -> mx.array:
        function = ACTIVATIONS[name]
        return cast(mx.array, mlx_kernels.gelu(x)) if function is gelu else function(x)

    def activated(self, name: str, layer: nn.Module, x: mx.array) -> mx.array:
        if isinstance(layer, nn.Linear) and numpy_layers.learns(name, layer, x):
            return cores.staged(numpy_layers.learned(name, layer, x))
        return super().activated(name, layer, x)

    def exponentials(self, x: mx.array) -> mx.array:
        return mlx_kernels.exponentials(x)

    def log_sum_exp(self, x: mx.array) -> mx.array:
        return cast(mx.array, cast(Any, mlx_kernels.log_sum_exp)(x)[0])

    def attention(self, qk: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
        if qk.blocks is None:
            return self._grouped(qk, v, scale, dropout)
        q, size, length = qk.q, qk.blocks.shape[3], v.shape[2]
        padding = -length % size
        queries = mx.pad(q, [(0, 0), (0, 0), (0, padding), (0, 0)]).reshape(*q.shape[:2], -1, size, q.shape[-1])
        keys, values = (self.with_neighbours(x, size, padding) for x in (qk.k, v))
        mixed = self._grouped(PositionedQK(queries, keys, mask=qk.blocks), values, scale, dropout)
        return mixed.flatten(2, 3)[:, :, :length]

    def with_neighbours(self, x: mx.array, size: int, padding: int) -> mx.array:
        """(B, H, L, d) → (B, H, blocks, 3 * size, d): each block together with its two neighbours."""
        padded = mx.pad(x, [(0, 0), (0, 0), (size, padding + size), (0, 0)])
        parts = padded.reshape(*x.shape[:2], -1, size, x.shape[-1])
        return mx.concatenate([parts[:, :, :-2], parts[:, :, 1:-1], parts[:, :, 2:]], axis=3)

    def _grouped(self, qk: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
        """Attention; each key head is broadcast to the query heads that share it."""
        if qk.k.shape[1] == qk.q.shape[1]:
            return self.attend(qk, v, scale, dropout)
        shared, groups = qk.k.shape[1], qk.q.shape[1] // qk.k.shape[1]
        q = qk.q.reshape(len(qk.q), shared, groups, *qk.q.shape[2:])
        k, v = (mx.broadcast_to(x[:, :, None], (*q.shape[:3], *x.shape[2:])) for x in (qk.k, v))
        mask = None if qk.mask is None else qk.mask[:, :, None]
        return self.attend(replace(qk, q=q, k=k, mask=mask), v, scale, dropout).reshape(qk.q.shape)

    def attend(self, qk: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
        """Attention with as many key heads as query heads, to all keys."""
        qk = qk.dense
        kept = dropout.draw((*qk.q.shape[:-1], qk.k.shape[-2]))
        weigh = numpy_attention.weigh if numpy_layers.pays_in_training(_scores(qk)) else None
        return cores.staged(mlx_kernels.attention(qk.q, qk.k, v, scale, qk.mask, qk.bias, kept, weigh))

    def score_rows(self, head_size: int, length: int, dtype: mx.Dtype, *, sloped: bool) -> int:
        return 0

    def run(self, encoder: Any, arrays: Sequence[Any], options: Mapping[str, bool]) -> Any:
        # In training, BLAS gets back the threads that an earlier pass may have taken; the loop splits batches itself.
        rows = len(arrays[0])
        streams = cores.cpu_streams(1 if encoder.training or not encoder.divisible else rows)
        if len(streams) < 2:
            return super().run(encoder, arrays, options)
        ends = [rows * number // len(streams) for number in range(len(streams) + 1)]
        parts = [[array if array is None else array[slice(*part)] for array in arrays] for part in pairwise(ends)]
        return _joined(self.run_parts(encoder, parts, options, streams))

    def run_parts(
        self, encoder: Any, parts: Sequence[Any], options: Mapping[str, bool], streams: Sequence[mx.Stream]
    ) -> list[Any]:
        outputs = []
        for part, stream in zip(parts, streams, strict=True):
            with mx.stream(stream):
                outputs.append(Backend.run(self, encoder, part, options))
        return outputs

    def prepare(self) -> None:
        if BLAS.sgemm is not None:  # importing numpy takes longer than a short text
            threading.Thread(target=importlib.import_module, args=("numpy",)).start()

    staged = staticmethod(cores.staged)
    stages = staticmethod(cores.stages)
    unstaged = staticmethod(cores.unstaged)
    unfilled = staticmethod(cores.unfilled)
    as_cores_get_free = staticmethod(cores.as_cores_get_free)
    limit_cores = staticmethod(cores.limit_cores)

    def workers(self) -> int:
        return len(cores.training_workers())

    def join_cores(self) -> None:
        cores.cpu_streams(1)

    @property
    def adamw(self) -> Any:
        return adamw_numpy if numpy_layers.shares_memory() else None


class CpuInference(CpuBackend):
    """Passes that are computed at once, on all cores, with numpy's vector instructions."""

    def dense(self, layer: nn.Linear, x: mx.array) -> mx.array:
        return x @ layer.weight.T + layer.bias if "bias" in layer else x @ layer.weight.T

    def layer_norm(self, layer: nn.LayerNorm, x: mx.array) -> mx.array:
        if x.dtype != mx.float32:
            return super().layer_norm(layer, x)
        y = numpy_layers.normalized(x, layer.eps)
        y = y * layer.weight if "weight" in layer else y
        return y + layer.bias if "bias" in layer else y

    def rms_norm(self, x: mx.array, weight: mx.array, eps: float) -> mx.array:
        return numpy_layers.unit_rms(x, eps) * weight if x.dtype == mx.float32 else super().rms_norm(x, weight, eps)

    def activated(self, name: str, layer: nn.Module, x: mx.array) -> mx.array:
        if isinstance(layer, nn.Linear) and numpy_layers.activates(name, layer, x):
            return numpy_layers.activated(name, layer, x)
        return super().activated(name, layer, x)

    def attend(self, qk: PositionedQK, v: mx.array, scale: float, dropout: KeyedDropout) -> mx.array:
        if not numpy_layers.pays(_scores(qk)):
            return super().attend(qk, v, scale, dropout)
        inputs = qk.q, qk.k, v, scale, qk.mask, qk.bias
        return numpy_attention.attention(*inputs, causal=qk.causal, slopes=qk.slopes)

    def with_neighbours(self, x: mx.array, size: int, padding: int) -> mx.array:
        if x.dtype == mx.float32 and numpy_layers.pays(3 * x.size):  # each block is in three windows
            return numpy_attention.with_neighbours(x, size, padding)
        return super().with_neighbours(x, size, padding)

    def rotate(self, x: mx.array, cosines: mx.array, sines: mx.array) -> mx.array:
        if x.dtype == mx.float32 and numpy_layers.pays(6 * x.size):  # the products, sums and copies of the graph
            return numpy_attention.rotated(x, cosines, sines)
        return super().rotate(x, cosines, sines)

    def experts(self, tokens: mx.array, up: mx.array, down: mx.array, experts: mx.array, activation: str) -> mx.array:
        # All tokens of an expert in a single product, because products of single tokens are slow on a CPU.
        counts = Counter(cast(list[int], experts.tolist()))
        outputs, start, layer = [], 0, nn.Linear(1, 1, bias=False)
        for expert, count in counts.items():
            layer.weight = up[expert]
            inner = self.activated(activation, layer, tokens[start : start + count])
            outputs.append(inner @ down[expert])
            start += count
        return mx.concatenate(outputs)

    def run(self, encoder: Any, arrays: Sequence[Any], options: Mapping[str, bool]) -> Any:
        if not few_tokens.takes(encoder, arrays[0].size, output_attentions=options["output_attentions"]):
            return super().run(encoder, arrays, options)
        self.join_cores()
        return encoder.run(arrays, options, few_tokens.layers)

    def run_parts(
        self, encoder: Any, parts: Sequence[Any], options: Mapping[str, bool], streams: Sequence[mx.Stream]
    ) -> list[Any]:
        mx.eval(encoder.parameters(), parts)
        jobs = [partial(Backend.run, self, encoder, part, options) for part in parts]
        outputs = cores.in_parallel([partial(_computed, job) for job in jobs])
        self.join_cores()  # for the head
        return outputs


BACKENDS = CpuBackend(), CpuInference()


def _scores(qk: PositionedQK) -> int:
    return qk.q.size // qk.q.shape[-1] * qk.k.shape[-2]


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
