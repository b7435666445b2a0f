"""Encoders: what holds for each, experts, fresh weights; what training needs of a network; gradient checkpointing."""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlxbert.config import Absolute, Disentangled, Dropout, EncoderConfig, PreNorm, RelativeBias, Rotary, Rotation
from mlxbert.errors import ArgumentError, ConfigError, InputError
from mlxbert.machine import device
from mlxbert.machine.device import BLAS, mx, nn
from mlxbert.nn import dropout, ops
from mlxbert.nn.encoder import Batch, Encoder, KnownIds
from mlxbert.nn.heads import Network
from mlxbert.nn.heads.initialize import initialize
from mlxbert.nn.ops import inference
from tests.helpers.cases import together
from tests.helpers.tiny import random_network, tiny_config

IDS = mx.array([[2, 9, 8, 7, 3], [2, 6, 5, 3, 0], [2, 11, 12, 13, 3], [2, 9, 3, 0, 0]])
MASK = IDS != 0


def _far(one: mx.array, other: mx.array) -> float:
    return float(np.abs(np.array(one) - np.array(other)).max())


def test_attentions_are_distributions_over_real_tokens_and_do_not_change_the_output() -> None:
    network = random_network(tiny_config())
    output = network.encoder(IDS, MASK, output_attentions=True)
    assert output.attentions is not None and len(output.attentions) == 2
    for weights in output.attentions:
        assert weights.shape == (4, 3, 5, 5)
        assert _far(weights.sum(axis=-1), mx.ones((4, 3, 5))) < 1e-5
        assert _far(weights * (MASK == 0)[:, None, None], mx.zeros_like(weights)) == 0
    assert _far(output.last_hidden_state, network.encoder(IDS, MASK).last_hidden_state) == 0


def test_too_long_an_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"33 tokens.*32"):
        random_network(tiny_config()).encoder(mx.zeros((1, 33), dtype=mx.int32))


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'mish', expected one of gelu, "):
        Encoder(tiny_config(hidden_act="mish"))


def test_dropout_acts_in_training_alone() -> None:
    plain, network = random_network(tiny_config()), random_network(tiny_config(dropout=Dropout(attention_output=0.5)))
    network.update(plain.parameters())
    assert _far(network(IDS).last_hidden_state, plain(IDS).last_hidden_state) == 0
    network.train()
    assert _far(network(IDS).last_hidden_state, network(IDS).last_hidden_state) > 1e-2


@pytest.mark.usefixtures("all_cores")
def test_a_batch_split_over_cores_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(tiny_config())
    options: dict[str, Any] = {"output_hidden_states": True, "output_attentions": True}
    split = network.encoder(IDS, MASK, **options)
    monkeypatch.setattr("mlxbert.cpu.cores.cpu_streams", lambda batch: [])
    whole = network.encoder(IDS, MASK, **options)
    for name in ("last_hidden_state", "pooler_output", "hidden_states", "attentions"):
        one, other = (getattr(output, name) for output in (split, whole))
        pairs = [(one, other)] if isinstance(one, mx.array) else [*zip(one, other, strict=True)]
        assert all(_far(*pair) < 1e-6 for pair in pairs)


@pytest.mark.parametrize("used", [1, 2, 5])
@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_each_token_adds_up_the_experts_that_it_uses(tokens: int, used: int) -> None:
    rng = np.random.default_rng(tokens)
    x, up, down = (rng.standard_normal(shape, np.float32) for shape in ((tokens, 12), (5, 17, 12), (5, 17, 12)))
    chosen = np.argsort(rng.random((tokens, 5)), axis=1)[:, :used]
    weights = rng.random((tokens, used), np.float32)
    wanted = [
        sum(weight * (np.maximum(up[expert] @ row, 0) @ down[expert]) for weight, expert in zip(*one, strict=True))
        for row, *one in zip(x, weights, chosen, strict=True)
    ]
    rows, first, second, numbers, shares = map(mx.array, (x, up, down, chosen.astype(np.uint32), weights))
    for way in (contextlib.nullcontext, inference):
        with way():
            assert (
                np.abs(np.array(ops.backend().mixture(rows, first, second, numbers, shares, "relu")) - wanted).max()
                < 1e-5
            )


WEIGHT, OTHER = "encoder.layers.0.attention.query.weight", "encoder.layers.1.attention.query.weight"


