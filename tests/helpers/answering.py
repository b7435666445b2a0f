"""Folders of tiny random models that answer questions."""

from pathlib import Path
from typing import Any

from mlxbert.nn.heads import Network
from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config


def network_of(seed: int = 3) -> Network:
    """Returns a random network with the head for answers; its scores of some tokens are much higher than of others."""
    network = random_network(tiny_config(), ("question_answering",), seed)
    layer = network.heads["question_answering"]["out"]  # type: ignore[index]
    layer.weight = layer.weight * 10
    return network


def save_answering(folder: Path, seed: int = 3, **changes: Any) -> Path:
    config = CONFIG | {"architectures": ["BertForQuestionAnswering"]} | changes
    return save(folder, tensors_of(network_of(seed)), config)
