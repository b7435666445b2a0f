"""Folders of tiny random models that answer questions."""

from pathlib import Path
from typing import Any

from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config


def save_answering(folder: Path, **changes: Any) -> Path:
    """Writes a model whose scores of some tokens are much higher than of others."""
    network = random_network(tiny_config(), ("question_answering",))
    layer = network.heads["question_answering"]["out"]  # type: ignore[index]
    layer.weight = layer.weight * 10
    return save(folder, tensors_of(network), CONFIG | {"architectures": ["BertForQuestionAnswering"]} | changes)
