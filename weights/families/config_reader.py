"""Reads the facts that most families spell in the same way in `config.json`."""

from dataclasses import fields
from typing import Any

from mlxbert.config import Absolute, Dropout, EncoderConfig, HeadFacts, Initialization, Positions, Transform
from mlxbert.errors import ConfigError
from mlxbert.labels.labels import PROBLEM_TYPES, VECTOR_CLASSIFIER, Labels
from mlxbert.nn.activations import ACTIVATIONS
from mlxbert.nn.heads import OWN_LAYERS, sequence_classifier
from mlxbert.weights.formats.config_json import ConfigJson

MIN_EPS, MAX_DROPOUT = 1e-30, 0.999999  # MLX accepts no norm with eps 0 and no dropout of 1


def generates(config: ConfigJson) -> bool:
    """Whether a configuration describes a language model."""
    return any(name.endswith("ForCausalLM") for name in config.strings("architectures"))


def pooling(config: ConfigJson) -> str:
    """Returns the pooling of a model without modules, as in sentence-transformers.

    A causal model uses the last token, any other model the mean.
    """
    return "last_token" if generates(config) and config.flag("is_causal", default=True) else "mean"


def facts(config: ConfigJson, *, positions: Positions, **own: Any) -> EncoderConfig:
    """Reads the facts that nearly all families spell in the same way.

    The facts in `own`, which are specific to one family, take precedence.
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
        "num_attention_heads": config.integer("num_attention_heads"),
        "intermediate_size": own.get("intermediate_size") or config.integer("intermediate_size"),
        "hidden_act": own.get("hidden_act") or activation(config, "hidden_act", "gelu"),
        "layer_norm_eps": config.number("layer_norm_eps", low=MIN_EPS, high=1.0, default=1e-12),
        "pad_token_id": pad(config, 0),
        "initialization": initialization(config),
    }
    if "own_head_size" not in own:
        head_size(config)
    if "dropout" not in own:
        own["dropout"] = dropout(config)
    return EncoderConfig(**common | own, positions=positions)


def rate(config: ConfigJson, key: str, default: float) -> float:
    """Reads a dropout rate; `null` means the default."""
    return config.number(key, low=0.0, high=MAX_DROPOUT, default=default)


def dropout(config: ConfigJson, hidden: float = 0.1, attention: float = 0.1) -> Dropout:
    """Reads the dropout rates of a BERT; `hidden` and `attention` are the defaults in transformers."""
    hidden = rate(config, "hidden_dropout_prob", hidden)
    attention = rate(config, "attention_probs_dropout_prob", attention)
    return Dropout(embeddings=hidden, attention=attention, attention_output=hidden, feed_forward=hidden)


def head_dropout(config: ConfigJson, hidden: float = 0.1) -> float:
    """Reads the dropout rate of BERT's heads: `classifier_dropout`, or `hidden_dropout_prob` if it is missing."""
    return rate(config, "classifier_dropout", rate(config, "hidden_dropout_prob", hidden))


def heads(rate: float, transform: Transform | None = None, **own: HeadFacts) -> dict[str, HeadFacts]:
    """Returns the facts of the heads of a family in which all heads with labels share one dropout rate.

    If `transform` is given, the classifier of whole texts applies dropout to the vector of the first token, and then
    this transform. Otherwise the input of the classifier is the output of the pooler.
    """
    pooled = None if transform is None else rate
    classifier = sequence_classifier.ClassifierFacts(transform, rate, pooled, None if transform is None else "cls")
    return {"sequence_classifier": classifier, "token_classifier": HeadFacts(dropout=rate), **own}


def initialization(config: ConfigJson) -> Initialization:
    """Reads how new weights are initialized. As in transformers, a standard deviation of 0 means the default."""
    return Initialization(std=config.number("initializer_range", low=0.0, high=1e6, default=0.02) or 0.02)


def absolute(config: ConfigJson, first: int = 0) -> Absolute:
    """Reads the size of a table of position vectors. The first token of a text uses the row `first`."""
    config.only("position_embedding_type", "absolute", "mlxbert runs this family only with 'absolute' positions")
    return Absolute(config.integer("max_position_embeddings", least=first + 1), first)


def head_size(config: ConfigJson) -> int:
    """Returns the width of an attention head."""
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size % num_heads:
        raise config.refuse("num_attention_heads", f"a divisor of the hidden size ({hidden_size})")
    return hidden_size // num_heads


def pad(config: ConfigJson, default: int) -> int:
    """Reads the id of the pad token."""
    return config.integer("pad_token_id", least=0, most=config.integer("vocab_size") - 1, default=default)


def segments(config: ConfigJson, default: int = 2, least: int = 1) -> int:
    """Reads the number of segment types."""
    return config.integer("type_vocab_size", least=least, default=default)


def activation(config: ConfigJson, key: str, default: str) -> str:
    """Reads the name of an activation function."""
    return config.choice(key, ACTIVATIONS, default)


def usable_labels(config: ConfigJson) -> Labels | None:
    """Reads the labels; returns `None` if they are invalid.

    Most tasks need no labels. Building a head with invalid labels reports why they are invalid.
    """
    _problem_type(config)
    if config.get("no_answer_threshold") is not None:
        config.number("no_answer_threshold", low=0, high=1)
    try:
        return labels(config)
    except ConfigError:
        return None


def labels(config: ConfigJson) -> Labels:
    """Reads the labels that a configuration names."""
    vector = config.nested(VECTOR_CLASSIFIER)
    options = {field.name: config.get(field.name, field.default) for field in fields(Labels)[1:]}
    if vector.values:
        options |= {"problem_type": _problem_type(vector), "head_pooling": vector.string("pooling")}
    result = Labels(_own_names(vector) if vector.values else _read_names(config), **options)
    if problem := result.thresholds_problem():
        raise config.refuse("thresholds", problem, hint='remove "thresholds" from the file to use a threshold of 0.5')
    for own_layer in OWN_LAYERS:
        if problem := own_layer.problem(result):
            section, key = (vector, "pooling") if own_layer.alone else (config, own_layer.stem)
            raise section.refuse(
                key, problem, hint=f'remove "{own_layer.stem}" from the file to use the model without this layer'
            )
    return result


def _problem_type(config: ConfigJson) -> str | None:
    if config.get("problem_type") not in (None, *PROBLEM_TYPES):
        raise config.refuse("problem_type", f"one of {', '.join(PROBLEM_TYPES)}")
    value = config.get("problem_type")
    return None if value is None else str(value)


def _own_names(config: ConfigJson) -> tuple[str, ...]:
    names = config.strings("labels")
    if not names or len({*names}) < len(names):
        raise config.refuse("labels", "names of classes without duplicates")
    return names


def _read_names(config: ConfigJson) -> tuple[str, ...]:
    labels = config.get("id2label")
    if labels is None:
        count = config.integer("num_labels", most=10**6, default=2)
        return tuple(f"LABEL_{number}" for number in range(count))
    if not isinstance(labels, dict) or set(labels) != {str(number) for number in range(len(labels))} or not labels:
        raise config.refuse("id2label", "an object with the keys 0, 1, 2 and so on")
    names = tuple(labels[str(number)] for number in range(len(labels)))
    if not all(isinstance(name, str) for name in names):
        raise config.refuse("id2label", "an object of strings")
    return names
