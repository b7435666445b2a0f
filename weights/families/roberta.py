"""RoBERTa, XLM-RoBERTa and CamemBERT: positions start at the pad id + 1."""

from dataclasses import replace

from mlxbert.config import EncoderConfig, Transform
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.families.bert import BERT
from mlxbert.weights.families.family import (
    GELU_MASKED_LM,
    read_absolute,
    read_both_dropouts,
    read_facts,
    read_heads,
    read_pad,
    read_segments,
)
from mlxbert.weights.families.tables import (
    POOLER,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFIER,
    WORDS,
    classifier_table,
    masked_lm_table,
)


def _read_roberta(config: ConfigJson) -> EncoderConfig:
    pad = read_pad(config, 1)
    return read_facts(
        config,
        positions=read_absolute(config, pad + 1),
        heads=read_heads(
            config, masked_lm=GELU_MASKED_LM, classifier=Transform("tanh"), dropout=read_both_dropouts(config)
        ),
        type_vocab_size=read_segments(config),
        pad_token_id=pad,
    )


ROBERTA = replace(
    BERT,
    class_prefixes={"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
    read_config=_read_roberta,
    prefixes=("roberta.",),
    parts={
        "pooler": POOLER,
        "masked_lm": masked_lm_table("lm_head.dense", "lm_head.layer_norm", "lm_head"),
        "sequence_classifier": classifier_table("classifier.out_proj", "classifier.dense"),
        "token_classifier": TOKEN_CLASSIFIER,
        "question_answering": QUESTION_ANSWERING,
    },
    tied={"lm_head.decoder.weight": WORDS, "lm_head.decoder.bias": "lm_head.bias"},
)
