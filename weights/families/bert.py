"""BERT."""

from mlxbert.config import EncoderConfig, Transform
from mlxbert.nn.heads import masked_lm
from mlxbert.weights.families import config_reader, tensor_names
from mlxbert.weights.families.family import Family
from mlxbert.weights.formats.config_json import ConfigJson


def read_bert(config: ConfigJson, activation: str = "gelu") -> EncoderConfig:
    """Reads the facts of a BERT; `activation` is the default activation in transformers."""
    config.only("use_task_id", False, "mlxbert does not run models with task ids (ERNIE)")
    activation = config_reader.activation(config, "hidden_act", activation)
    return config_reader.facts(
        config,
        positions=config_reader.absolute(config),
        heads=config_reader.heads(
            config_reader.head_dropout(config), masked_lm=masked_lm.MaskedLMFacts(Transform(activation, norm=True))
        ),
        type_vocab_size=config_reader.segments(config),
        hidden_act=activation,
    )


# The names of BERT's tensors in other tools for MLX, which follow MLX's own layers:
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
    title="BERT",
    published=(
        "google-bert/bert-base-uncased",
        "google-bert/bert-base-multilingual-cased",
        "sentence-transformers/all-MiniLM-L6-v2",
        "sentence-transformers/LaBSE",
        "BAAI/bge-small-en-v1.5",
        "intfloat/e5-base-v2",
        "intfloat/multilingual-e5-small",
        "Snowflake/snowflake-arctic-embed-m-v1.5",
        "cross-encoder/ms-marco-MiniLM-L6-v2",
    ),
    class_prefixes={"bert": "Bert"},
    facts=read_bert,
    prefixes=("bert.",),
    encoder=tensor_names.encoder(tensor_names.EMBEDDINGS, tensor_names.LAYER, "encoder.layer.{}."),
    parts={
        "pooler": tensor_names.POOLER,
        **tensor_names.heads("masked_lm", "next_sentence", *tensor_names.TASK_HEADS),
    },
    old_spellings=tensor_names.OLD_SPELLINGS | _MLX_SPELLINGS,
    buffers=tensor_names.BUFFERS,
    tied={"cls.predictions.decoder.weight": tensor_names.WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"},
)
