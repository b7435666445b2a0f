"""What Google's releases leave unsaid and transformers' folders say: the class and the labels.

A folder of Google holds `bert_config.json` or `albert_config.json`, a vocabulary and a TensorFlow checkpoint.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.formats.headers import TensorInfo

_KINDS = {"bert": "Bert", "albert": "Albert", "electra": "Electra"}
# Of the classes of transformers the end that a tensor tells, the first one counts.
_CLASSES = {
    "classifier.weight": "ForSequenceClassification",
    "qa_outputs.weight": "ForQuestionAnswering",
    "generator_lm_head.bias": "ForMaskedLM",
    "discriminator_predictions.dense.weight": "ForPreTraining",
    "cls.predictions.bias": "ForPreTraining",
    "predictions.bias": "ForPreTraining",
}


def completed(config: ConfigJson, tensors: Mapping[str, TensorInfo]) -> ConfigJson:
    """A configuration with the class that the tensors tell, and labels of its classifier, should it name neither."""
    kind = _KINDS.get(str(config.values.get("model_type")))
    if config.texts("architectures") or kind is None:
        return config
    end = next((end for name, end in _CLASSES.items() if name in tensors), "Model")
    said: dict[str, Any] = {"architectures": [kind + end]}
    if "classifier.weight" in tensors and config.get("id2label") is None and config.get("num_labels") is None:
        count = tensors["classifier.weight"].shape[0]
        said["id2label"] = {str(number): f"LABEL_{number}" for number in range(count)}
        said["label2id"] = {f"LABEL_{number}": number for number in range(count)}
    added = tuple(key for key in said if key not in config.values)
    return replace(config, values=config.values | said, added=config.added + added)
