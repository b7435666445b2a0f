"""What inference on a Linux CPU computes with numpy is what the graph computes."""

import itertools
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from mlxbert.config import Absolute, Positions, Rotary, Rotation
from mlxbert.cpu import mlx_kernels, numpy_attention, numpy_layers
from mlxbert.cpu.cores import stages, unstaged
from mlxbert.machine.device import mx
from mlxbert.nn import ops
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.ops import evaluating, inference
from tests.helpers.cases import together
from tests.helpers.tiny import random_network, tiny_config

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there")


def _random(*shape: int, scale: float = 1.0, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)) * scale


def _far(one: mx.array, other: mx.array) -> float:
    return float(np.abs(np.array(one.astype(mx.float32)) - np.array(other.astype(mx.float32))).max())


def _real(*lengths: int) -> mx.array:
    return (mx.arange(max(lengths)) < mx.array(lengths)[:, None])[:, None, None]


MASKS: dict[str, mx.array | None] = {
    "none": None,
    "padding": _real(80, 33, 1),
    "window": (mx.abs(mx.arange(80)[:, None] - mx.arange(80)) < 9)[None, None],
    "all": mx.zeros((1, 1, 1, 80), dtype=mx.bool_),
}


# All texts, a text, a head, and 64 queries of a head; of the scales only the first has scores known to be small.
_BLOCKS = (2**21, 1.0), (4 * 80 * 80, 1.0), (80 * 80, 1.0), (80 * 80, 3.0), (2000, 1.0)


@together(("mask", "block", "scale"), ((mask, *block) for mask in MASKS for block in _BLOCKS))
def test_attention_is_that_of_the_kernels_in_blocks_of_any_size(
    mask: str, block: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy_attention, "block_size", lambda: block)
    q, k, v = (_random(3, 80, 4, 16, scale=scale, seed=seed).transpose(0, 2, 1, 3) for seed in (1, 2, 3))
    v = v / scale
    bounds = numpy_attention._bounds(q * 0.3, k)
    assert (bounds < numpy_attention._BOUND).all() == (scale == 1)
    error = 2e-6 * scale**2  # scores are rounded, and rounded differently
    assert (np.abs(np.array(0.3 * q @ k.swapaxes(-1, -2))).max((-1, -2)) <= bounds * 1.0001).all()
    for bias in (None, _random(1, 4, 80, 80, seed=4), _random(3, 4, 80, 80, seed=5)):
        found = numpy_attention.attention(q, k, v, 0.3, MASKS[mask], bias)
        assert _far(found, mlx_kernels.attention(q, k, v, 0.3, MASKS[mask], bias)) < error
    assert mx.array_equal(found, numpy_attention.attention(q, k, v, 0.3, MASKS[mask], bias))


# The last block takes 64 of 128 queries; `texts` are those of the mask.
@together(("block", "texts"), [(2**21, 1), (3 * 128 * 384, 2), (2000, 1), (2000, 2)])
def test_attention_in_windows_is_that_of_the_kernels(block: int, texts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_attention, "block_size", lambda: block)
    q = _random(2, 2, 3, 128, 16, seed=1)
    k, v = (_random(2, 2, 3, 384, 16, seed=seed) for seed in (2, 3))
    mask = _random(texts, 1, 3, 128, 384, seed=4) > -1
    assert _far(numpy_attention.attention(q, k, v, 0.3, mask), mlx_kernels.attention(q, k, v, 0.3, mask)) < 2e-6


# The second scale has scores whose exponentials overflow float16.
@together(("dtype", "scale", "mask"), itertools.product([mx.float16, mx.bfloat16], [1.0, 1.8], MASKS))
def test_attention_keeps_the_dtype(dtype: mx.Dtype, scale: float, mask: str) -> None:
    q, k, v = (_random(3, 2, 80, 16, scale=scale, seed=seed).astype(dtype) for seed in (1, 2, 3))
    v = v / scale
    found = numpy_attention.attention(q, k, v, 0.3, MASKS[mask])
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    wide = mlx_kernels.attention(q, k, v, 0.3, MASKS[mask])
    assert found.dtype == dtype and _far(found, wide) < (0.02 if dtype == mx.float16 else 0.1) * scale


