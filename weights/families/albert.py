"""ALBERT: its layers share their weights, and its embeddings are narrower than the hidden states."""

from dataclasses import replace

from mlxbert.config import EncoderConfig, HeadFacts, Projection
from mlxbert.nn.heads import masked_lm
from mlxbert.weights.families import config_reader, tensor_names
from mlxbert.weights.families.bert import BERT, read_bert
from mlxbert.weights.families.keymap import Table, same, within
from mlxbert.weights.formats.config_json import ConfigJson


def _read_albert(config: ConfigJson) -> EncoderConfig:
    config.only("inner_group_num", 1, "mlxbert runs ALBERT with one layer in a group (inner_group_num 1)")
    facts = read_bert(config, "gelu_new")
    steps, groups = len(facts.layer_schedule), config.integer("num_hidden_groups", default=1)
    if groups > steps:
        raise config.refuse("num_hidden_groups", f"at most the number of layers ({steps})")
    rate = config_reader.rate(config, "classifier_dropout_prob", 0.1)
    return replace(
        facts,
        embedding_size=config.integer("embedding_size", default=128),
        projection=Projection(),
        layer_schedule=tuple(int(step / (steps / groups)) for step in range(steps)),
        dropout=replace(config_reader.dropout(config, 0.0, 0.0), feed_forward=None),
        heads={**facts.heads, **config_reader.heads(rate, sentence_order=HeadFacts(dropout=rate))},
    )


_LAYER: Table = (
    same("attention.query", "attention.query"),
    same("attention.key", "attention.key"),
    same("attention.value", "attention.value"),
    same("attention.output", "attention.dense"),
    same("attention_norm", "attention.LayerNorm"),
    same("feed_forward.up", "ffn"),
    same("feed_forward.down", "ffn_output"),
    same("feed_forward_norm", "full_layer_layer_norm"),
)

ALBERT = replace(
    BERT,
    title="ALBERT",
    published=("albert/albert-base-v2",),
    class_prefixes={"albert": "Albert"},
    facts=_read_albert,
    prefixes=("albert.",),
    encoder=tensor_names.encoder(
        (*tensor_names.EMBEDDINGS, same("embeddings.projection", "encoder.embedding_hidden_mapping_in")),
        _LAYER,
        "encoder.albert_layer_groups.{}.albert_layers.0.",
    ),
    parts={
        "pooler": within("encoder.", "", (same("pooler.dense", "pooler"),)),
        **tensor_names.heads(
            *("masked_lm", "sentence_order", *tensor_names.TASK_HEADS),
            masked_lm=masked_lm.stems("predictions", "predictions.dense", "predictions.LayerNorm"),
        ),
    },
    old_spellings=tensor_names.OLD_SPELLINGS,  # MLX's spelling of BERT's pooler is ALBERT's own name
    tied={"predictions.decoder.weight": tensor_names.WORDS, "predictions.decoder.bias": "predictions.bias"},
)
