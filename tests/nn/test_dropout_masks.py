"""Masks of dropout: their rate, where their keys come from, and that nothing is drawn without need."""

import numpy as np
import pytest

from mlxbert.config import Dropout as Rates, HeadFacts
from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx, nn
from mlxbert.nn import dropout
from mlxbert.nn.dropout import KeyedDropout
from mlxbert.nn.encoder import Batch
from mlxbert.nn.heads import Network, masked_lm
from tests.helpers.tiny import random_network, tiny_config

IDS = mx.array([[2, 9, 8, 7, 3], [2, 6, 5, 3, 0]])
EVERYWHERE = Rates(embeddings=0.2, attention=0.3, attention_output=0.2, feed_forward=0.25)


def _dropping() -> Network:
    heads = {"masked_lm": masked_lm.MaskedLMFacts(), "next_sentence": HeadFacts(dropout=0.3)}
    network = random_network(tiny_config(dropout=EVERYWHERE, heads=heads))
    network.train()
    return network


def _logits(network: Network) -> mx.array:
    return network.logits("next_sentence", Batch(IDS, IDS != 0))


def _global_state() -> list[int]:
    state: list[mx.array] = mx.random.state  # type: ignore[assignment]
    return np.array(state[0]).tolist()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_the_rate_and_the_scale(rate: float, dtype: mx.Dtype) -> None:
    layer = KeyedDropout(rate)
    with dropout.seeded(mx.random.key(1)):
        found = layer(mx.ones((401, 503), dtype=dtype))
    assert found.dtype == dtype and found.shape == (401, 503)
    kept = np.array(found.astype(mx.float32))
    deviation = np.sqrt(rate * (1 - rate) / kept.size)
    assert abs((kept == 0).mean() - rate) < 5 * deviation + 1 / 65536
    assert np.allclose(kept[kept > 0], 1 / (1 - rate), rtol=1e-2 if dtype == mx.bfloat16 else 1e-3)
    for axis in (0, 1):  # no pattern along rows or columns
        shares = (kept == 0).mean(axis=axis)
        assert abs(shares.std() - np.sqrt(rate * (1 - rate) / kept.shape[axis])) < 0.15 * shares.std()


def test_neighbours_are_dropped_independently() -> None:
    with dropout.seeded(mx.random.key(2)):
        mask, factor = dropout.draw_mask((300_000,), 0.5)
    bits = np.array(mask) - 0.5
    assert factor == 2
    for distance in (1, 2, 3, 4, 8, 1024, 150_000):
        assert abs((bits[distance:] * bits[:-distance]).mean()) < 0.25 * 5 / np.sqrt(bits.size - distance)


def test_the_gradient_passes_where_values_do() -> None:
    layer, x = KeyedDropout(0.4), mx.random.normal((50, 7), key=mx.random.key(3))

    def loss(x: mx.array) -> mx.array:
        with dropout.seeded(mx.random.key(4)):
            return (layer(x) * 3).sum()

    with dropout.seeded(mx.random.key(4)):
        factor = layer(mx.ones_like(x))
    assert np.allclose(np.array(mx.grad(loss)(x)), 3 * np.array(factor))


def test_the_same_key_gives_the_same_step_and_another_key_another() -> None:
    network = _dropping()

    def outputs(seed: int) -> list[float]:
        with dropout.seeded(mx.random.key(seed)):
            found = [_logits(network), _logits(network)]
        return np.array(found).ravel().tolist()

    before = _global_state()
    first = outputs(1)
    assert first == outputs(1) and first != outputs(2)
    assert first[: len(first) // 2] != first[len(first) // 2 :]  # every forward pass has masks of its own
    assert _global_state() == before


def test_every_place_has_masks_of_its_own() -> None:
    drawn: list[list[bool]] = []
    with dropout.seeded(mx.random.key(1)):
        for _ in range(4):
            drawn.append(np.array(dropout.draw_mask((64,), 0.5)[0]).tolist())
    assert len({*map(tuple, drawn)}) == 4


def test_without_a_key_masks_come_from_the_global_random_state() -> None:
    network = _dropping()
    mx.random.seed(5)
    first, second = np.array(_logits(network)), np.array(_logits(network))
    assert not np.array_equal(first, second)
    mx.random.seed(5)
    assert np.array_equal(np.array(_logits(network)), first)


def test_an_error_inside_ends_the_keys() -> None:
    with pytest.raises(KeyError), dropout.seeded(mx.random.key(1)):
        raise KeyError
    before = _global_state()
    dropout.next_key()
    assert _global_state() != before


@pytest.mark.parametrize("training", [False, True])
def test_nothing_is_drawn_without_need(training: bool) -> None:
    network = _dropping()
    network.train(training)
    if training:
        dropout.set_rate(network, 0)
    before = _global_state()
    assert np.array_equal(np.array(_logits(network)), np.array(_logits(network)))
    assert _global_state() == before


def test_a_rate_is_set_where_the_family_has_dropout() -> None:
    network = _dropping()
    dropout.set_rate(network, 0.0)
    dropout.set_rate(network, 0.7)
    rates = {path: module.rate for path, module in network.named_modules() if isinstance(module, KeyedDropout)}
    assert rates["encoder.layers.0.attention.dropout"] == rates["heads.next_sentence.dropout"] == 0.7
    assert rates["encoder.layers.0.feed_forward.dropout"] is None
    assert {*rates.values()} == {0.7, None}


@pytest.mark.parametrize("rate", [1, -0.1, True, "0.1", float("nan")])
def test_a_wrong_rate_is_refused(rate: float) -> None:
    with pytest.raises(ArgumentError, match="`dropout` is"):
        dropout.set_rate(nn.Sequential(), rate)
