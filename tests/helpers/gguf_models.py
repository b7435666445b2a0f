"""Small random models, one for each architecture of llama.cpp, and their GGUF files read back."""

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import mlxbert
from mlxbert.labels.labels import Labels
from mlxbert.machine.device import mx, nn
from mlxbert.weights.build import parameters
from tests.helpers import tiny
from tests.helpers.st_folder import list_modules
from tests.helpers.vocabularies import put

_SIZES = {
    "vocab_size": len(tiny.VOCAB), "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 96, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
_ENCODER = _SIZES | {"hidden_act": "gelu", "layer_norm_eps": 0.01, "type_vocab_size": 2}
_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
_LLAMA = _SIZES | _ROPE | {"hidden_act": "silu", "rms_norm_eps": 0.01, "num_key_value_heads": 2, "head_dim": 16}
_JINA = _ENCODER | {"model_type": "bert", "position_embedding_type": "alibi", "feed_forward_type": "geglu"}
_NORMED = {"auto_map": {"AutoConfig": "jinaai/jina-bert-v2-qk-post-norm--configuration_bert.JinaBertConfig"}}
_WINDOWS = {
    "full_attention": {"rope_type": "default", "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
}
_GEMMA = {
    "hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": True, "sliding_window": 8, "head_dim": 32,
    "query_pre_attn_scalar": 32, "rope_parameters": _WINDOWS,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
_MOE = {
    "n_embd": 64, "n_layer": 4, "n_head": 4, "n_inner": 96, "n_positions": 64, "layer_norm_epsilon": 0.01,
    "activation_function": "gelu", "num_experts": 4, "moe_top_k": 2, "moe_every_n_layers": 2, "rotary_emb_base": 500,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "prenorm": False,
    "qkv_proj_bias": True, "mlp_fc1_bias": True, "mlp_fc2_bias": True, "type_vocab_size": 1, "model_type": "nomic_bert",
    "vocab_size": len(tiny.VOCAB), "pad_token_id": 0, "causal": False, "use_rms_norm": False,
    "num_shared_experts": 0, "moe_normalize_expert_weights": False, "expert_choice_router": False,
}  # fmt: skip
# By the architecture, or the architecture and what differs.
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": _ENCODER | {"model_type": "bert"},
    "bert, counted": _ENCODER | {"model_type": "roberta", "type_vocab_size": 1, "pad_token_id": 1},
    "nomic-bert": _ENCODER | _ROPE | {"model_type": "nomic_bert", "hidden_act": "silu"},
    "nomic-bert-moe": _MOE,
    "jina-bert-v3": _ENCODER | _ROPE | {"model_type": "jina_embeddings_v3", "type_vocab_size": 1, "pad_token_id": 1},
    "jina-bert-v2": _JINA,
    "jina-bert-v2, normed": _JINA | _NORMED,
    "modern-bert": _SIZES
    | {
        "model_type": "modernbert", "hidden_activation": "gelu", "norm_eps": 0.01, "local_attention": 8,
        "num_hidden_layers": 5, "global_attn_every_n_layers": 3, "rope_parameters": _WINDOWS,
        "classifier_activation": "gelu", "classifier_pooling": "mean",
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 2),
    },
    "neo-bert": {key: value for key, value in _SIZES.items() if key != "max_position_embeddings"}
    | {"model_type": "neobert", "norm_eps": 0.01, "max_length": 64},
    "eurobert": _LLAMA | {"model_type": "eurobert"},
    "qwen3": _LLAMA | {"model_type": "qwen3", "head_dim": 32},
    "qwen3, both directions": _LLAMA | {"model_type": "qwen3", "head_dim": 32, "is_causal": False},
    "gemma-embedding": {key: value for key, value in _LLAMA.items() if key != "hidden_act"}
    | {"model_type": "gemma3_text"}
    | _GEMMA,
}  # fmt: skip


@functools.cache
def _made(name: str, *heads: tuple[str, Labels | None]) -> tuple[tempfile.TemporaryDirectory[str], mlxbert.Model]:
    """Returns a folder that is removed with the object, and the model in its subfolder."""
    made = tempfile.TemporaryDirectory()
    words = put(Path(made.name, "words"), {"vocab.txt": "\n".join(tiny.VOCAB) + "\n"})
    (words / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    model = mlxbert.new_model(CONFIGS[name], words, heads=dict(heads), dtype="float32")
    mx.random.seed(5)

    def drawn(name: str, array: mx.array) -> mx.array:
        draws = mx.random.normal(array.shape)
        if name.endswith("norm.weight"):
            return 1 + 0.1 * draws
        return draws * (0.1 if array.ndim == 1 else 0.5 if "embeddings" in name else 0.15)

    arrays = parameters(model.network).items()
    model.network.update(nn.utils.tree_unflatten([(name, drawn(name, array)) for name, array in arrays]))
    mx.eval(model.network.parameters())
    mlxbert.save(model, Path(made.name, "model"))
    return made, model


def write_model(folder: Path, name: str, heads: dict[str, Labels | None] | None = None) -> mlxbert.Model:
    """Writes a model with random weights far from 0 and 1; returns it, which many tests share."""
    made, model = _made(name, *(heads or {}).items())
    shutil.copytree(Path(made.name, "model"), folder)
    return model


def write_pooling(folder: Path, **settings: Any) -> None:
    list_modules(folder, ("", "Transformer"), ("1_Pooling", "Pooling"))
    put(folder / "1_Pooling", {"config.json": {"word_embedding_dimension": 64} | settings})
