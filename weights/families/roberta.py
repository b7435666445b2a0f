"""RoBERTa, XLM-RoBERTa and CamemBERT: positions are counted from the pad id + 1."""

from dataclasses import replace

from mlxbert.config import EncoderConfig, Transform
from mlxbert.nn.heads import masked_lm
from mlxbert.weights.families import config_reader, tensor_names
from mlxbert.weights.families.bert import BERT
from mlxbert.weights.formats.config_json import ConfigJson


def _read_roberta(config: ConfigJson) -> EncoderConfig:
    pad = config_reader.pad(config, 1)
    return config_reader.facts(
        config,
        positions=config_reader.absolute(config, pad + 1),
        heads=config_reader.heads(config_reader.head_dropout(config), Transform("tanh")),
        type_vocab_size=config_reader.segments(config),
        pad_token_id=pad,
    )


ROBERTA = replace(
    BERT,
    title="RoBERTa, XLM-RoBERTa, CamemBERT",
    published=(
        "FacebookAI/roberta-base",
        "FacebookAI/xlm-roberta-base",
        "almanach/camembert-base",
        "intfloat/multilingual-e5-base",
        "BAAI/bge-m3",
        "BAAI/bge-reranker-v2-m3",
        "Snowflake/snowflake-arctic-embed-l-v2.0",
        "ibm-granite/granite-embedding-125m-english",
        "ibm-granite/granite-embedding-278m-multilingual",
    ),
    class_prefixes={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    facts=_read_roberta,
    prefixes=("roberta.",),
    parts={
        "pooler": tensor_names.POOLER,
        **tensor_names.heads(
            masked_lm=masked_lm.stems("lm_head", "lm_head.dense", "lm_head.layer_norm"),
            sequence_classifier=tensor_names.TWO_LAYERS,
        ),
    },
    tied={"lm_head.decoder.weight": tensor_names.WORDS, "lm_head.decoder.bias": "lm_head.bias"},
)
