"""BERT."""

from mlxbert.config import EncoderConfig, Transform
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.families.family import (
    Family,
    read_absolute,
    read_activation,
    read_facts,
    read_heads,
    read_segments,
)
from mlxbert.weights.families.tables import (
    BUFFERS,
    EMBEDDINGS,
    LAYER,
    MASKED_LM,
    OLD_SPELLINGS,
    POOLER,
    QUESTION_ANSWERING,
    TOKEN_CLASSIFIER,
    WORDS,
    classifier_table,
    encoder_table,
)
from mlxbert.weights.keymap import same


def read_bert(config: ConfigJson, activation: str = "gelu") -> EncoderConfig:
    """The facts of a BERT; `activation` is the default of transformers."""
    config.only("use_task_id", False, "mlxbert does not run models with task ids (ERNIE)")
    activation = read_activation(config, "hidden_act", activation)
    return read_facts(
        config,
        positions=read_absolute(config),
        heads=read_heads(config, masked_lm=Transform(activation, norm=True)),
        type_vocab_size=read_segments(config),
        hidden_act=activation,
    )


# The names of BERT's tensors in other tools for MLX, after MLX's own layers:
# https://github.com/ml-explore/mlx-examples/blob/main/bert/convert.py.
_MLX_LAYER = r"^encoder\.layers\.(\d+)\."
_MLX_NAMES = {
    r"attention\.(query|key|value)_proj": r"attention.self.\2",
    r"attention\.out_proj": "attention.output.dense",
    "ln1": "attention.output.LayerNorm",
    "ln2": "output.LayerNorm",
    "linear1": "intermediate.dense",
    "linear2": "output.dense",
}
# Patterns (regular expressions) and the names in transformers.
_MLX_SPELLINGS = {rf"{_MLX_LAYER}{theirs}\.": rf"encoder.layer.\1.{name}." for theirs, name in _MLX_NAMES.items()} | {
    r"^embeddings\.norm\.": "embeddings.LayerNorm.",
    r"^pooler\.(weight|bias)$": r"pooler.dense.\1",
}

BERT = Family(
    class_prefixes={"bert": "Bert"},
    read_config=read_bert,
    prefixes=("bert.",),
    encoder=encoder_table(EMBEDDINGS, LAYER, "encoder.layer.{}."),
    parts={
        "pooler": POOLER,
        "masked_lm": MASKED_LM,
        "next_sentence": (same("heads.next_sentence.dense", "cls.seq_relationship"),),
        "sequence_classifier": classifier_table("classifier"),
        "token_classifier": TOKEN_CLASSIFIER,
        "question_answering": QUESTION_ANSWERING,
    },
    old_spellings=OLD_SPELLINGS | _MLX_SPELLINGS,
    buffers=BUFFERS,
    tied={"cls.predictions.decoder.weight": WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"},
)
