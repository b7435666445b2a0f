"""Folders of tiny random text classifiers."""

from pathlib import Path

from mlxbert.labels.labels import Labels
from tests.helpers.tiny import CONFIG, random_network, save, tensors_of, tiny_config

SENTIMENT = Labels(("negative", "neutral", "positive"), "single_label_classification")
EMOTIONS = Labels(("joy", "anger", "fear", "love"), "multi_label_classification")
NLI = Labels(("contradiction", "neutral", "entailment"), "single_label_classification")
STARS = Labels(("stars",), "regression")


def save_classifier(folder: Path, labels: Labels, bias: float = 0.0, **changes: object) -> Path:
    named = {key: value for key, value in labels.to_config().items() if value is not None}
    config = CONFIG | named | {"architectures": ["BertForSequenceClassification"]} | changes
    tensors = tensors_of(random_network(tiny_config(labels=labels), ("sequence_classifier",)))
    return save(folder, tensors | {"classifier.bias": tensors["classifier.bias"] + bias}, config)


def save_saturated(folder: Path, bias: float = 40.0) -> Path:
    """Writes a cross-encoder whose probabilities are all 1.0 in float32, or all 0.0 with a bias of -200."""
    return save_classifier(folder, Labels(("LABEL_0",), None), bias, num_labels=1)
