"""What the fields of the configuration do, and what holds for every encoder."""

import math
import threading
from typing import Any

import numpy as np
import pytest

from mlxbert.config import Absolute, Dropout, EncoderConfig, Projection
from mlxbert.errors import ConfigError, InputError
from mlxbert.machine import cores
from mlxbert.machine.device import mx, nn
from mlxbert.nn import dropout
from mlxbert.nn.encoder import Encoder
from mlxbert.nn.heads import Network
from tests.helpers.tiny import random_network, tiny_config

IDS = mx.array([[2, 7, 11, 9, 3], [2, 8, 12, 10, 3], [2, 5, 6, 7, 3]])
MASK = mx.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0]])


def _hidden(network: Network, **options: Any) -> mx.array:
    return network.encoder(IDS, **options).last_hidden_state


def _far(one: mx.array, other: mx.array) -> float:
    return float(np.abs(np.array(one) - np.array(other)).max())


def test_first_position_shifts_the_position_table() -> None:
    plain = random_network(tiny_config(positions=Absolute(30)))
    shifted = random_network(tiny_config(positions=Absolute(32, first_position=2)))
    table = shifted.encoder.embeddings.position.weight
    shifted.update(plain.parameters())
    shifted.encoder.embeddings.position.weight = mx.concatenate([table[:2], plain.encoder.embeddings.position.weight])
    assert _far(_hidden(plain), _hidden(shifted)) == 0
    assert shifted.encoder.config.max_length == 30


def test_shared_layers_run_as_often_as_the_schedule_says() -> None:
    shared = random_network(tiny_config(layer_schedule=(0, 0, 0)))
    apart = random_network(tiny_config(layer_schedule=(0, 1, 2)))
    assert len(shared.encoder.layers) == 1
    weights = shared.encoder.layers[0].parameters()
    apart.update({"encoder": shared.encoder.parameters() | {"layers": [weights] * 3}})
    assert _far(_hidden(shared), _hidden(apart)) < 1e-6
    assert _far(_hidden(shared), _hidden(random_network(tiny_config(layer_schedule=(0,))))) > 1e-2


def test_segment_zero_is_added_without_segment_ids_and_absent_without_segment_types() -> None:
    network = random_network(tiny_config())
    assert _far(_hidden(network), _hidden(network, token_type_ids=mx.zeros_like(IDS))) == 0
    assert _far(_hidden(network), _hidden(network, token_type_ids=mx.ones_like(IDS))) > 1e-3
    without = random_network(tiny_config(type_vocab_size=0))
    assert "token_type" not in without.encoder.embeddings
    network.encoder.embeddings.token_type.weight = mx.zeros((2, 24))
    without.update({"encoder": {k: v for k, v in network.encoder.parameters().items() if k != "embeddings"}})
    embeddings = dict(network.encoder.embeddings.parameters())
    del embeddings["token_type"]
    without.encoder.embeddings.update(embeddings)
    assert _far(_hidden(network), _hidden(without)) < 1e-6


def test_narrow_embeddings_are_projected() -> None:
    network = random_network(tiny_config(embedding_size=10, projection=Projection()))
    embeddings = network.encoder.embeddings
    assert embeddings.word.weight.shape[1] == 10
    hidden = network.encoder(IDS, output_hidden_states=True).hidden_states
    assert hidden is not None
    summed = embeddings.word(IDS) + embeddings.position.weight[:5] + embeddings.token_type.weight[0]
    expected = embeddings.norm(summed) @ embeddings.projection.weight.T + embeddings.projection.bias
    assert _far(hidden[0], expected) < 1e-5
    output = network.encoder(IDS)
    assert network.logits("masked_lm", output).shape == (3, 5, network.encoder.config.vocab_size)


def test_a_mask_of_ones_changes_nothing() -> None:
    network = random_network(tiny_config())
    assert _far(_hidden(network), _hidden(network, attention_mask=mx.ones_like(IDS))) < 1e-6


def test_masked_tokens_do_not_reach_the_others() -> None:
    network = random_network(tiny_config())
    other = mx.where(MASK == 1, IDS, 9)
    one, two = (network.encoder(ids, MASK).last_hidden_state for ids in (IDS, other))
    real = (MASK == 1)[:, :, None]
    assert _far(mx.where(real, one, 0), mx.where(real, two, 0)) == 0


