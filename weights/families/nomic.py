"""NomicBERT, both in the dialect of its authors and in the dialect of transformers."""

import re
from typing import Any

from mlxbert.config import Biases, EncoderConfig, Experts, Rotation, Transform
from mlxbert.nn.heads import masked_lm
from mlxbert.weights.families import config_reader, rotary, tensor_names
from mlxbert.weights.families.family import Family
from mlxbert.weights.families.keymap import Table, same, split
from mlxbert.weights.formats.config_json import ConfigJson

_GATES, _UNGATED = {"swiglu": "silu", "geglu": "gelu"}, ("gelu",)
_ALIASES = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "layer_norm_eps": "layer_norm_epsilon",
    "hidden_dropout_prob": "resid_pdrop",
    "attention_probs_dropout_prob": "attn_pdrop",
}
# Keys with these prefixes may change the computation: those in `_READ_KEYS` are read, others are rejected.
_CRITICAL_PREFIXES = ("rotary_", "rope_", "attn_", "mlp_", "qkv_", "moe_")
_READ_KEYS = (
    *("rotary_emb_base", "rotary_emb_fraction", "rotary_emb_interleaved", "rotary_emb_scale_base", "rotary_head_dim"),
    *("rotary_scaling_factor", "rope_parameters", "rope_scaling", "rope_theta"),
    *("attn_pdrop", "mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias"),
    *("moe_every_n_layers", "moe_impl", "moe_normalize_expert_weights", "moe_resid_pdrop", "moe_top_k"),
)
_DEFAULT_TRAINED_LENGTH = 2048  # max_trained_positions in the authors' code
_BIASES = ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias")
_MULTIPLE = 256  # the authors' code rounds the default width of the feed-forward up to a multiple of this


def _read(config: ConfigJson) -> EncoderConfig:
    """Reads the facts in either dialect. A file with keys of both dialects is read as in the authors' code."""
    config.only("rope_scaling", None, "mlxbert runs NomicBERT without scaling")
    for key in ("prenorm", "parallel_block", "use_rms_norm", "causal", "rotary_emb_interleaved", "rotary_head_dim"):
        config.only(key, False, f"mlxbert runs NomicBERT without {key}")
    config.only("rotary_emb_fraction", 1, "mlxbert rotates whole heads only (1)")
    config.only("rotary_emb_scale_base", None, "mlxbert does not run models with xPos scaling")
    config.only("register_tokens", 0, "mlxbert does not run models with register tokens")
    config.number("rotary_scaling_factor", low=1.0, high=1e6, default=1.0)  # see `_longest`
    config = config.with_aliases(_ALIASES)
    return _read_authors(config) if "activation_function" in config.values else _read_transformers(config)


def _read_transformers(config: ConfigJson) -> EncoderConfig:
    for key in ("num_experts", "moe_every_n_layers"):
        config.only(key, 0, "NomicBERT has experts only in files with the key activation_function")
    for key in _BIASES:
        config.only(key, False, "NomicBERT has biases only in files with the key activation_function")
    theta = rotary.read_theta(config.nested("rope_parameters"), rotary.read_base(config, "rope_theta", 1000.0))
    activation = config_reader.activation(config, "hidden_act", "silu")
    return _facts(config, activation, theta, config.integer("intermediate_size"), head_bias=True)


