"""The architectures of llama.cpp, and the metadata that describe a model to it.

Which architecture runs a model is decided by its configuration, not by its family: several families compute the same.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from mlxbert.config import (
    Absolute,
    Alibi,
    Biases,
    Convolution,
    Disentangled,
    EncoderConfig,
    PostNorm,
    PreNorm,
    RelativeBias,
    Rotary,
)
from mlxbert.errors import ConfigError
from mlxbert.export.compare.compared_model import OpenedModel
from mlxbert.frozen_dict import FrozenDict

# How llama.cpp pools the hidden states of an input: the numbers in a file, and our names for them.
NONE, MEAN, CLS, LAST, RANK = range(5)
POOLINGS = {"mean": MEAN, "cls": CLS, "last_token": LAST}
POOLING_NAMES = {number: name for name, number in POOLINGS.items()} | {RANK: "classifier"}
ALIBI_BIAS = 8.0  # 2 ** -8 is the smallest slope if the number of heads is a power of 2

_WIDTH = "the width of the model"
GELU = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python")
_NO_BIASES = Biases(attention=False, attention_output=False, up=False, down=False)
# What a setting is unless an architecture says otherwise.
_USUAL: Mapping[str, Any] = FrozenDict({
    "norm": "layer", "gated": False, "experts": False, "causal": False, "windows": False, "query_key_norm": (None,),
    "embedding_norm": True, "embedding_scale": None, "attention_scale": None, "embedding_size": _WIDTH,
    "convolution": None, "shared_layers": False, "wavelength_scale": (1.0,), "grouped_heads": False,
    "own_head_size": False,
})  # fmt: skip


# How messages name the settings, and what they are.
_NOUNS: Mapping[str, str] = FrozenDict({
    "block": "the order of norms is", "positions": "the kind of positions is", "biases": "the layers with a bias are",
    "norm": "the kind of norm is", "gated": "the gate of feed-forward layers is", "experts": "a mixture of experts is",
    "causal": "a causal mask is", "windows": "a window of attention is",
    "query_key_norm": "the norm of queries and keys is",
    "embedding_norm": "the norm of embeddings is", "embedding_scale": "the scale of embeddings is",
    "attention_scale": "the scale of attention is", "embedding_size": "the width of embeddings is",
    "convolution": "a convolution is", "shared_layers": "sharing of weights between layers is",
    "wavelength_scale": "the scale of wavelengths is", "grouped_heads": "sharing of keys between heads is",
    "own_head_size": "a width of heads of its own is", "adjacent": "rotation of adjacent elements is",
    "hidden_act": "hidden_act is",
})  # fmt: skip
_VALUES: Mapping[Any, str] = MappingProxyType({
    PostNorm(): "norms after the sums",
    PostNorm(adds_input_twice=True): "norms after the sums, with the input added twice",
    PreNorm(): "norms before the layers", PreNorm(first_norm=False): "norms before the layers except the first",
    PreNorm(output_norms=True): "norms before and after the layers",
    Absolute: "absolute", Rotary: "rotary", Alibi: "ALiBi",
    RelativeBias: "relative", Disentangled: "disentangled", None: "missing", True: "present", False: "missing",
    "layer": "LayerNorm", "rms": "RMSNorm", "rms_plus_one": "RMSNorm with a weight around 0",
    "head": "one of each head", "all": "one of all heads",
})  # fmt: skip


@dataclass(frozen=True)
class GgufArchitecture:
    """An architecture of llama.cpp."""

    name: str  # the name in the file
    titles: tuple[str, ...]  # the families that it runs, for messages
    activations: tuple[str, ...]  # the activations that it computes
    # The settings that it requires, by name, where they differ from `_USUAL`. A tuple lists choices.
    settings: Mapping[str, Any]
    # The layers whose matrices are stored as one, by the name of the fused matrix.
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classifier: bool = False  # whether it has a layer, an activation and the classes of a text classifier


_QKV = {"attn_qkv": ("attention.query", "attention.key", "attention.value")}
_GATE_UP = {"ffn_up": ("feed_forward.gate", "feed_forward.up")}
_ROTARY: Mapping[str, Any] = {"block": PreNorm(), "positions": Rotary, "biases": _NO_BIASES, "gated": True}
_POST_ROTARY: Mapping[str, Any] = {"block": PostNorm(), "positions": Rotary, "biases": Biases()}
_LLAMA = {**_ROTARY, "norm": "rms", "embedding_norm": False}
_DECODER = {"query_key_norm": "head", "grouped_heads": (False, True), "own_head_size": (False, True)}
ARCHITECTURES = (
    GgufArchitecture(
        "bert",
        ("BERT", "RoBERTa, XLM-RoBERTa, CamemBERT", "DistilBERT", "ELECTRA"),
        GELU,
        {"block": PostNorm(), "positions": Absolute, "biases": Biases()},
        classifier=True,
    ),
    GgufArchitecture("nomic-bert", ("NomicBERT",), ("silu",), {**_ROTARY, "block": PostNorm()}),
    GgufArchitecture("nomic-bert-moe", ("NomicBERT",), GELU, {**_POST_ROTARY, "experts": True}),
    GgufArchitecture("jina-bert-v3", ("Jina's XLM-RoBERTa",), GELU, _POST_ROTARY),
    GgufArchitecture(
        "jina-bert-v2",
        ("JinaBERT", "JinaBERT, queries and keys normed"),
        GELU,
        {
            "block": (PostNorm(), PostNorm(adds_input_twice=True)),
            "positions": Alibi,
            "biases": Biases(up=False),
            "gated": True,
            "query_key_norm": (None, "all"),
        },
    ),
    GgufArchitecture(
        "modern-bert",
        ("ModernBERT",),
        ("gelu", "silu"),
        {
            "block": PreNorm(first_norm=False),
            "positions": Rotary,
            "biases": Biases(**vars(_NO_BIASES) | {"norm": False}),
            "gated": True,
            "windows": (False, True),
        },
        fused={**_QKV, **_GATE_UP},
        classifier=True,
    ),
    GgufArchitecture(
        "neo-bert", ("NeoBERT",), ("silu",), {**_LLAMA, "adjacent": True}, {**_QKV, **_GATE_UP}, classifier=True
    ),
    GgufArchitecture("eurobert", ("EuroBERT",), ("silu",), {**_LLAMA, "grouped_heads": (False, True)}),
    GgufArchitecture("qwen3", ("Qwen3",), ("silu",), {**_LLAMA, **_DECODER, "causal": (False, True)}, classifier=True),
    GgufArchitecture(
        "gemma-embedding",
        ("EmbeddingGemma",),
        ("gelu_pytorch_tanh", "gelu_new"),
        {
            **{**_LLAMA, "block": PreNorm(output_norms=True), "norm": "rms_plus_one", **_DECODER, "windows": True},
            "embedding_scale": "sqrt(hidden_size)",
            "attention_scale": "1 / sqrt(head size)",
        },
    ),
)


def architecture_of(model: OpenedModel) -> GgufArchitecture:
    """Finds the architecture that runs a model; raises `ConfigError` if llama.cpp has none."""
    checkpoint = model.checkpoint
    config, path = checkpoint.config, checkpoint.config_json.path
    found = _found(config) | {"adjacent": checkpoint.family.title == "NeoBERT"}
    near: list[tuple[GgufArchitecture, str]] = []
    for architecture in ARCHITECTURES:
        expected = {"adjacent": False, **_USUAL, **architecture.settings}
        wrong = [name for name, value in expected.items() if not _is(found[name], value)]
        if not wrong and config.hidden_act in architecture.activations:
            return architecture
        if checkpoint.family.title in architecture.titles or not wrong:
            name = wrong[0] if wrong else "hidden_act"
            value = expected[name] if wrong else architecture.activations
            actual = found[name] if wrong else config.hidden_act
            near.append((architecture, f"{_NOUNS[name]} {_text(actual)}, expected {_text(value)}"))
    if near:
        raise ConfigError(f"{path}: {near[0][1]} in a model for llama.cpp ({near[0][0].name})")
    titles = dict.fromkeys(title for architecture in ARCHITECTURES for title in architecture.titles)
    raise ConfigError(
        f"{path}: mlxbert does not write {checkpoint.family.title} models for llama.cpp, expected one of "
        f"{'; '.join(titles)}"
    )


def _found(config: EncoderConfig) -> dict[str, Any]:
    """Returns the settings of a configuration in the terms of `GgufArchitecture.settings`."""
    rotations = config.positions.rotations if isinstance(config.positions, Rotary) else ()
    return {
        **{name: getattr(config, name) for name in ("block", "biases", "norm", "gated", "query_key_norm")},
        **{name: getattr(config, name) for name in ("embedding_norm", "convolution")},
        "positions": type(config.positions),
        "experts": config.experts is not None,
        "causal": any(rotation.causal for rotation in rotations),
        "windows": any(rotation.window for rotation in rotations),
        "wavelength_scale": max((rotation.wavelength_scale for rotation in rotations), default=1.0),
        "embedding_scale": _named(config.embedding_scale, math.sqrt(config.hidden_size), "sqrt(hidden_size)"),
        "attention_scale": _named(config.attention_scale, config.head_size**-0.5, "1 / sqrt(head size)"),
        "embedding_size": _WIDTH if config.embedding_size == config.hidden_size else config.embedding_size,
        "shared_layers": config.layer_schedule != tuple(range(config.num_stored_layers)),
        "grouped_heads": config.num_key_value_heads not in (None, config.num_attention_heads),
        "own_head_size": config.head_size * config.num_attention_heads != config.hidden_size,
    }


def _named(value: float | None, usual: float, name: str) -> float | str | None:
    return name if value is not None and math.isclose(value, usual, rel_tol=1e-3) else value


def _is(value: Any, expected: Any) -> bool:
    return value in expected if isinstance(expected, tuple) else value == expected


def _text(value: Any) -> str:
    choices = value if isinstance(value, tuple) else (value,)
    return " or ".join(
        _other(choice) if isinstance(choice, float) else _VALUES.get(choice) or _other(choice) for choice in choices
    )


def _other(value: Any) -> str:
    """Returns the text of a value without a phrase of its own."""
    if isinstance(value, Biases):
        return ", ".join(name.replace("_", " ") for name, has in vars(value).items() if has) or "none"
    if isinstance(value, PostNorm | PreNorm | Convolution):
        return "another one"
    return str(value)


def metadata(architecture: GgufArchitecture, config: EncoderConfig) -> dict[str, Any]:
    """Returns the metadata of the encoder, without the prefix with the architecture's name."""
    rms = config.norm != "layer"
    values: dict[str, Any] = {
        "context_length": config.max_length,
        "embedding_length": config.hidden_size,
        "block_count": config.num_stored_layers,
        "feed_forward_length": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads or config.num_attention_heads,
        "attention.causal": isinstance(config.positions, Rotary) and config.positions.causal,
        f"attention.layer_norm_{'rms_' if rms else ''}epsilon": config.layer_norm_eps,
    }
    if config.head_size * config.num_attention_heads != config.hidden_size:
        values |= {"attention.key_length": config.head_size, "attention.value_length": config.head_size}
    if architecture.name == "modern-bert":
        values["hidden_activation"] = config.hidden_act
    if isinstance(config.positions, Alibi):
        values["attention.max_alibi_bias"] = ALIBI_BIAS
    if isinstance(config.positions, Rotary):
        values |= _rotary(architecture, config.positions, config.head_size)
    return values | _experts(config)


