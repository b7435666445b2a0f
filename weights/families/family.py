"""What a model family is, and what all families have in common."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mlxbert.config import (
    Absolute,
    Dropout,
    EncoderConfig,
    HeadConfig,
    HeadDropout,
    Initialization,
    Positions,
    Transform,
)
from mlxbert.errors import ConfigError
from mlxbert.labels.labels import PROBLEM_TYPES, Labels
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.pooling import POOLINGS
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.keymap import Table

MIN_EPS, MAX_DROPOUT = 1e-30, 0.999999  # MLX accepts no norm with eps 0 and no dropout of 1
GELU_MASKED_LM = Transform("gelu", norm=True)  # masked-word heads that ignore hidden_act


@dataclass(frozen=True)
class Family:
    """What is needed to read and write the checkpoints of a family.

    Attributes:
        class_prefixes: The prefix of its class names in transformers, by `model_type`.
        read_config: Reads the facts from a `config.json`.
        prefixes: Prefixes of the encoder's tensors in files that also hold a head, and only there. All are read, the
            first is written.
        encoder: The tensors that every checkpoint of the family has.
        parts: The tensors of the optional parts: the pooler, and heads. A checkpoint has a part if it has a tensor that
            no other part has, or if `architectures` names its class (`HeadSpec.class_name`).
        old_spellings: Patterns (regular expressions) in old names and their current spelling; read only.
        buffers: Patterns (full names without prefix) of tensors that are not learned: position ids.
        ignored: Patterns of tensors that the network does not use: heads of other tasks. `inspect` lists both.
        tied: Copies that must equal the tensor they are tied to (their names without prefix).
        exported: The name in transformers of a tensor (plain name) that is written, where it depends on the
            configuration.
        pooled: Whether the class without a head has the pooler, if the family has one at all.
        modules: Patterns of stems on disk whose modules in transformers have other names in memory, and these names:
            several where a matrix is fused on disk alone. PEFT names adapters by them.
        config_overrides: Keys of `config.json` that are written for transformers where the file is in another dialect;
            `None` for a key that is omitted.
    """

    class_prefixes: Mapping[str, str]
    read_config: Callable[[ConfigJson], EncoderConfig]
    prefixes: tuple[str, ...]
    encoder: Table
    parts: Mapping[str, Table]
    old_spellings: Mapping[str, str] = field(default_factory=dict)
    buffers: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    pooled: bool = True
    modules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    exported: Callable[[ConfigJson, str], str] = lambda config, name: name
    config_overrides: Callable[[ConfigJson, EncoderConfig], dict[str, Any]] = lambda config, facts: {}

    def table(self, parts: Iterable[str]) -> Table:
        """The names of the encoder and of these parts, of those that the family has."""
        return self.encoder + tuple(entry for part in parts for entry in self.parts.get(part, ()))

    def colliding(self, parts: Iterable[str]) -> tuple[str, str] | None:
        """The first two parts that files cannot hold together, because they name a tensor alike."""
        users: dict[str, str] = {}
        for part in parts:
            for name in {name for entry in self.parts.get(part, ()) for name in entry.theirs}:
                other = users.setdefault(name, part)
                if other != part:
                    return other, part
        return None


def read_facts(config: ConfigJson, *, positions: Positions, heads: HeadConfig, **facts: Any) -> EncoderConfig:
    """The facts that all families spell alike, or nearly; `facts` are the family's own and take precedence.

    Raises:
        ConfigError: A value is missing or not supported.
    """
    config.only("is_decoder", False, "mlxbert runs encoders, not decoders")
    config.only("add_cross_attention", False, "mlxbert runs encoders, without cross-attention")
    config.only("pruned_heads", {}, "mlxbert does not run models with pruned heads")
    hidden_size = config.integer("hidden_size")
    common: dict[str, Any] = {
        "vocab_size": config.integer("vocab_size"),
        "hidden_size": hidden_size,
        "embedding_size": hidden_size,
        "layer_schedule": tuple(range(config.integer("num_hidden_layers", most=1000))),
        "num_attention_heads": hidden_size // read_head_size(config),
        "intermediate_size": facts.get("intermediate_size") or config.integer("intermediate_size"),
        "hidden_act": facts.get("hidden_act") or read_activation(config, "hidden_act", "gelu"),
        "layer_norm_eps": config.number("layer_norm_eps", low=MIN_EPS, high=1.0, default=1e-12),
        "pad_token_id": read_pad(config, 0),
        "initialization": read_initialization(config),
    }
    if "dropout" not in facts:
        facts["dropout"] = read_dropout(config)
    return EncoderConfig(**common | facts, positions=positions, heads=heads)


def read_rate(config: ConfigJson, key: str, default: float) -> float:
    """A rate of dropout; `null` means the default."""
    return config.number(key, low=0.0, high=MAX_DROPOUT, default=default)


def read_dropout(config: ConfigJson, hidden: float = 0.1, attention: float = 0.1) -> Dropout:
    """The dropout of BERT; `hidden` and `attention` are the defaults of transformers."""
    hidden = read_rate(config, "hidden_dropout_prob", hidden)
    attention = read_rate(config, "attention_probs_dropout_prob", attention)
    return Dropout(embeddings=hidden, attention=attention, attention_output=hidden, feed_forward=hidden)


def read_head_dropout(config: ConfigJson, hidden: float = 0.1) -> HeadDropout:
    """The dropout of BERT's heads: `classifier_dropout`, or that of the encoder."""
    rate = read_rate(config, "classifier_dropout", read_rate(config, "hidden_dropout_prob", hidden))
    return HeadDropout(classifier=rate, token_classifier=rate)