def drawn(seed: int, names: Iterable[str]) -> dict[str, mx.array]:
    """The parameters of a network of which these are drawn anew."""
    network = random_network(tiny_config())
    initialize(network, network.encoder.config, names, seed)
    return dict(nn.utils.tree_flatten(network.parameters()))


def test_a_weight_depends_on_the_seed_and_its_name_alone() -> None:
    alone, everything = drawn(1, [WEIGHT]), drawn(1, drawn(1, []))
    assert mx.array_equal(alone[WEIGHT], everything[WEIGHT]).item()
    assert not mx.array_equal(everything[WEIGHT], everything[OTHER]).item()
    assert not mx.array_equal(alone[WEIGHT], drawn(2, [WEIGHT])[WEIGHT]).item()
    mx.random.seed(7)
    assert mx.array_equal(alone[WEIGHT], drawn(1, [WEIGHT])[WEIGHT]).item()
    assert mx.array_equal(alone[OTHER], drawn(2, [WEIGHT])[OTHER]).item()  # what is not named stays


@pytest.mark.usefixtures("all_cores")
@pytest.mark.skipif(sys.platform != "linux" or device.on_gpu(), reason="streams per core are for CPUs under Linux")
@pytest.mark.skipif(BLAS.name != "openblas", reason="OpenBLAS says how many threads it has")
def test_training_gives_blas_its_threads_back() -> None:
    get_threads = ctypes.CDLL(BLAS.path).openblas_get_num_threads
    cores = len(os.sched_getaffinity(0))  # type: ignore[attr-defined, unused-ignore]
    if cores < 2:
        pytest.skip("one core: nothing to share")
    network = random_network(tiny_config())
    mx.eval(network(IDS, MASK).last_hidden_state)
    assert get_threads() == 1
    network.train()
    mx.eval(network(IDS, MASK).last_hidden_state)
    assert get_threads() == min(cores, 16)


@pytest.mark.slow  # calls a C++ compiler
@pytest.mark.parametrize("training", [False, True])
def test_a_compiled_network_gives_the_same(training: bool) -> None:
    network = random_network(tiny_config())
    network.train(training)
    plain = network(IDS, MASK).last_hidden_state
    compiled = mx.compile(lambda ids, mask: network(ids, mask).last_hidden_state)
    assert np.abs(np.array(compiled(IDS, MASK)) - np.array(plain)).max() < 1e-5


@together(
    ("batch", "said"),
    [
        (Batch(mx.array([[2, 10_000, 3]])), "input_ids.*10000"),
        (Batch(mx.array([[2, -1, 3]])), "input_ids.*-1"),
        (Batch(mx.array([[2.0, 9.0]])), "input_ids"),
        (Batch(mx.array([2, 9, 3])), "input_ids"),
        (Batch(mx.array([[]], dtype=mx.int32)), "input_ids"),
        (Batch([[2, 9, 3]]), "input_ids"),  # type: ignore[arg-type]
        (Batch(mx.array([[2, 9, 3]]), token_type_ids=mx.array([[0, 70_000, 0]])), "token_type_ids"),
        (Batch(mx.array([[2, 9, 3]]), attention_mask=mx.array([[True]])), "attention_mask"),
    ],
)
def test_batches_from_outside_are_checked(batch: Batch, said: str) -> None:
    network = random_network(tiny_config())
    with pytest.raises(InputError, match=said):
        network.logits("next_sentence", batch)
    with pytest.raises(InputError, match=said):
        network(batch.input_ids, batch.attention_mask, batch.token_type_ids)


def test_logits_are_those_of_a_batch_or_an_output() -> None:
    network = random_network(tiny_config())
    for head in network.heads:
        assert mx.array_equal(network.logits(head, Batch(IDS, MASK)), network.logits(head, network(IDS, MASK)))
    with pytest.raises(ArgumentError, match="Batch"):
        network.logits("next_sentence", IDS)  # type: ignore[arg-type]


def test_a_batch_that_knows_its_ids_fits_each_network_or_is_refused() -> None:
    small, large = tiny_config(), tiny_config(vocab_size=500)
    batch = Batch(mx.array([[2, 400, 3]]), ids=KnownIds(frozenset({2, 3, 400})))
    assert random_network(large).logits("next_sentence", batch).shape == (1, 2)
    with pytest.raises(InputError, match="400"):
        random_network(small).logits("next_sentence", batch)
    with pytest.raises(InputError, match="token_type_ids"):
        random_network(large).logits("next_sentence", replace(batch, ids=KnownIds(frozenset({2}), last_segment=2)))


