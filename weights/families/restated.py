"""Configurations in the dialect of a model's authors, said as transformers says them, which opens what is written."""

from typing import Any

from mlxbert.config import EncoderConfig, Rotary
from mlxbert.weights.config_json import ConfigJson


def _facts(config: EncoderConfig) -> dict[str, Any]:
    """What authors spell in another way, or leave to defaults of their own."""
    assert isinstance(config.positions, Rotary)
    rotation = config.positions.rotations[0]
    plain = {"rope_type": "default", "rope_theta": rotation.theta}
    # transformers calls "linear" what divides every speed.
    scaled = {"rope_type": "linear", "rope_theta": rotation.theta, "factor": rotation.stretch}
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_stored_layers,
        "num_attention_heads": config.num_attention_heads,
        "intermediate_size": config.intermediate_size,
        "hidden_act": config.hidden_act,
        "hidden_dropout_prob": config.hidden_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "max_position_embeddings": config.positions.max_length,
        "type_vocab_size": config.type_vocab_size,
        "layer_norm_eps": config.layer_norm_eps,
        "pad_token_id": config.pad_token_id,
        "rope_parameters": plain if rotation.stretch == 1 else scaled,
        "auto_map": None,
    }


def restate_gte(config: ConfigJson, facts: EncoderConfig) -> dict[str, Any]:
    """GTE as Alibaba published it is of the type "new"."""
    if config.get("model_type") != "new":
        return {}
    named = [name.replace("New", "Gte", 1) for name in config.texts("architectures")]
    return _facts(facts) | {"model_type": "gte", "architectures": named, "rope_theta": None, "rope_scaling": None}


def restate_nomic(config: ConfigJson, facts: EncoderConfig) -> dict[str, Any]:
    """NomicBERT as its authors published it has the keys of a GPT-2."""
    return _facts(facts) if config.get("activation_function") is not None else {}