def _read_authors(config: ConfigJson) -> EncoderConfig:
    for key in config.values:
        if key.startswith(_CRITICAL_PREFIXES) and key not in _READ_KEYS:
            config.only(key, None, "mlxbert does not know what this key does in NomicBERT")
    heads = config.integer("num_attention_heads")
    config.only("num_heads_kv", heads, f"mlxbert runs NomicBERT with as many key heads as query heads, {heads}")
    function = config.choice("activation_function", (*_GATES, *_UNGATED))
    activation, gated = _GATES.get(function, function), function in _GATES
    config.only("hidden_act", activation, f"activation_function {function!r} means {activation!r}")
    # Without this key some versions of the authors' code do not rotate; the base has two defaults.
    config.number("rotary_emb_fraction", low=1.0, high=1.0)
    theta = rotary.read_base(config, "rotary_emb_base")
    for rope in (config.nested("rope_parameters"), config):
        if rotary.read_theta(rope, theta) != theta:
            raise rope.refuse("rope_theta", f"{theta:g}, the value of rotary_emb_base")
    # The default is 4 times the width, or two thirds of it with gates: then there are three matrices, not two.
    width = 4 * config.integer("hidden_size")
    width = -(-int(2 * width / 3) // _MULTIPLE) * _MULTIPLE if gated else width
    attention, up, down = (config.flag(key, default=False) for key in _BIASES)
    own = {"gated": gated, "biases": Biases(attention, attention, up, down), "experts": _experts(config, gated=gated)}
    # In its authors' code, mlp_fc1_bias also removes the biases of the masked-LM head.
    return _facts(config, activation, theta, config.integer("intermediate_size", default=width), head_bias=up, **own)


def _experts(config: ConfigJson, *, gated: bool) -> Experts | None:
    """Reads the number of experts and the layers that have them; returns `None` if no layer has any.

    Every n-th layer has experts, starting with the second layer.
    """
    every = config.integer("moe_every_n_layers", least=0, default=0)
    layers = range(config.integer("num_hidden_layers", most=1000))
    expert_layers = tuple(layer for layer in layers if every and layer % every == 1)
    if not expert_layers:
        return None
    if gated:
        raise config.refuse("activation_function", "'gelu', because the experts have no gates")
    for key in ("moe_normalize_expert_weights", "expert_choice_router", "num_shared_experts", "moe_resid_pdrop"):
        config.only(key, 0, f"mlxbert runs experts without {key}")  # False equals 0
    count = config.integer("num_experts", least=2, most=2**12)
    return Experts(count, config.integer("moe_top_k", most=count), expert_layers)


def _facts(
    config: ConfigJson, activation: str, theta: float, width: int, *, head_bias: bool, **own: Any
) -> EncoderConfig:
    layers = config.integer("num_hidden_layers", most=1000)
    plain = {"gated": True, "biases": Biases(attention=False, attention_output=False, up=False, down=False)}
    transform = Transform(activation, norm=True, bias=head_bias)
    return config_reader.facts(
        config,
        positions=rotary.read_rotary(config, (Rotation(theta),) * layers, _longest(config)),
        heads=config_reader.heads(
            config_reader.head_dropout(config, 0.0), masked_lm=masked_lm.MaskedLMFacts(transform, bias=head_bias)
        ),
        dropout=config_reader.dropout(config, 0.0, 0.0),
        type_vocab_size=config_reader.segments(config),
        hidden_act=activation,
        intermediate_size=width,
        **plain | own,
    )


def _longest(config: ConfigJson) -> int:
    """Reads the maximum input length: the smallest of all lengths in the file.

    If a batch is longer than the training texts, the authors' code rescales its rotation with the
    `rotary_scaling_factor` and the length of the batch. The vector of a text would then depend on the other texts in
    the batch. mlxbert truncates longer texts instead, so the factor has no effect.
    """
    required = "n_positions" if config.get("n_positions") is not None else "max_position_embeddings"
    trained = _DEFAULT_TRAINED_LENGTH if config.get("rotary_scaling_factor") is not None else None
    keys = ("n_positions", "max_position_embeddings", "max_trained_positions")
    lengths = [config.integer(key) for key in keys if config.get(key) is not None or key == required]
    if config.get("max_trained_positions") is None and trained is not None:
        lengths.append(trained)
    return min(lengths)


def _overrides(config: ConfigJson, facts: EncoderConfig) -> dict[str, Any]:
    """Returns transformers' spelling of the keys that the authors' dialect borrows from GPT-2.

    The result is empty if transformers does not run the model.
    """
    supported = facts.gated and not any((facts.biases.attention, facts.biases.up, facts.biases.down))
    return rotary.transformers_keys(facts) if supported and config.get("activation_function") is not None else {}


def _exported(config: ConfigJson, name: str) -> str:
    """Returns a tensor's name in files. Models without gates, which transformers lacks, use the authors' names."""
    if config.get("activation_function") not in _UNGATED:
        return name
    return re.sub(r"^nomic_bert\.", "bert.", name.replace("mlp.fc11.", "mlp.fc1."))


_LAYER: Table = (
    split(rotary.QKV, "attn.Wqkv"),
    same("attention.output", "attn.out_proj"),
    same("attention_norm", "norm1"),
    same("feed_forward.up", "mlp.fc11"),
    same("feed_forward.gate", "mlp.fc12"),
    same("feed_forward.down", "mlp.fc2"),
    same("feed_forward.router", "mlp.router.layer"),
    same("feed_forward.experts", "mlp.experts.mlp"),
    same("feed_forward", "mlp.experts"),  # the bias of all experts together
    same("feed_forward_norm", "norm2"),
)
_IN_MEMORY = {
    "attn.Wqkv": rotary.QKV_IN_MEMORY,
    "attn.out_proj": ("self_attn.o_proj",),
    "mlp.fc11": ("mlp.up_proj",),
    "mlp.fc12": ("mlp.gate_proj",),
    "mlp.fc2": ("mlp.down_proj",),
}

NOMIC = Family(
    title="NomicBERT",
    published=("nomic-ai/nomic-bert-2048", "nomic-ai/nomic-embed-text-v1.5", "nomic-ai/nomic-embed-text-v2-moe"),
    class_prefixes={"nomic_bert": "NomicBert"},
    facts=_read,
    prefixes=("nomic_bert.", "bert."),
    encoder=tensor_names.encoder(rotary.rotary_embeddings("emb_ln"), _LAYER, "encoder.layers.{}."),
    pooled=False,
    parts={
        "pooler": tensor_names.POOLER,
        **tensor_names.heads(
            *("masked_lm", "sequence_classifier", "token_classifier"),
            masked_lm=masked_lm.SPEC.stems | {"transform.norm": "cls.predictions.transform.layer_norm"},
        ),
    },
    old_spellings={r"\bmlp\.fc1\.": "mlp.fc11."},
    exported=_exported,
    buffers=(*tensor_names.BUFFERS, rotary.FREQUENCIES),
    tied={"cls.predictions.decoder.weight": tensor_names.WORDS, "cls.predictions.decoder.bias": "cls.predictions.bias"},
    modules=rotary.in_memory("encoder.layers.{}.", _IN_MEMORY),
    config_overrides=_overrides,
    foreign=lambda config, facts: config.get("activation_function") is not None and not _overrides(config, facts),
)