def test_scores_far_apart_give_no_subnormal_weights() -> None:
    q, k, v = mx.ones((1, 1, 1, 1)), mx.array([0.0, -95.0, -1e4]).reshape(1, 1, 3, 1), mx.eye(3)[None, None]
    found = np.array(numpy_attention.attention(q, k, v, 1.0, None))[0, 0, 0, 1:]
    assert (found >= 2.0**-64.1).all() and (found <= 2.0**-63.9).all()


@together(("name", "biased"), itertools.product(numpy_layers.ACTIVATIONS, [True, False]))
def test_activations_are_those_of_the_graph(name: str, biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_layers, "block_size", lambda: 900)
    layer = ops.Linear(8, 24, bias=biased)
    x = _random(3, 17, 8, scale=8, seed=3)
    assert name in ACTIVATIONS
    assert _far(numpy_layers.activated(name, layer, x), ops.backend().activate(name, layer(x))) < 5e-6
    assert numpy_layers.activated(name, layer, x).shape == (3, 17, 24)


def test_gelu_is_that_of_the_kernels_to_the_bit_and_slopes_far_from_zero_are_0_and_1() -> None:
    x = mx.linspace(-12, 12, 2**14).reshape(2, -1)
    layer = ops.Linear(2, 2, bias=False)
    layer.weight = mx.eye(2)
    assert _far(numpy_layers.activated("gelu", layer, x.T), ops.backend().activate("gelu", x.T)) == 0
    for name in ("gelu", "gelu_new"):
        ends, slopes = np.array([-1e30, -1e4, 1e4, 1e30], dtype=np.float32), np.empty((2, 4), dtype=np.float32)
        numpy_layers.SLOPES[name](ends, *slopes)
        assert np.allclose(slopes[0], [0, 0, 1, 1], atol=5e-7)


@together("biased", [True, False])
def test_norms_and_dense_layers_are_those_of_mlx(biased: bool) -> None:
    norm, dense = ops.LayerNorm(48, bias=biased), ops.Linear(48, 20, bias=biased)
    norm.weight = _random(48, seed=1)
    x = _random(4, 9, 48, scale=3, seed=2) + 5
    outside = norm(x), dense(x)
    with inference():
        assert evaluating()
        assert _far(norm(x), outside[0]) < 5e-6 and _far(dense(x), outside[1]) < 5e-6
    assert not evaluating()


Stages = list[mx.array | Callable[[], None]]


def _computed(stages: Stages) -> None:
    for stage in stages:
        mx.eval(stage) if isinstance(stage, mx.array) else stage()


@together(("name", "biased"), itertools.product(ACTIVATIONS, [True, False]))
def test_activations_of_training_have_the_gradients_of_the_graph(
    name: str, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy_layers, "_MIN_SIZE", 1)
    monkeypatch.setattr(numpy_layers, "block_size", lambda: 900)
    layer, x, cotangent = ops.Linear(8, 24, bias=biased), _random(3, 17, 8, scale=8), _random(3, 17, 24, seed=1)

    def function(x: mx.array, *parameters: mx.array) -> mx.array:
        layer.update(dict(zip(("weight", "bias"), parameters, strict=False)))
        return ops.backend().activated(name, layer, x)

    inputs = [x, layer.weight, layer.bias] if biased else [x, layer.weight]
    expected, slopes = mx.vjp(function, inputs, [cotangent])
    mx.eval(expected, slopes)
    with stages(filled=True) as collected:
        found, gradients = mx.vjp(function, inputs, [cotangent])
    assert (name in numpy_layers.SLOPES) == any(callable(stage) for stage in collected)
    _computed(collected)
    assert _far(found[0], expected[0]) < 5e-6
    for one, other in zip(gradients, slopes, strict=True):
        assert one.shape == other.shape and _far(one, other) < 3e-6 * float(mx.abs(other).max())


@together(("mask", "drops"), itertools.product(MASKS, [True, False]))
def test_attention_of_training_has_the_gradients_of_the_graph(
    mask: str, drops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy_attention, "block_size", lambda: 2000)
    inputs = [_random(3, 4, 80, 16, seed=seed) for seed in (1, 2, 3)]
    bias, cotangent = _random(1, 4, 80, 80, seed=4), _random(3, 4, 80, 16, seed=5)
    kept = (_random(3, 4, 80, 80, seed=6) > -1, 1.2) if drops else None

    def vjp(weigh: Any) -> Any:
        def function(q: mx.array, k: mx.array, v: mx.array, bias: mx.array) -> mx.array:
            return mlx_kernels.attention(q, k, v, 0.3, MASKS[mask], bias, kept, weigh)

        return mx.vjp(function, [*inputs, bias], [cotangent])

    expected, slopes = vjp(None)
    with stages(filled=True) as collected:
        found, gradients = vjp(numpy_attention.weigh)
    _computed(collected)
    assert _far(found[0], expected[0]) < 2e-6
    assert all(_far(one, other) < 5e-6 for one, other in zip(gradients, slopes, strict=True))


