"""What holds for every encoder, for fresh weights, and for feed-forward networks of which each token uses a few."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from mlxbert.config import Dropout
from mlxbert.errors import ConfigError, InputError
from mlxbert.machine.device import mx, nn
from mlxbert.nn import ops
from mlxbert.nn.encoder import Encoder
from mlxbert.nn.heads import Network
from mlxbert.nn.heads.initialize import initialize
from mlxbert.nn.ops import inference
from tests.helpers.tiny import random_network, tiny_config

IDS = mx.array([[2, 7, 11, 9, 3], [2, 8, 12, 10, 3], [2, 5, 6, 7, 3]])
MASK = mx.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])


def _hidden(network: Network, **options: Any) -> mx.array:
    return network.encoder(IDS, **options).last_hidden_state


def _far(one: mx.array, other: mx.array) -> float:
    return float(np.abs(np.array(one) - np.array(other)).max())


def test_attentions_are_distributions_over_real_tokens_and_do_not_change_the_output() -> None:
    network = random_network(tiny_config())
    output = network.encoder(IDS, MASK, output_attentions=True)
    assert output.attentions is not None and len(output.attentions) == 2
    for weights in output.attentions:
        assert weights.shape == (3, 3, 5, 5)
        assert _far(weights.sum(axis=-1), mx.ones((3, 3, 5))) < 1e-5
        assert _far(weights * (MASK == 0)[:, None, None], mx.zeros_like(weights)) == 0
    assert _far(output.last_hidden_state, network.encoder(IDS, MASK).last_hidden_state) == 0


def test_too_long_an_input_is_refused() -> None:
    with pytest.raises(InputError, match=r"33 tokens.*32"):
        random_network(tiny_config()).encoder(mx.zeros((1, 33), dtype=mx.int32))


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'mish', expected one of gelu, "):
        Encoder(tiny_config(hidden_act="mish"))


def test_dropout_acts_in_training_alone() -> None:
    network = random_network(tiny_config(dropout=Dropout(attention_output=0.5)))
    network.update(random_network(tiny_config()).parameters())
    assert _far(_hidden(network), _hidden(random_network(tiny_config()))) == 0
    network.train()
    assert _far(_hidden(network), _hidden(network)) > 1e-2


@pytest.mark.usefixtures("all_cores")
def test_a_batch_split_over_cores_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(tiny_config())
    options: dict[str, Any] = {"output_hidden_states": True, "output_attentions": True}
    split = network.encoder(IDS, MASK, **options)
    monkeypatch.setattr("mlxbert.cpu.cores.cpu_streams", lambda batch: [])
    whole = network.encoder(IDS, MASK, **options)
    assert _far(split.last_hidden_state, whole.last_hidden_state) < 1e-6
    assert split.pooler_output is not None and whole.pooler_output is not None
    assert _far(split.pooler_output, whole.pooler_output) < 1e-6
    for name in ("hidden_states", "attentions"):
        for one, other in zip(getattr(split, name), getattr(whole, name), strict=True):
            assert _far(one, other) < 1e-6


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
    inputs = rows, first, second, numbers, shares, "relu"
    assert np.abs(np.array(ops.backend().mixture(*inputs)) - wanted).max() < 1e-5
    with inference():
        assert np.abs(np.array(ops.backend().mixture(*inputs)) - wanted).max() < 1e-5


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
