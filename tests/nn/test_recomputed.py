"""Gradient checkpointing gives the same loss and the same gradients, with dropout, for every kind of positions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mlxbert.config import Absolute, Disentangled, Dropout, EncoderConfig, PreNorm, RelativeBias, Rotary, Rotation
from mlxbert.machine import device
from mlxbert.machine.device import mx, nn
from mlxbert.nn import dropout
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network
from tests.helpers.tiny import random_network, tiny_config

IDS = mx.array([[2, 9, 8, 7, 3, 5, 4, 11], [2, 6, 5, 3, 0, 0, 0, 0]])
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
        logits = network.logits("next_sentence", Batch(IDS, IDS != 0))
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
    value, gradients = _step(network, False, 7)
    found_value, found = _step(network, True, 7)
    assert value == found_value and gradients.keys() == found.keys()
    for name, array in gradients.items():
        if name.startswith("encoder.positions."):  # the terms of several layers, in another order
            assert np.abs(np.array(array - found[name])).max() <= 1e-6 * np.abs(np.array(array)).max(), name
        elif device.on_gpu():  # sums whose order is not fixed
            assert np.abs(np.array(array - found[name])).max() <= 1e-5 * np.abs(np.array(array)).max(), name
        else:
            assert np.array_equal(np.array(array), np.array(found[name])), name
    for name in ("encoder.positions.weight", "encoder.embeddings.word.weight"):
        assert name not in found or mx.any(found[name]).item()
    after: Tree = dict(nn.utils.tree_flatten(network.parameters()))
    assert all(mx.array_equal(after[name], array) for name, array in before.items())


def test_masks_without_a_given_key_are_the_same_when_recomputed() -> None:
    network = random_network(tiny_config(dropout=DROPOUT))
    network.train()
    mx.random.seed(4)
    value, gradients = _step(network, False, None)
    mx.random.seed(4)
    found_value, found = _step(network, True, None)
    assert value == found_value
    assert all(np.array_equal(np.array(array), np.array(found[name])) for name, array in gradients.items())


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
    found = network(IDS, output_attentions=True).attentions
    assert found is not None and len(found) == 2 and found[0].shape == (2, 3, 8, 8)


def test_it_keeps_less_memory() -> None:
    network = random_network(tiny_config(layer_schedule=tuple(range(6))))
    network.train()
    ids = mx.tile(IDS, (24, 2))
    peaks = []
    for network.encoder.checkpointing in (False, True):
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(nn.value_and_grad(network, lambda network: network(ids).last_hidden_state.sum())(network))
        peaks.append(mx.get_peak_memory() - before)
    assert peaks[1] < 0.6 * peaks[0]
