"""What Google's releases leave unsaid and transformers' folders say: the family, the class, the labels.

A folder of Google holds `bert_config.json` or `albert_config.json`, a vocabulary and a TensorFlow checkpoint.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlxbert.errors import ConfigError

if TYPE_CHECKING:
    from mlxbert.weights.config_json import ConfigJson
    from mlxbert.weights.formats.headers import TensorInfo

_KINDS = {"bert": "Bert", "albert": "Albert", "electra": "Electra"}
CONFIGS = {kind: f"{kind}_config*.json" for kind in _KINDS}  # what Google calls them, by their model_type
# Of the classes of transformers the end that a tensor tells, the first one counts.
_CLASSES = {
    "classifier.weight": "ForSequenceClassification",
    "qa_outputs.weight": "ForQuestionAnswering",
    "generator_lm_head.bias": "ForMaskedLM",
    "discriminator_predictions.dense.weight": "ForPreTraining",
    "cls.predictions.bias": "ForPreTraining",
    "predictions.bias": "ForPreTraining",
}


def google_config(folder: Path) -> tuple[Path, str] | None:
    """Google's configuration of a folder without `config.json`, and the `model_type` that its name tells.

    Raises:
        ConfigError: There are several.
    """
    if (folder / "config.json").is_file():
        return None
    found = [(path, kind) for kind, name in CONFIGS.items() for path in sorted(folder.glob(name))]
    if len(found) > 1:
        raise ConfigError(
            f"{folder}: {', '.join(path.name for path, _ in found[:5])}: expected one configuration",
            hint="keep the one that is wanted, or call it config.json and add its model_type",
        )
    return found[0] if found else None


def completed(config: "ConfigJson", tensors: Mapping[str, "TensorInfo"]) -> "ConfigJson":
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
    return replace(config, values=config.values | said)
