"""Fresh weights are a function of the seed and of their names."""

from collections.abc import Iterable

from mlxbert.machine.device import mx, nn
from mlxbert.nn.heads.initialize import initialize
from tests.helpers.tiny import random_network, tiny_config

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