LONG = mx.array([[2, 9, 8, 7, 3, 5, 4, 11], [2, 6, 5, 3, 0, 0, 0, 0]])
DROPOUT = Dropout(embeddings=0.1, attention=0.2, attention_output=0.2, activation=0.2, feed_forward=0.2, distances=0.2)
TWO = (Rotation(10.0), Rotation(30.0, window=2))
KINDS: dict[str, EncoderConfig] = {
    "absolute": tiny_config(),
    "shared layers": tiny_config(layer_schedule=(0, 0, 0)),
    "relative bias": tiny_config(positions=RelativeBias(Absolute(32))),
    "rotary": replace(tiny_config(positions=Rotary(32, TWO), type_vocab_size=0), block=PreNorm(), gated=True),
    "disentangled": tiny_config(positions=Disentangled(32, Absolute(32), 16, 4, True, True, True, True)),
    "disentangled, own projections": tiny_config(positions=Disentangled(32, None, 16, 4, True, True, False, False)),
}
Tree = dict[str, Any]


def _step(network: Network, checkpointing: bool, key: int | None) -> tuple[float, Tree]:
    network.encoder.checkpointing = checkpointing

    def loss(network: Network) -> mx.array:
        logits = network.logits("next_sentence", Batch(LONG, LONG != 0))
        return nn.losses.cross_entropy(logits, mx.array([0, 1]), reduction="sum")

    with dropout.seeded(None if key is None else mx.random.key(key)):
        value, gradients = nn.value_and_grad(network, loss)(network)
    return float(value), dict(nn.utils.tree_flatten(gradients))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rates", [Dropout(), DROPOUT], ids=["without dropout", "with dropout"])
def test_the_same_gradients_to_the_last_bit(kind: str, rates: Dropout) -> None:
    network = random_network(replace(KINDS[kind], dropout=rates))
    network.train()
    before: Tree = dict(nn.utils.tree_flatten(network.parameters()))
    (value, gradients), (found_value, found) = (_step(network, checkpointing, 7) for checkpointing in (False, True))
    assert value == found_value and gradients.keys() == found.keys()
    for name, array in gradients.items():
        # The terms of several layers in another order; on a GPU sums whose order is not fixed.
        share = 1e-6 if name.startswith("encoder.positions.") else 1e-5 if device.on_gpu() else 0
        assert np.abs(np.array(array - found[name])).max() <= share * np.abs(np.array(array)).max(), name
    for name in ("encoder.positions.weight", "encoder.embeddings.word.weight"):
        assert name not in found or mx.any(found[name]).item()
    after: Tree = dict(nn.utils.tree_flatten(network.parameters()))
    assert all(mx.array_equal(after[name], array) for name, array in before.items())


def test_masks_without_a_given_key_are_the_same_when_recomputed() -> None:
    network = random_network(tiny_config(dropout=DROPOUT))
    network.train()
    found = []
    for checkpointing in (False, True):
        mx.random.seed(4)
        found.append(_step(network, checkpointing, None))
    (value, gradients), (again, others) = found
    assert value == again
    assert all(np.array_equal(np.array(array), np.array(others[name])) for name, array in gradients.items())


def test_frozen_parameters_stay_frozen() -> None:
    network = random_network(tiny_config())
    network.train()
    network.encoder.layers[0].freeze()
    _, found = _step(network, True, 1)
    assert not any(name.startswith("encoder.layers.0.") for name in found)
    expected = _step(network, False, 1)[1]
    assert all(np.array_equal(np.array(array), np.array(expected[name])) for name, array in found.items())


def test_attention_weights_are_given_in_training_too() -> None:
    network = random_network(tiny_config())
    network.train()
    network.encoder.checkpointing = True
    found = network(LONG, output_attentions=True).attentions
    assert found is not None and len(found) == 2 and found[0].shape == (2, 3, 8, 8)


def test_it_keeps_less_memory() -> None:
    network = random_network(tiny_config(layer_schedule=tuple(range(6))))
    network.train()
    ids = mx.tile(LONG, (24, 2))
    peaks = []
    for network.encoder.checkpointing in (False, True):
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(nn.value_and_grad(network, lambda network: network(ids).last_hidden_state.sum())(network))
        peaks.append(mx.get_peak_memory() - before)
    assert peaks[1] < 0.6 * peaks[0]