def read_both_dropouts(config: ConfigJson) -> HeadDropout:
    """The rates of heads with a dense layer: that of BERT's heads, before and after it."""
    dropout = read_head_dropout(config)
    return replace(dropout, pooled=dropout.classifier)


def read_initialization(config: ConfigJson) -> Initialization:
    """How new weights are drawn; a standard deviation of 0 means the default to transformers, too."""
    return Initialization(std=config.number("initializer_range", low=0.0, high=1e6, default=0.02) or 0.02)


def read_absolute(config: ConfigJson, first: int = 0) -> Absolute:
    """A table of position vectors whose first token has the row `first`."""
    config.only("position_embedding_type", "absolute", "mlxbert computes 'absolute' positions only for this family")
    return Absolute(config.integer("max_position_embeddings", least=first + 1), first)


def read_head_size(config: ConfigJson) -> int:
    """The width of one attention head."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise config.refuse("num_attention_heads", f"a divisor of the hidden size ({hidden_size})")
    return hidden_size // num_heads


def read_pad(config: ConfigJson, default: int) -> int:
    """The id of the pad token."""
    return config.integer("pad_token_id", least=0, most=config.integer("vocab_size") - 1, default=default)


def read_segments(config: ConfigJson, default: int = 2, least: int = 1) -> int:
    """The number of segment types."""
    return config.integer("type_vocab_size", least=least, default=default)


def read_activation(config: ConfigJson, key: str, default: str) -> str:
    """The name of an activation."""
    return config.choice(key, ACTIVATIONS, default)


def read_heads(config: ConfigJson, **facts: Any) -> HeadConfig:
    """The labels, as all families spell them, with the family's own facts.

    Raises:
        ConfigError: `problem_type` is unknown, or `no_answer_threshold` is no share.
    """
    if config.get("problem_type") not in (None, *PROBLEM_TYPES):
        raise config.refuse("problem_type", f"one of {', '.join(PROBLEM_TYPES)}")
    if config.get("no_answer_threshold") is not None:
        config.number("no_answer_threshold", low=0, high=1)
    try:
        labels = read_labels(config)
    except ConfigError:  # most tasks do not use labels; those that do are refused, see `validate`
        labels = None
    return HeadConfig(**{"labels": labels, "dropout": read_head_dropout(config)} | facts)


def read_labels(config: ConfigJson) -> Labels:
    """The classes that a configuration names.

    Raises:
        ConfigError: It names them in a way that cannot be used.
    """
    named = ("thresholds", None), ("crf", False), ("no_answer_threshold", None), ("head_pooling", None)
    own = (config.get(*key) for key in named)
    labels = Labels(_read_names(config), config.get("problem_type"), *own)
    if problem := labels.thresholds_problem():
        raise config.refuse("thresholds", problem, hint='remove "thresholds" from it to choose labels from 0.5 on')
    if problem := labels.crf_problem():
        raise config.refuse("crf", problem, hint='remove "crf" from it to use the model without')
    known = [name for name in POOLINGS if name != "attention"]
    if labels.head_pooling is not None and not {*str(labels.head_pooling).split("+")} <= {*known}:
        raise config.refuse("head_pooling", f"one of {', '.join(known)}, or several joined by '+'")
    return labels


def _read_names(config: ConfigJson) -> tuple[str, ...]:
    """The names of the classes, in the order of the outputs."""
    named = config.get("id2label")
    if named is None:
        count = config.integer("num_labels", most=10**6, default=2)
        return tuple(f"LABEL_{number}" for number in range(count))
    if not isinstance(named, dict) or set(named) != {str(number) for number in range(len(named))} or not named:
        raise config.refuse("id2label", "an object with the keys 0, 1, 2 and so on")
    names = tuple(named[str(number)] for number in range(len(named)))
    if not all(isinstance(name, str) for name in names):
        raise config.refuse("id2label", "an object of strings")
    return names


# Models that look like one of ours and are not: run as one, they would give wrong numbers.
_LOOK_ALIKES = {
    "ernie": "a BERT with task ids",
    "ernie_m": "a BERT with other position ids",
    "megatron-bert": "a pre-norm BERT",
    "roberta-prelayernorm": "a pre-norm RoBERTa",
    "xlm-roberta-xl": "a pre-norm XLM-RoBERTa",
    "nezha": "a BERT with relative positions",
    "roformer": "a BERT with another kind of rotary positions",
    "deberta": "version 1, whose attention differs from versions 2 and 3",
    "jina_embeddings_v3": "an XLM-RoBERTa with rotary positions and adapters",
    "convbert": "an ELECTRA with convolutions in its attention",
    "rembert": "a BERT with other embeddings for input and output",
    "mobilebert": "a BERT with bottlenecks",
    "squeezebert": "a BERT with grouped convolutions",
    "ibert": "an integer-only RoBERTa",
    "eurobert": "a bidirectional Llama",
}


def no_family(config: ConfigJson, known: tuple[str, ...]) -> ConfigError:
    """The error for a `config.json` that does not name its family."""
    return config.refuse(
        "model_type",
        "the name of a family",
        hint='if the model is a BERT, add "model_type": "bert"; families: ' + ", ".join(known),
    )


def unknown_family(config: ConfigJson, name: str, known: tuple[str, ...]) -> ConfigError:
    """The error for a `model_type` that mlxbert does not run."""
    alike = f" ({_LOOK_ALIKES[name]})" if name in _LOOK_ALIKES else ""
    return ConfigError(
        f"{config.path}: model_type is {name!r}{alike}, a family mlxbert does not run",
        hint=f"families it runs: {', '.join(known)}",
    )
