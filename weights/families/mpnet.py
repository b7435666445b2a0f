"""MPNet: its attention has a bias for each distance, which all layers share."""

from dataclasses import replace

from mlxbert.config import EncoderConfig, RelativeBias, Transform
from mlxbert.weights.families import config_reader, tensor_names
from mlxbert.weights.families.keymap import Table, same
from mlxbert.weights.families.roberta import ROBERTA
from mlxbert.weights.formats.config_json import ConfigJson

_PAD = 1  # positions count from this id, whatever pad_token_id is


def _read_mpnet(config: ConfigJson) -> EncoderConfig:
    config.only("relative_attention_num_buckets", 32, "MPNet always computes with 32 buckets")
    rate = config_reader.rate(config, "hidden_dropout_prob", 0.1)  # also in heads: there is no classifier_dropout
    return config_reader.facts(
        config,
        positions=RelativeBias(config_reader.absolute(config, _PAD + 1)),
        heads=config_reader.heads(rate, Transform("tanh")),
        type_vocab_size=0,
        pad_token_id=config_reader.pad(config, _PAD),
    )


_LAYER: Table = (
    same("attention.query", "attention.attn.q"),
    same("attention.key", "attention.attn.k"),
    same("attention.value", "attention.attn.v"),
    same("attention.output", "attention.attn.o"),
    same("attention_norm", "attention.LayerNorm"),
    *tensor_names.FEED_FORWARD,
)

MPNET = replace(
    ROBERTA,
    title="MPNet",
    published=("microsoft/mpnet-base", "sentence-transformers/all-mpnet-base-v2"),
    class_prefixes={"mpnet": "MPNet"},
    facts=_read_mpnet,
    prefixes=("mpnet.",),
    encoder=tensor_names.encoder(
        tensor_names.EMBEDDINGS, _LAYER, "encoder.layer.{}.", (same("positions", "encoder.relative_attention_bias"),)
    ),
)
