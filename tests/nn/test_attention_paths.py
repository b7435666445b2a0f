"""The ways to compute attention agree: the fused kernel of GPUs, plain arithmetic, near tokens only; and gradients."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mlxbert.config import Biases, PreNorm, Rotary, Rotation
from mlxbert.goldens.golden_outputs import load_network, outputs
from mlxbert.machine.device import mx, nn
from mlxbert.nn import dropout, gpu_attention, ops, positions
from mlxbert.nn.attention import SelfAttention
from mlxbert.nn.backend import Backend, PositionedQK
from mlxbert.nn.encoder import Encoder
from tests.helpers.cases import fast
from tests.helpers.families import FROZEN, walked
from tests.helpers.frozen import frozen_outputs, write_model
from tests.helpers.parity import assert_equal
from tests.helpers.tiny import random_network, tiny_config

NEAR = tuple(Rotation(30.0, window) for window in (None, 3, 5))


def compute_as(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computes as a GPU does, as a Mac's CPU does, or as the CPU of this machine does."""
    monkeypatch.setattr(ops, "on_gpu", lambda: way == "gpu")
    if way == "mac":
        monkeypatch.setattr(ops, "_of_cpu", lambda: (Backend(), Backend()))


@pytest.mark.sampled
@pytest.mark.parametrize("way", ["gpu", "mac"])
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        pytest.param(family, dtype, marks=() if dtype == "float32" or family == "bert" else pytest.mark.slow)
        for family in FROZEN
        for dtype in ("float32", "float16", "bfloat16")
    ],
)
def test_other_backends_give_the_same(
    family: str, dtype: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_as(way, monkeypatch)
    network = load_network(write_model(family, "Model", tmp_path), dtype)
    for name, case in FROZEN[family].cases.items():
        assert_equal(outputs(network, case), frozen_outputs(family, "Model", name), dtype)


@pytest.mark.parametrize(("family", "dtype"), [
    *((family, "float16") for family in ("bert", "mpnet", "modernbert", "deberta-v2")),
    ("bert", "float32"), ("bert", "bfloat16"),
])  # fmt: skip
def test_a_row_of_padding_alone_gives_numbers_on_gpus_too(
    family: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "on_gpu", lambda: True)
    network = load_network(write_model(family, "Model", tmp_path), dtype)
    mask = mx.array([[1, 1, 1, 0], [0, 0, 0, 0]])
    assert mx.isfinite(network(mx.full((2, 4), 5), mask).last_hidden_state).all().item()


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert", "deberta-v2"])
def test_training_with_dropout_is_the_same_on_other_backends(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same masks; the lengths are too short for blocks, whose masks have another shape."""
    network = load_network(write_model(family, "Model", tmp_path))
    network.train()
    for module in network.modules():
        if isinstance(module, SelfAttention):
            module.dropout.rate = 0.3
    case = FROZEN[family].cases["padding"]
    assert case.mask is not None
    ids, mask = mx.array(case.input_ids), mx.array(case.mask)

    def loss(encoder: Encoder) -> mx.array:
        with dropout.seeded(mx.random.key(8)):
            return (encoder(ids, mask).last_hidden_state * mask[:, :, None]).square().sum()

    found = []
    for way in ("cpu", "gpu", "mac"):
        with monkeypatch.context() as patch:
            compute_as(way, patch)
            value, gradients = nn.value_and_grad(network.encoder, loss)(network.encoder)
            arrays: dict[str, mx.array] = dict(nn.utils.tree_flatten(gradients))
            found.append((float(value), {name: np.array(array) for name, array in arrays.items()}))
    (value, ours), *others = found
    largest = max(np.abs(array).max() for array in ours.values())
    for other_value, theirs in others:
        assert value == pytest.approx(other_value, rel=1e-5)
        assert all(np.abs(ours[name] - theirs[name]).max() < 2e-5 * largest for name in ours)


@pytest.fixture(params=["cpu", "gpu"])
def near(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Encoder:
    """An encoder with layers that see all, three and five tokens on each side.

    It computes in the ways of CPUs and of GPUs, each in blocks where there is more than one of 4 tokens.
    """
    monkeypatch.setattr(gpu_attention, "_SMALLEST_BLOCK", 4)
    monkeypatch.setattr(gpu_attention, "BLOCKS_FROM", 1)
    monkeypatch.setattr(ops, "on_gpu", lambda: request.param == "gpu")
    facts = tiny_config(layer_schedule=(0, 1, 2), type_vocab_size=0)
    config = replace(facts, positions=Rotary(70, NEAR), block=PreNorm(), gated=True, biases=Biases(norm=False))
    return random_network(config, heads=()).encoder


@pytest.mark.parametrize("length", fast([13, 16, 17, 40, 61], 13, 40))
def test_blocks_of_near_tokens_give_what_all_tokens_under_a_mask_give(
    length: int, near: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    mx.random.seed(length)
    ids = mx.random.randint(0, 40, (4, length))
    mask = mx.arange(length) < mx.array([[length], [length - 6], [1], [length // 2]])
    up = mx.random.normal((4, length, 24))
    used = [gpu_attention.blocks(length, rotation.window, None) for rotation in NEAR if rotation.window]
    assert any(blocks is not None for blocks in used) and (length > 15 or used[1] is None)

    def found(given: mx.array | None, weight: mx.array) -> list[mx.array]:
        """The hidden states, and the gradient of each parameter."""

        def loss(encoder: Encoder) -> mx.array:
            return (encoder(ids, given).last_hidden_state * weight).sum()

        gradients = nn.value_and_grad(near, loss)(near)[1]
        arrays: dict[str, mx.array] = dict(nn.utils.tree_flatten(gradients))
        return [near(ids, given).last_hidden_state, *arrays.values()]

    for given in (None, mask):
        real = (mx.ones_like(mask) if given is None else given)[:, :, None]
        states, *slopes = found(given, real * up)
        with monkeypatch.context() as patch:
            patch.setattr(gpu_attention, "blocks", lambda *facts: None)
            whole, *expected = found(given, real * up)
        assert np.abs(np.array((states - whole) * real)).max() < 2e-5
        assert mx.isfinite(states).all().item()
        largest = max(np.abs(np.array(slope)).max() for slope in expected)
        for slope, other in zip(slopes, expected, strict=True):
            assert np.abs(np.array(slope - other)).max() < 2e-5 * largest


def test_blocks_of_near_tokens_drop_at_the_rate(near: Encoder) -> None:
    near.train()
    layer = near.layers[1].attention
    layer.dropout.rate = 0.25
    layer.value.weight, layer.output.weight = mx.eye(24) * 0, mx.eye(24)
    layer.value.bias = mx.ones(24)  # every value is 1: the output is the sum of the weights that are kept
    layer.output.bias = mx.zeros(24)
    context = near.positions(positions.Context(None), 40, mx.float32)
    assert context.rotated[layer.rotation].blocks is not None
    x = mx.random.normal((64, 40, 24), key=mx.random.key(1))
    with dropout.seeded(mx.random.key(2)):
        sums = np.array(layer(x, context)[0])
    assert abs(sums.mean() - 1) < 0.02 and 0.1 < sums.std() < 0.5


@pytest.mark.sampled
@pytest.mark.parametrize("family", walked(FROZEN))
def test_gradients_are_those_of_small_steps(family: str, tmp_path: Path) -> None:
    """Along a random direction through all parameters, near enough in single precision to find a wrong rule."""
    encoder = load_network(write_model(family, "Model", tmp_path)).encoder
    case = FROZEN[family].cases["padding"]
    assert case.mask is not None
    ids, mask = mx.array(case.input_ids), mx.array(case.mask)
    mx.random.seed(3)
    weight = mx.random.normal((*ids.shape, encoder.config.hidden_size)) * mask[:, :, None]

    def loss(encoder: Encoder) -> mx.array:
        return (encoder(ids, mask).last_hidden_state * weight).sum()

    flat: dict[str, mx.array] = dict(nn.utils.tree_flatten(nn.value_and_grad(encoder, loss)(encoder)[1]))
    unused = ("pooler.", "attention.key.bias")  # of no influence on the hidden states
    still = {name for name, array in flat.items() if not mx.any(array).item()}
    assert not {name for name in still if not any(part in name for part in unused)}
    start: dict[str, mx.array] = dict(nn.utils.tree_flatten(encoder.parameters()))
    direction = {name: mx.random.normal(array.shape) for name, array in start.items()}
    slope = sum(float((flat[name] * direction[name]).sum()) for name in flat)
    step, values = 2e-4, []
    for sign in (1, -1):
        moved = [(name, array + sign * step * direction[name]) for name, array in start.items()]
        encoder.update(nn.utils.tree_unflatten(moved))
        values.append(float(loss(encoder)))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(slope, rel=0.03, abs=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [False, True])
def test_far_tokens_keep_their_distances_in_bfloat16(weights: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first token, which attends to the last 64 alone."""
    length, near = 4096, 4096 - 64
    found = []
    for dtype in (mx.float32, mx.bfloat16):
        q, k, v = mx.zeros((1, 1, length, 64)), mx.zeros((1, 1, length, 64)), mx.zeros((1, 1, length, 64))
        q[..., 0], k[:, :, near:, 0], v[0, 0, near:] = 16.0, 32.0, mx.eye(64)
        given = PositionedQK(q.astype(dtype), k.astype(dtype), slopes=mx.array([2.0**-4]))
        monkeypatch.setattr(ops, "on_gpu", lambda: True)
        if weights:
            found.append(ops.backend().attention_weights(given, 1.0)[0, 0, 0, near:])
        else:
            found.append(ops.backend().attention(given, v.astype(dtype), 1.0, dropout.KeyedDropout(None))[0, 0, 0])
        assert found[-1].dtype == dtype
    exact, rounded = (np.array(array.astype(mx.float32)) for array in found)
    assert np.abs(exact[1:] / exact[:-1] - np.exp(-(2.0**-4))).max() < 1e-3
    assert np.abs(rounded / exact - 1).max() < 2.0**-7
