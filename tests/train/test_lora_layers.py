"""Adapted linear layers on their own."""

from typing import Any

import pytest

from mlxbert.machine.device import mx, nn
from mlxbert.nn.lora import merged
from mlxbert.train.nn.lora_layers import LoraSettings, adapt
from tests.helpers.tiny import random_network, tiny_config

PATHS = [("encoder.layers.0.attention.query",), ("encoder.layers.1.feed_forward.down",)]
FUSED = [("encoder.layers.0.attention.query", "encoder.layers.0.attention.value")]


def _network(groups: Any = PATHS, *, seed: int = 0, **settings: Any) -> tuple[Any, set[str]]:
    network = random_network(tiny_config())
    return network, adapt(network, groups, LoraSettings(**{"rank": 4, "alpha": 8} | settings), seed)


def _hidden(network: Any) -> mx.array:
    found: mx.array = network(mx.array([[2, 9, 12, 3], [2, 7, 30, 3]])).last_hidden_state
    return found


def _parameters(network: Any) -> dict[str, mx.array]:
    return dict(nn.utils.tree_flatten(network.parameters()))


def _set(network: Any, names: set[str], ends: str) -> None:
    mx.random.seed(1)
    found = [(name, mx.random.normal(_parameters(network)[name].shape) * 0.3) for name in sorted(names)]
    network.load_weights([(name, array) for name, array in found if name.endswith(ends)], strict=False)


@pytest.mark.parametrize("dora", [False, True])
def test_a_new_adapter_changes_nothing(dora: bool) -> None:
    network, names = _network(dora=dora)
    assert mx.allclose(_hidden(network), _hidden(random_network(tiny_config())), atol=1e-5).item()
    own = {"lora_a", "lora_b", "magnitude"} if dora else {"lora_a", "lora_b"}
    assert names == {f"{path}.{name}" for (path,) in PATHS for name in own}
    bound = 1 / 24**0.5
    drawn = _parameters(network)["encoder.layers.0.attention.query.lora_a"]
    assert 0.8 * bound < mx.abs(drawn).max().item() <= bound and drawn.shape == (4, 24)  # type: ignore[operator]


def test_first_values_depend_on_the_seed_and_the_place_alone() -> None:
    name = "encoder.layers.1.feed_forward.down.lora_a"
    first, again, other = (
        _parameters(_network(groups, seed=seed)[0])[name] for groups, seed in ((PATHS, 0), (PATHS[1:], 0), (PATHS, 1))
    )
    assert mx.array_equal(first, again).item() and not mx.array_equal(first, other).item()


@pytest.mark.parametrize("settings", [{}, {"dora": True}, {"rslora": True, "alpha": 3}])
def test_an_adapted_layer_computes_with_the_merged_matrix(settings: dict[str, Any]) -> None:
    network, names = _network(**settings)
    _set(network, names, "lora_b")
    found, arrays = _hidden(network), _parameters(network)
    scale = 3 / 4**0.5 if "rslora" in settings else 8 / 4
    plain = random_network(tiny_config())
    for (path,) in PATHS:
        update = scale * (arrays[f"{path}.lora_b"] @ arrays[f"{path}.lora_a"])
        whole = merged(arrays[f"{path}.weight"], update, arrays.get(f"{path}.magnitude"))
        plain.load_weights([(f"{path}.weight", whole)], strict=False)
    assert mx.allclose(found, _hidden(plain), atol=1e-5).item()


def test_layers_of_a_group_share_a() -> None:
    network, names = _network(FUSED)
    assert names == {f"{FUSED[0][0]}.lora_a", f"{FUSED[0][0]}.lora_b", f"{FUSED[0][1]}.lora_b"}
    _set(network, names, "lora_b")
    before = network.encoder.layers[0].attention.value(mx.ones((1, 24)))
    _set(network, names, "lora_a")
    assert not mx.allclose(before, network.encoder.layers[0].attention.value(mx.ones((1, 24)))).item()


@pytest.mark.parametrize("dora", [False, True])
def test_a_quantized_layer_computes_as_the_expanded_one(dora: bool) -> None:
    mx.random.seed(0)
    plain = nn.Linear(64, 8)
    packed = nn.QuantizedLinear.from_linear(plain, 32, 4)
    plain.weight = mx.dequantize(packed.weight, packed.scales, packed.biases, group_size=32, bits=4)
    outputs = []
    for layer in (plain, packed):
        holder = nn.Module()
        holder.query = layer
        holder.eval()
        names = adapt(holder, [("query",)], LoraSettings(rank=2, alpha=4, dora=dora))
        _set(holder, names, "lora_b")
        outputs.append(holder.query(mx.arange(64, dtype=mx.float32)[None] / 64))
    assert mx.allclose(outputs[0], outputs[1], atol=1e-4).item()


@pytest.mark.parametrize("dora", [False, True])
def test_dropout_of_adapters_drops_in_training_alone(dora: bool) -> None:
    network, names = _network(dora=dora, dropout=0.5)
    _set(network, names, "lora_b")
    assert mx.array_equal(_hidden(network), _hidden(network)).item()
    layer = network.encoder.layers[0].attention.query
    network.train()
    assert not mx.array_equal(layer(mx.ones((1, 24))), layer(mx.ones((1, 24)))).item()


@pytest.mark.parametrize("dora", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(dora: bool) -> None:
    network, names = _network([*FUSED, *PATHS[1:]], dora=dora)
    _set(network, names, "lora_b")
    network.train()
    arrays = {name: array for name, array in _parameters(network).items() if name in names}

    def loss(parameters: dict[str, mx.array]) -> mx.array:
        network.load_weights(list(parameters.items()), strict=False)
        return mx.square(_hidden(network)).sum()

    found = []
    for network.encoder.checkpointing in (False, True):
        found.append(mx.grad(loss)(dict(arrays)))
        mx.eval(found[-1])
    assert all(mx.allclose(found[0][name], found[1][name], atol=1e-5).item() for name in names)
    assert all(mx.abs(array).max().item() > 0 for array in found[0].values())  # type: ignore[operator]
