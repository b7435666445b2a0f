"""Qwen2 and Qwen3 as embedders: causal models in which the last token represents a text.

In Qwen2, as in gte-Qwen2, queries and keys have biases instead of norms.
"""

from typing import Any

from mlxbert.config import Biases, EncoderConfig, HeadFacts, Rotation
from mlxbert.weights.families import config_reader, llama, tensor_names
from mlxbert.weights.families.family import Family
from mlxbert.weights.formats.config_json import ConfigJson


def read_qwen(config: ConfigJson, **own: Any) -> EncoderConfig:
    """Reads the facts of a Qwen model; `own` holds the facts in which the versions differ."""
    if config.get("is_causal") is None and config.get("auto_map") is not None:
        raise config.refuse(
            "is_causal", "true or false: the model's own code decides it", 'for gte-Qwen2 add "is_causal": false'
        )
    config.only("use_sliding_window", False, "mlxbert runs Qwen without sliding windows")
    layers = config.integer("num_hidden_layers", most=1000)
    if {*config.strings("layer_types")} - {"full_attention"}:
        raise config.refuse("layer_types", "'full_attention' only")
    causal = config.flag("is_causal", default=True)
    rate = config_reader.rate(config, "classifier_dropout", config_reader.rate(config, "hidden_dropout", 0.1))
    return llama.facts(
        config,
        (Rotation(llama.rope(config).theta, causal=causal),) * layers,
        heads={
            "sequence_classifier": llama.classifier(config),
            "token_classifier": HeadFacts(dropout=rate),
        },
        **own,
    )


def _read_qwen3(config: ConfigJson) -> EncoderConfig:
    size = config.integer("head_dim", most=2**12, default=128)
    return read_qwen(config, query_key_norm="head", own_head_size=size)


PARTS = tensor_names.heads(
    *("sequence_classifier", "token_classifier"),
    sequence_classifier=llama.SCORES,
    token_classifier=llama.SCORES,
)
QWEN3 = Family(
    title="Qwen3",
    published=("Qwen/Qwen3-Embedding-0.6B", "Qwen/Qwen3-Reranker-0.6B", "jinaai/jina-embeddings-v5-text-small"),
    class_prefixes={"qwen3": "Qwen3"},
    facts=_read_qwen3,
    prefixes=("model.",),
    encoder=llama.encoder(llama.LAYER, llama.NORM_BEFORE_FEED_FORWARD, llama.QUERY_KEY_NORMS),
    parts=PARTS,
    ignored=llama.DECODER,
    wide_range=True,  # QwenLM/Qwen3-Embedding#164: in float16 the 8B model gives NaN; smaller ones are not measured
)


def _read_qwen2(config: ConfigJson) -> EncoderConfig:
    return read_qwen(config, biases=Biases(True, False, False, False))


QWEN2 = Family(
    title="Qwen2",
    published=("Alibaba-NLP/gte-Qwen2-1.5B-instruct",),
    class_prefixes={"qwen2": "Qwen2"},
    facts=_read_qwen2,
    prefixes=("model.",),
    encoder=llama.encoder(llama.LAYER, llama.NORM_BEFORE_FEED_FORWARD),
    parts=PARTS,
    ignored=llama.DECODER,
    wide_range=True,
)