def test_what_is_evaluated_before_it_is_filled_is_not_a_number() -> None:
    layer, x = ops.Linear(64, 2048), _random(64, 64)
    with stages(filled=True) as collected:
        y = ops.backend().activated("gelu", layer, x)
    assert mx.isnan(y).all()
    _computed(collected)
    assert _far(y, ops.backend().activated("gelu", layer, x)) < 5e-6
    with stages() as collected:
        assert _far(ops.backend().activated("gelu", layer, x), y) < 5e-6
    assert [stage.shape for stage in collected if isinstance(stage, mx.array)] == [(64, 2048)]
    with stages(filled=True) as collected, unstaged():
        assert _far(ops.backend().activated("gelu", layer, x), y) < 5e-6
    assert not collected


def test_layers_without_gradients_are_not_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_layers, "_MIN_SIZE", 1)
    network = random_network(tiny_config())
    network.eval()

    def collected() -> Stages:
        with stages(filled=True) as found:
            network.encoder(mx.ones((2, 5), mx.int32))
        return found

    every = collected()
    functions = sum(not isinstance(stage, mx.array) for stage in every)
    network.encoder.frozen = 1
    some = collected()
    layers = network.encoder.config.num_stored_layers
    assert sum(not isinstance(stage, mx.array) for stage in some) == functions * (layers - 1) / layers > 0
    assert sum(isinstance(stage, mx.array) for stage in some) >= len(every) - functions
    network.encoder.frozen = layers
    assert all(isinstance(stage, mx.array) for stage in collected())


POSITIONS: list[Positions] = [Absolute(128), Rotary(128, (Rotation(1e4), Rotation(1e4, window=5)))]


@together(("positions", "rows"), itertools.product(POSITIONS, [1, 5]))
def test_a_pass_of_inference_is_that_of_the_graph(
    rows: int, positions: Positions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numpy_layers, "_MIN_SIZE", 0)
    monkeypatch.setattr(numpy_attention, "_ROTATED_SIZE", 200)  # several parts of a text
    network = random_network(tiny_config(positions=positions))
    network.eval()
    ids = mx.random.randint(5, 12, (rows, 110), key=mx.random.key(1))
    mask = mx.arange(110) < mx.array([110, 30, 70, 1, 90][:rows])[:, None]
    options: dict[str, Any] = {"output_hidden_states": True, "output_attentions": True}
    graph = network.encoder(ids, mask, **options)
    with inference():
        found = network.encoder(ids, mask, **options)
        again = network.encoder(ids, mask, **options)
    assert mx.array_equal(found.last_hidden_state, again.last_hidden_state)
    for name, bound in (("pooler_output", 2e-6), ("hidden_states", 5e-6), ("attentions", 2e-6)):
        pairs = zip(*(getattr(output, name) for output in (found, graph)), strict=True)
        assert max(_far(one, other) for one, other in pairs) < bound


def test_vectors_are_rotated_and_put_beside_their_neighbours_as_by_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    x = _random(2, 70, 3, 8, seed=1).transpose(0, 2, 1, 3)
    cosines, sines = _random(70, 4, seed=2), _random(70, 4, seed=3)
    graph = ops.backend().rotate(x, cosines, sines), cast(Any, ops.backend()).with_neighbours(x, 32, 26)
    monkeypatch.setattr(numpy_layers, "_MIN_SIZE", 0)
    with inference():
        found = ops.backend().rotate(x, cosines, sines), cast(Any, ops.backend()).with_neighbours(x, 32, 26)
    assert _far(found[0], graph[0]) < 1e-6
    assert mx.array_equal(found[1], graph[1])
    with warnings.catch_warnings(action="error"):  # numbers that are not finite are rotated in silence
        numpy_attention.rotated(mx.full((1, 1, 4, 8), math.inf), mx.zeros((4, 4)), mx.ones((4, 4)))
