"""MPNet: one bias for each distance, in all layers."""

from dataclasses import replace

from mlxbert.config import EncoderConfig, HeadDropout, RelativeBias, Transform
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.families.family import GELU_MASKED_LM, read_absolute, read_facts, read_heads, read_pad, read_rate
from mlxbert.weights.families.roberta import ROBERTA
from mlxbert.weights.families.tables import EMBEDDINGS, FEED_FORWARD, encoder_table
from mlxbert.weights.keymap import Table, same

_PAD = 1  # positions count from this id, whatever pad_token_id is


def _read_mpnet(config: ConfigJson) -> EncoderConfig:
    config.only("relative_attention_num_buckets", 32, "MPNet always computes with 32 buckets")
    rate = read_rate(config, "hidden_dropout_prob", 0.1)  # also in heads: there is no classifier_dropout
    dropout = HeadDropout(pooled=rate, classifier=rate, token_classifier=rate)
    return read_facts(
        config,
        positions=RelativeBias(read_absolute(config, _PAD + 1)),
        heads=read_heads(config, masked_lm=GELU_MASKED_LM, classifier=Transform("tanh"), dropout=dropout),
        type_vocab_size=0,
        pad_token_id=read_pad(config, _PAD),
    )


_LAYER: Table = (
    same("attention.query", "attention.attn.q"),
    same("attention.key", "attention.attn.k"),
    same("attention.value", "attention.attn.v"),
    same("attention.output", "attention.attn.o"),
    same("attention_norm", "attention.LayerNorm"),
    *FEED_FORWARD,
)

MPNET = replace(
    ROBERTA,
    class_prefixes={"mpnet": "MPNet"},
    read_config=_read_mpnet,
    prefixes=("mpnet.",),
    encoder=encoder_table(
        EMBEDDINGS, _LAYER, "encoder.layer.{}.", (same("positions", "encoder.relative_attention_bias"),)
    ),
)