def _rotary(architecture: GgufArchitecture, positions: Rotary, head_size: int) -> dict[str, Any]:
    rotations = positions.rotations
    wide = next((rotation for rotation in rotations if rotation.window is None), None)
    if wide is None:
        raise ConfigError(
            "each layer attends to a window of tokens, expected a layer that attends to all tokens in a model for "
            "llama.cpp"
        )
    values: dict[str, Any] = {
        "rope.dimension_count": head_size,
        "rope.freq_base": wide.theta,
        "rope.scaling.type": "none",
    }
    local = next((rotation for rotation in rotations if rotation.window is not None), None)
    if local is not None:
        assert local.window is not None
        values |= {
            "rope.freq_base_swa": local.theta,
            "attention.sliding_window": 2 * local.window,  # in both directions together
            "attention.sliding_window_pattern": _pattern(architecture, positions),
        }
    return values


def _pattern(architecture: GgufArchitecture, positions: Rotary) -> int | list[bool]:
    """Returns the period with which a layer attends to all tokens, or a flag for each layer if there is no period.

    The first layer of each period does in ModernBERT, the last one in Gemma.
    """
    local = [rotation.window is not None for rotation in positions.rotations]
    for period in range(2, len(local) + 2):
        place = 0 if architecture.name == "modern-bert" else period - 1
        if local == [layer % period != place for layer in range(len(local))]:
            return period
    return local


def _experts(config: EncoderConfig) -> dict[str, Any]:
    if config.experts is None:
        return {}
    layers = config.experts.layers
    period = layers[1] - layers[0] if len(layers) > 1 else config.num_stored_layers
    if layers != tuple(range(1, config.num_stored_layers, max(period, 2))):
        raise ConfigError(
            f"the layers with experts are {', '.join(map(str, layers))}, expected 1 and every N-th layer after it in a "
            "model for llama.cpp"
        )
    return {
        "expert_count": config.experts.count,
        "expert_used_count": config.experts.used,
        "moe_every_n_layers": max(period, 2),
    }