def test_attentions_are_distributions_over_real_tokens_and_do_not_change_the_output() -> None:
    network = random_network(tiny_config())
    output = network.encoder(IDS, MASK, output_attentions=True)
    assert output.attentions is not None and len(output.attentions) == 2
    for weights in output.attentions:
        assert weights.shape == (3, 3, 5, 5)
        assert _far(weights.sum(axis=-1), mx.ones((3, 3, 5))) < 1e-5
        assert _far(weights * (MASK == 0)[:, None, None], mx.zeros_like(weights)) == 0
    assert _far(output.last_hidden_state, network.encoder(IDS, MASK).last_hidden_state) == 0


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_a_half_precision_model_stays_in_its_dtype(dtype: mx.Dtype) -> None:
    network = random_network(tiny_config())
    network.update(nn.utils.tree_map(lambda array: array.astype(dtype), network.parameters()))
    output = network.encoder(IDS, MASK)
    assert output.last_hidden_state.dtype == dtype and output.pooler_output is not None
    assert network.logits("masked_lm", output).dtype == dtype
    assert network.logits("next_sentence", output).dtype == dtype
    assert np.isfinite(np.array(output.last_hidden_state.astype(mx.float32))).all()


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


def test_attention_dropout_acts_in_training_alone() -> None:
    network = random_network(tiny_config(dropout=Dropout(attention=0.5)))
    still = _hidden(network)
    assert _far(still, _hidden(network)) == 0
    network.train()
    assert _far(still, _hidden(network)) > 1e-3
    dropout.set_rate(network, 0)
    assert _far(still, _hidden(network)) < 1e-6


def _loss(network: Network) -> mx.array:
    output = network.encoder(IDS, MASK)
    first = output.select(mx.arange(3), mx.zeros(3, dtype=mx.int32))
    return nn.losses.cross_entropy(network.logits("masked_lm", first), mx.array([4, 5, 6]), reduction="mean")


@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_those_of_finite_differences(training: bool) -> None:
    network = random_network(tiny_config())
    network.train(training)
    _, gradients = nn.value_and_grad(network, _loss)(network)
    weight = network.encoder.layers[0].attention.query.weight
    gradient = np.array(gradients["encoder"]["layers"][0]["attention"]["query"]["weight"])
    direction = mx.array(gradient / np.linalg.norm(gradient))
    step = 1e-2
    values = []
    for sign in (1, -1):
        network.encoder.layers[0].attention.query.weight = weight + sign * step * direction
        values.append(float(np.array(_loss(network))))
    slope = (values[0] - values[1]) / (2 * step)
    assert np.linalg.norm(gradient) > 1e-3
    assert math.isclose(slope, float(np.linalg.norm(gradient)), rel_tol=0.05)


def test_every_parameter_gets_a_gradient() -> None:
    network = random_network(tiny_config())

    def loss(network: Network) -> mx.array:
        output = network.encoder(IDS, MASK, mx.zeros_like(IDS))
        return _loss(network) + network.logits("next_sentence", output)[:, 0].sum()

    _, gradients = nn.value_and_grad(network, loss)(network)
    # Adding one number to all scores of a softmax row changes nothing: the bias of the keys has no gradient.
    found: dict[str, mx.array] = dict(nn.utils.tree_flatten(gradients))
    assert len(found) > 40
    still = [name for name, array in found.items() if not np.array(array).any() and not name.endswith("key.bias")]
    assert still == []


def test_a_batch_split_over_cores_equals_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_network(tiny_config())
    options: dict[str, Any] = {"output_hidden_states": True, "output_attentions": True}
    split = network.encoder(IDS, MASK, **options)
    monkeypatch.setattr("mlxbert.nn.ops.cpu_streams", lambda batch: [])
    whole = network.encoder(IDS, MASK, **options)
    assert _far(split.last_hidden_state, whole.last_hidden_state) < 1e-6
    assert split.pooler_output is not None and whole.pooler_output is not None
    assert _far(split.pooler_output, whole.pooler_output) < 1e-6
    for name in ("hidden_states", "attentions"):
        for one, other in zip(getattr(split, name), getattr(whole, name), strict=True):
            assert _far(one, other) < 1e-6


def test_lanes_never_outnumber_the_batch_and_each_thread_has_its_own() -> None:
    assert len(cores.cpu_streams(1)) <= 1
    found: list[list[Any]] = []
    thread = threading.Thread(target=lambda: found.append(cores.cpu_streams(8)))
    thread.start()
    thread.join()
    assert not {str(lane) for lane in found[0]} & {str(lane) for lane in cores.cpu_streams(8)}


def test_an_encoder_with_fresh_weights_runs() -> None:
    config: EncoderConfig = tiny_config(pooler=False)
    output = Encoder(config)(IDS)
    assert output.pooler_output is None and np.isfinite(np.array(output.last_hidden_state)).all()


@pytest.mark.parametrize("ids", [[[2, 52]], [[2, 10**6]], [[-1, 2]], [[]], [2, 3]])
def test_ids_that_are_no_rows_of_the_vocabulary_are_refused(ids: Any) -> None:
    with pytest.raises(InputError, match="input_ids"):
        random_network(tiny_config())(mx.array(ids, dtype=mx.int32))
    with pytest.raises(InputError, match="array of integers"):
        random_network(tiny_config())([[2, 3]])  # type: ignore[arg-type]
