"""The model families: how each one's config reads and what it calls its tensors. A family is an entry, not code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mlxbert.activations import ACTIVATIONS
from mlxbert.config import Absolute, EncoderConfig
from mlxbert.errors import ConfigError
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.keymap import Table, same, within


@dataclass(frozen=True)
class Family:
    """What has to be known of a family to read and write its checkpoints.

    Attributes:
        read_config: Its `config.json` as facts.
        prefix: What stands before the encoder's tensors when a head lies beside them, and only then.
        encoder: The tensors every checkpoint of the family has.
        parts: Those it may have: the pooler, and heads. A part is there when any of its tensors is.
        old_spellings: Endings of old files, read but never written.
        ignored: Patterns (regular expressions, whole names without prefix) of tensors that are no weights of ours:
            buffers and heads of other tasks. `inspect` lists them.
        tied: Copies that must equal the tensor they are tied to (their names without prefix).
    """

    read_config: Callable[[ConfigJson], EncoderConfig]
    prefix: str
    encoder: Table
    parts: Mapping[str, Table]
    old_spellings: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)


def _read_bert_config(config: ConfigJson) -> EncoderConfig:
    config.only("position_embedding_type", "absolute", "mlxbert computes 'absolute' positions only for this family")
    config.only("is_decoder", False, "mlxbert runs encoders, not decoders")
    config.only("add_cross_attention", False, "mlxbert runs encoders, without cross-attention")
    config.only("pruned_heads", {}, "mlxbert does not run models with pruned heads")
    vocab_size = config.integer("vocab_size")
    hidden_size = config.integer("hidden_size")
    heads = config.integer("num_attention_heads")
    if hidden_size % heads:
        raise ConfigError(
            f"{config.path}: num_attention_heads is {heads}, expected a divisor of hidden_size ({hidden_size})"
        )
    return EncoderConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        embedding_size=hidden_size,
        layer_schedule=tuple(range(config.integer("num_hidden_layers", most=1000))),
        num_attention_heads=heads,
        intermediate_size=config.integer("intermediate_size"),
        hidden_act=config.choice("hidden_act", ACTIVATIONS),
        layer_norm_eps=config.number("layer_norm_eps", low=0.0, high=1.0, default=1e-12),
        type_vocab_size=config.integer("type_vocab_size", default=2),
        pad_token_id=config.integer("pad_token_id", least=0, most=vocab_size - 1, default=0),
        positions=Absolute(config.integer("max_position_embeddings")),
        hidden_dropout=config.number("hidden_dropout_prob", low=0.0, high=1.0, default=0.1),
        attention_dropout=config.number("attention_probs_dropout_prob", low=0.0, high=1.0, default=0.1),
    )


_EMBEDDINGS: Table = (
    same("embeddings.word", "embeddings.word_embeddings"),
    same("embeddings.position", "embeddings.position_embeddings"),
    same("embeddings.token_type", "embeddings.token_type_embeddings"),
    same("embeddings.norm", "embeddings.LayerNorm"),
)
_LAYER: Table = (
    same("attention.query", "attention.self.query"),
    same("attention.key", "attention.self.key"),
    same("attention.value", "attention.self.value"),
    same("attention.output", "attention.output.dense"),
    same("attention_norm", "attention.output.LayerNorm"),
    same("feed_forward.up", "intermediate.dense"),
    same("feed_forward.down", "output.dense"),
    same("feed_forward_norm", "output.LayerNorm"),
)
_POOLER: Table = (same("pooler.dense", "pooler.dense"),)
_MASKED_LM: Table = (
    same("heads.masked_lm.dense", "cls.predictions.transform.dense"),
    same("heads.masked_lm.norm", "cls.predictions.transform.LayerNorm"),
    same("heads.masked_lm", "cls.predictions"),  # its bias, one per word; the matrix is the word embeddings
)

FAMILIES: dict[str, Family] = {
    "bert": Family(
        read_config=_read_bert_config,
        prefix="bert.",
        encoder=within("encoder.", "", _EMBEDDINGS + within("layers.{}.", "encoder.layer.{}.", _LAYER)),
        parts={
            "pooler": within("encoder.", "", _POOLER),
            "masked_lm": _MASKED_LM,
            "next_sentence": (same("heads.next_sentence.dense", "cls.seq_relationship"),),
        },
        old_spellings={".gamma": ".weight", ".beta": ".bias"},
        ignored=(r"embeddings\.position_ids", r"classifier\.(weight|bias)", r"qa_outputs\.(weight|bias)"),
        tied={
            "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
    ),
}


def family_of(config: ConfigJson) -> tuple[str, Family]:
    """The family that `model_type` names.

    Raises:
        ConfigError: There is no `model_type`, or mlxbert does not know it.
    """
    name = config.text("model_type")
    if name not in FAMILIES:
        raise ConfigError(
            f"{config.path}: model_type is {name!r}, a family mlxbert does not know; known: {', '.join(FAMILIES)}"
        )
    return name, FAMILIES[name]
