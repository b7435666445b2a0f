"""The XLM-RoBERTa of Jina AI (embeddings v3, reranker v2), in the dialects of its authors and of transformers.

The authors' files have no `model_type`. Embeddings v3 has adapters (see `mlxbert.weights.adapters.task_adapters`).
"""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from mlxbert.config import EncoderConfig, Positions, Rotary, Rotation, Transform
from mlxbert.weights.families import config_reader, rotary, tensor_names
from mlxbert.weights.families.keymap import Table, same, split
from mlxbert.weights.families.roberta import ROBERTA
from mlxbert.weights.formats.config_json import ConfigJson

_BASES = 10_000.0, 20_000.0  # default bases of the angles: in the authors' code, in transformers
_KIND = "position_embedding_type"
_CODE = "XLMRobertaFlashConfig"  # the configuration class in the authors' code


def _is_jina(config: ConfigJson, tensors: Collection[str]) -> bool:
    return str(config.nested("auto_map").get("AutoConfig")).endswith(_CODE)


def _positions(config: ConfigJson, pad: int) -> Positions:
    """Reads the positions: rotary positions count from 0, the positions in a table from the pad id + 1."""
    if config.choice(_KIND, ("rotary", "absolute"), "rotary") == "absolute":
        return config_reader.absolute(config, pad + 1)
    config.only("rope_scaling", None, "mlxbert computes the plain rotation only, without scaling")
    config.only("rotary_emb_interleaved", False, "mlxbert rotates halves of heads")
    config.only("rotary_emb_scale_base", None, "mlxbert does not run models with xPos scaling")
    config.only("rotary_emb_dim", config_reader.head_size(config), "mlxbert rotates whole heads")
    native = config.get("model_type") is not None
    stated = rotary.read_base(config, "rope_theta" if native else "rotary_emb_base", _BASES[native])
    theta = rotary.read_theta(config.nested("rope_parameters"), stated)
    return rotary.read_rotary(config, (Rotation(theta),) * config.integer("num_hidden_layers", most=1000))


def _read(config: ConfigJson) -> EncoderConfig:
    pad = config_reader.pad(config, 1)
    return config_reader.facts(
        config,
        positions=_positions(config, pad),
        heads=config_reader.heads(config_reader.head_dropout(config), Transform("tanh")),
        type_vocab_size=config_reader.segments(config, 1),
        pad_token_id=pad,
        layer_norm_eps=config.number("layer_norm_eps", low=config_reader.MIN_EPS, high=1.0, default=1e-5),
    )


def _overrides(config: ConfigJson, facts: EncoderConfig) -> dict[str, Any]:
    """Returns the changes that turn the authors' dialect into the dialect of transformers.

    A model with a table of positions stays in the authors' dialect.
    """
    if config.get("auto_map") is None or not isinstance(facts.positions, Rotary):
        return {}
    classes = [re.sub("^XLMRoberta(LoRA$)?", "JinaEmbeddingsV3", name) for name in config.strings("architectures")]
    names = [name + "Model" if name == "JinaEmbeddingsV3" else name for name in classes]
    dropped = [_KIND, *(key for key in config.values if key.startswith(("lora_", "rotary_", "use_", "load_trained_")))]
    replaced = {"model_type": "jina_embeddings_v3", "architectures": names}
    return rotary.transformers_keys(facts) | replaced | dict.fromkeys(dropped)


_LAYER: Table = (
    split(rotary.QKV, "mixer.Wqkv"),
    same("attention.output", "mixer.out_proj"),
    same("attention_norm", "norm1"),
    same("feed_forward.up", "mlp.fc1"),
    same("feed_forward.down", "mlp.fc2"),
    same("feed_forward_norm", "norm2"),
)
_EMBEDDINGS = (
    *rotary.rotary_embeddings("emb_ln"),
    same("embeddings.position", "embeddings.position_embeddings"),
)

JINA_V3 = replace(
    ROBERTA,
    title="Jina's XLM-RoBERTa",
    published=(
        "jinaai/jina-embeddings-v3",
        "jinaai/jina-embeddings-v3-hf",
        "jinaai/jina-reranker-v2-base-multilingual",
        "jinaai/jina-colbert-v2",
    ),
    class_prefixes={"jina_embeddings_v3": "JinaEmbeddingsV3"},
    recognizes=_is_jina,
    code=_CODE,
    authors_prefix="XLMRoberta",
    ignored=(*ROBERTA.ignored, r"linear\.weight"),  # of ColBERT
    facts=_read,
    encoder=tensor_names.encoder(_EMBEDDINGS, _LAYER, "encoder.layers.{}."),
    old_spellings={r"\.parametrizations\.weight\.original$": ".weight"},
    buffers=(*tensor_names.BUFFERS, rotary.FREQUENCIES, r".*\.parametrizations\.weight\.0\.lora_[AB]"),
    modules=rotary.in_memory(
        "encoder.layers.{}.",
        {
            "mixer.Wqkv": rotary.QKV_IN_MEMORY,
            "mixer.out_proj": ("self_attn.o_proj",),
            "mlp.fc1": ("mlp.fc1",),
            "mlp.fc2": ("mlp.fc2",),
        },
    ),
    config_overrides=_overrides,
    foreign=lambda config, facts: config.get("auto_map") is not None and not isinstance(facts.positions, Rotary),
)
