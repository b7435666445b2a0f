"""ELECTRA, generator and discriminator: narrow embeddings, no pooler."""

from dataclasses import replace

from mlxbert.config import EncoderConfig, Projection, Transform
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.families.bert import BERT, read_bert
from mlxbert.weights.families.family import GELU_MASKED_LM, read_both_dropouts
from mlxbert.weights.families.tables import (
    EMBEDDINGS,
    LAYER,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFIER,
    WORDS,
    classifier_table,
    encoder_table,
    masked_lm_table,
)
from mlxbert.weights.keymap import same


def _read_electra(config: ConfigJson) -> EncoderConfig:
    facts = read_bert(config)
    width = config.integer("embedding_size", default=128)
    return replace(
        facts,
        embedding_size=width,
        projection=Projection() if width != facts.hidden_size else None,
        heads=replace(
            facts.heads,
            masked_lm=GELU_MASKED_LM,
            classifier=Transform("gelu"),
            dropout=read_both_dropouts(config),
        ),
    )


ELECTRA = replace(
    BERT,
    class_prefixes={"electra": "Electra"},
    read_config=_read_electra,
    prefixes=("electra.",),
    encoder=encoder_table(
        (*EMBEDDINGS, same("embeddings.projection", "embeddings_project")), LAYER, "encoder.layer.{}."
    ),
    parts={
        "masked_lm": masked_lm_table(
            "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head"
        ),
        "discriminator": (
            same("heads.discriminator.transform.dense", "discriminator_predictions.dense"),
            same("heads.discriminator.out", "discriminator_predictions.dense_prediction"),
        ),
        "sequence_classifier": classifier_table("classifier.out_proj", "classifier.dense"),
        "token_classifier": TOKEN_CLASSIFIER,
        "question_answering": QUESTION_ANSWERING,
    },
    ignored=(r"sequence_summary\..*",),  # the multiple-choice head
    tied={"generator_lm_head.weight": WORDS},
)
