"""Adds the class and the labels, which only transformers states, to the configuration of a Google release.

A release from Google has a `bert_config.json` or `albert_config.json`, a vocabulary and a TensorFlow checkpoint.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.formats.headers import TensorInfo

_KINDS = {"bert": "Bert", "albert": "Albert", "electra": "Electra"}
# The suffix of the class in transformers, by a tensor that identifies the class; the first match counts.
_CLASSES = {
    "classifier.weight": "ForSequenceClassification",
    "qa_outputs.weight": "ForQuestionAnswering",
    "generator_lm_head.bias": "ForMaskedLM",
    "discriminator_predictions.dense.weight": "ForPreTraining",
    "cls.predictions.bias": "ForPreTraining",
    "predictions.bias": "ForPreTraining",
}


def with_google_defaults(config: ConfigJson, tensors: Mapping[str, TensorInfo]) -> ConfigJson:
    """Adds `architectures` and the labels of a classifier to a configuration without them, based on the tensors."""
    kind = _KINDS.get(str(config.values.get("model_type")))
    if config.strings("architectures") or kind is None:
        return config
    suffix = next((suffix for name, suffix in _CLASSES.items() if name in tensors), "Model")
    inferred: dict[str, Any] = {"architectures": [kind + suffix]}
    if "classifier.weight" in tensors and config.get("id2label") is None and config.get("num_labels") is None:
        count = tensors["classifier.weight"].shape[0]
        inferred["id2label"] = {str(number): f"LABEL_{number}" for number in range(count)}
        inferred["label2id"] = {f"LABEL_{number}": number for number in range(count)}
    added = tuple(key for key in inferred if key not in config.values)
    return replace(config, values=config.values | inferred, added=config.added + added)
