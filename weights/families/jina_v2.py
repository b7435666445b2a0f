"""Jina's BERT with ALiBi and a gated feed-forward, in the two variants that its authors published as type `bert`."""

from collections.abc import Collection
from dataclasses import replace

from mlxbert.config import Alibi, Biases, EncoderConfig, PostNorm, Transform
from mlxbert.nn.heads import masked_lm
from mlxbert.weights.families import config_reader, rotary, tensor_names
from mlxbert.weights.families.bert import BERT
from mlxbert.weights.families.keymap import Table, same, split
from mlxbert.weights.formats.config_json import ConfigJson

_GATES = {"geglu": "gelu", "reglu": "relu"}
_NORMED = "jina-bert-v2-qk-post-norm"  # the repository with the code of the second variant


def _is_jina(config: ConfigJson, tensors: Collection[str]) -> bool:
    return config.get("position_embedding_type") == "alibi"


def _is_normed(config: ConfigJson, tensors: Collection[str]) -> bool:
    """Whether a model is of the second variant, in which queries and keys are normalized.

    The names of the tensors decide. If they are unknown, the name of the authors' code decides, but copies and
    fine-tuned models may lack this name.
    """
    named = _NORMED in f"{config.get('_name_or_path')} {config.get('auto_map')}"
    return _is_jina(config, tensors) and (any("mlp.up_gated_layer." in name for name in tensors) if tensors else named)


def _read(config: ConfigJson) -> EncoderConfig:
    dropout = config_reader.dropout(config)
    transform = Transform(config_reader.activation(config, "hidden_act", "gelu"), norm=True)
    return config_reader.facts(
        config,
        positions=Alibi(config.integer("max_position_embeddings")),
        heads=config_reader.heads(config_reader.head_dropout(config), masked_lm=masked_lm.MaskedLMFacts(transform)),
        type_vocab_size=config_reader.segments(config),
        gated=True,
        hidden_act=_GATES[config.choice("feed_forward_type", _GATES)],
        dropout=replace(dropout, activation=dropout.feed_forward, feed_forward=None),
        biases=Biases(up=False),
    )


def _read_normed(config: ConfigJson) -> EncoderConfig:
    values = {"feed_forward_type": "geglu"} | config.values  # the default in the code of this variant
    facts = _read(replace(config, values=values))
    return replace(facts, query_key_norm="all", block=PostNorm(adds_input_twice=True))


_LAYER: Table = (
    *tensor_names.ATTENTION,
    split(("feed_forward.gate", "feed_forward.up"), "mlp.gated_layers"),
    same("feed_forward.down", "mlp.wo"),
    same("feed_forward_norm", "mlp.layernorm"),
)
_NORMED_LAYER: Table = (
    *tensor_names.ATTENTION,
    same("attention.query_norm", "attention.self.layer_norm_q"),
    same("attention.key_norm", "attention.self.layer_norm_k"),
    same("second_attention_norm", "layer_norm_1"),
    split(("feed_forward.up", "feed_forward.gate"), "mlp.up_gated_layer"),
    same("feed_forward.down", "mlp.down_layer"),
    same("feed_forward_norm", "layer_norm_2"),
)
_EMBEDDINGS = rotary.rotary_embeddings("embeddings.LayerNorm")

JINA = replace(
    BERT,
    title="JinaBERT",
    published=(
        "jinaai/jina-embeddings-v2-base-en",
        "jinaai/jina-embeddings-v2-small-en",
        "jinaai/jina-reranker-v1-turbo-en",
    ),
    class_prefixes={"bert": "JinaBert"},
    foreign=lambda config, facts: True,
    recognizes=_is_jina,
    facts=_read,
    encoder=tensor_names.encoder(_EMBEDDINGS, _LAYER, "encoder.layer.{}."),
    old_spellings=tensor_names.OLD_SPELLINGS,
)
JINA_NORMED = replace(
    JINA,
    title="JinaBERT, queries and keys normed",
    published=("jinaai/jina-embeddings-v2-base-code",),
    recognizes=_is_normed,
    facts=_read_normed,
    encoder=tensor_names.encoder(_EMBEDDINGS, _NORMED_LAYER, "encoder.layer.{}."),
)
