"""What the fields of the configuration do, and what holds for every encoder."""

from typing import Any

import numpy as np
import pytest

from mlxbert.config import Dropout
from mlxbert.errors import ConfigError, InputError
from mlxbert.machine.device import mx
from mlxbert.nn.encoder import Encoder
from mlxbert.nn.heads import Network
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
