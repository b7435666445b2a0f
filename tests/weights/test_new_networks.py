"""Fresh weights: new heads on a loaded encoder, and networks from a configuration alone."""

from pathlib import Path

import pytest

from mlxbert.config import Labels
from mlxbert.device import mx
from mlxbert.errors import ArgumentError
from mlxbert.nn.heads import Network
from mlxbert.weights.build import build_network, new_network, parameters
from mlxbert.weights.checkpoint import Checkpoint, open_checkpoint
from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config

THREE, TWO = Labels(("good", "bad", "ugly"), None), Labels(("no", "yes"), None)
OUT = "heads.sequence_classifier.out.weight"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """A model with a classifier of two labels."""
    classifier = {"classifier.weight": mx.ones((2, 24)), "classifier.bias": mx.ones(2)}
    config = CONFIG | {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes"}}
    return open_checkpoint(save(tmp_path, tensors_of(random_network(tiny_config())) | classifier, config))


def fresh(checkpoint: Checkpoint, seed: int, *heads: str) -> Network:
    return build_network(checkpoint, (), mx.float32, new_heads=dict.fromkeys(heads, THREE), seed=seed)


def equal(one: Network, other: Network, name: str = OUT) -> bool:
    return bool(mx.array_equal(parameters(one)[name], parameters(other)[name]).item())


def test_a_new_head_has_its_own_labels_and_not_those_of_the_loaded_one(checkpoint: Checkpoint) -> None:
    assert checkpoint.config.heads.labels == TWO
    network = fresh(checkpoint, 0, "sequence_classifier")
    assert network.encoder.config.heads.labels == THREE and parameters(network)[OUT].shape == (3, 24)
    with pytest.raises(ArgumentError, match="several heads with different labels"):
        build_network(checkpoint, ("sequence_classifier",), mx.float32, new_heads={"token_classifier": THREE})


def test_fresh_weights_depend_on_the_seed_and_their_name_alone(checkpoint: Checkpoint) -> None:
    alone, again, other = (fresh(checkpoint, seed, "sequence_classifier") for seed in (1, 1, 2))
    mx.random.seed(7)
    together = fresh(checkpoint, 1, "token_classifier", "sequence_classifier")
    assert equal(alone, again) and equal(alone, together) and not equal(alone, other)
    whole = new_network(checkpoint, {"sequence_classifier": THREE}, seed=1)
    assert equal(alone, whole) and not equal(alone, whole, "encoder.layers.0.attention.query.weight")
