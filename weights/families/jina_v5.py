"""jina-embeddings-v5: a EuroBERT (nano) or a Qwen3 (small) with one adapter in PEFT's format per task.

`modules.json` names only the authors' code. This code takes the last token's vector and scales it to length 1. If
the authors merged an adapter, the model is a plain EuroBERT or Qwen3. See `mlxbert.weights.adapters.task_adapters`.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.weights.families.eurobert import EUROBERT
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.qwen import QWEN3
from mlxbert.weights.formats.config_json import ConfigJson

MODEL_TYPE = "jina_embeddings_v5"
_QWEN_KEYS = ("use_sliding_window", "max_window_layers")  # keys that EuroBERT does not have


def _overrides(merged: str, prefix: str) -> Callable[[ConfigJson, EncoderConfig], dict[str, Any]]:
    """Returns the function `config_overrides` of a family, for models into which an adapter was merged.

    Such a model no longer needs the authors' code: in its configuration, `model_type` becomes `merged`, and class names
    begin with `prefix`.
    """

    def changed(config: ConfigJson, facts: EncoderConfig) -> dict[str, Any]:
        classes = [name.replace("JinaEmbeddingsV5", prefix) for name in config.strings("architectures")]
        return {"model_type": merged, "architectures": classes, "auto_map": None, "task_names": None}

    return changed


def _is_qwen(config: ConfigJson, tensors: Collection[str]) -> bool:
    if tensors:
        return any(".q_norm." in name for name in tensors)
    return any(key in config.values for key in _QWEN_KEYS)


def _read_qwen(config: ConfigJson) -> EncoderConfig:
    return QWEN3.facts(replace(config, values={"is_causal": True} | config.values))


def _with_adapters(family: Family, merged: str, prefix: str) -> Family:
    return replace(
        family,
        class_prefixes={MODEL_TYPE: prefix},
        pooling=lambda config: "last_token",
        embeds_in_code=True,
        config_overrides=_overrides(merged, prefix),
    )


JINA_V5_NANO = _with_adapters(EUROBERT, "eurobert", "EuroBert")
JINA_V5_SMALL = replace(_with_adapters(QWEN3, "qwen3", "Qwen3"), facts=_read_qwen, recognizes=_is_qwen)
