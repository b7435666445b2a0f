"""Folders of tiny random models that give token vectors, in the layouts of four projects, and texts for them.

The weights come from numpy's generator, whose numbers never change, so that stored vectors of the peers stay valid.
"""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from mlxbert.machine.device import mx
from tests.helpers import torch_files
from tests.helpers.st_folder import list_modules, write_json
from tests.helpers.tiny import CONFIG, VOCAB, random_network, save, tensors_of, tiny_config

QUERIES = ("the cat sat on a mat ?", "the dog of paris went to a store in tokyo , " * 4, "", "milk !")
DOCUMENTS = (
    "The cat , a dog ; sat.",
    "he bought milk , in the largest city . " * 6,
    "",
    ". , !",
    "unknownword [MASK] cat",
)
WORDS = [*VOCAB, "[unused0]", "[unused1]", "query", ":", "?"]
WIDTH, SIZE = CONFIG["hidden_size"], 8
_GOLDENS = Path(__file__).parents[1] / "weights" / "goldens"
_PYLATE_DENSE = "pylate.models.Dense.Dense"
_FIRST = ("", "Transformer")
_ST = "sentence_transformers.base.modules"


def _arrays(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, mx.array]:
    generator = np.random.default_rng(seed)
    return {name: mx.array(generator.normal(0, 0.3, shape).astype(np.float32)) for name, shape in shapes.items()}


@functools.cache
def _shapes(words: int) -> Mapping[str, tuple[int, ...]]:
    network = random_network(tiny_config(vocab_size=words), heads=())
    return {name: array.shape for name, array in tensors_of(network).items()}


def encoder(
    folder: Path, *, added: tuple[str, ...] = (), prefix: str = "", more: Mapping[str, Any] | None = None
) -> Path:
    """Writes the tiny encoder with its vocabulary; `added` are tokens that text does not hold."""
    words = [*WORDS, *added]
    config = {**CONFIG, "vocab_size": len(words), "architectures": ["BertModel"], **(more or {})}
    save(folder, {prefix + name: array for name, array in _arrays(_shapes(len(words)), 7).items()}, config, WORDS)
    tokenizer = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.add_tokens([AddedToken(word, normalized=True) for word in added])
    values = json.loads(tokenizer.to_str())
    special = {name: {"id": name, "ids": [WORDS.index(name)], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    first, last = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
    pair = {"Sequence": {"id": "B", "type_id": 1}}
    values["post_processor"] = {
        "type": "TemplateProcessing", "special_tokens": special,
        "single": [first, {"Sequence": {"id": "A", "type_id": 0}}, last],
        "pair": [
            first, {"Sequence": {"id": "A", "type_id": 0}}, last, pair, {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
        ],
    }  # fmt: skip
    write_json(folder / "tokenizer.json", values)
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "pad", "cls", "sep", "mask")}
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True, **roles})
    return folder


def _dense(folder: Path, width: int, out: int, seed: int, **settings: Any) -> None:
    config = {
        "in_features": width, "out_features": out, "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity", **settings,
    }  # fmt: skip
    shapes = {"linear.weight": (out, width)} | ({"linear.bias": (out,)} if config["bias"] else {})
    shapes |= {"residual.weight": (out, width)} if config.get("use_residual") and out != width else {}
    write_json(folder / "config.json", config)
    mx.save_safetensors(str(folder / "model.safetensors"), _arrays(shapes, seed))


def _pylate(folder: Path, *, chained: bool = False, added: tuple[str, ...] = (), **settings: Any) -> Path:
    encoder(folder, added=added)
    layers = [(WIDTH, WIDTH), (WIDTH, SIZE)] if chained else [(WIDTH, SIZE)]
    for number, (width, out) in enumerate(layers, 1):
        first = {"bias": True, "activation_function": "torch.nn.modules.activation.GELU"} if width == out else {}
        _dense(folder / f"{number}_Dense", width, out, number, use_residual=chained, **first)
    list_modules(folder, _FIRST, *((f"{number}_Dense", _PYLATE_DENSE) for number in range(1, len(layers) + 1)))
    marks = {"query_prefix": "[unused0]", "document_prefix": "[unused1]"}
    defaults = {"query_length": 16, "document_length": 24, "prompts": {}, "similarity_fn_name": "MaxSim"}
    write_json(folder / "config_sentence_transformers.json", {"model_type": "ColBERT", **marks, **defaults, **settings})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 23, "do_lower_case": False})
    return folder


def _multi_vector(
    folder: Path, mask: Mapping[str, Any], settings: Mapping[str, Any], transformer: Mapping[str, Any]
) -> Path:
    encoder(folder)
    _dense(folder / "1_Dense", WIDTH, SIZE, 1, module_input_name="token_embeddings")
    write_json(folder / "2_MultiVectorMask" / "config.json", mask)
    of_tokens = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}
    write_json(folder / "3_Normalize" / "config.json", of_tokens)
    masked = "sentence_transformers.multi_vector_encoder.modules.multi_vector_mask.MultiVectorMask"
    others = ("1_Dense", f"{_ST}.dense.Dense"), ("3_Normalize", f"{_ST}.normalize.Normalize")
    list_modules(folder, _FIRST, *others, ("2_MultiVectorMask", masked))
    write_json(folder / "config_sentence_transformers.json", {"model_type": "MultiVectorEncoder", **settings})
    write_json(folder / "sentence_bert_config.json", {"transformer_task": "feature-extraction", **transformer})
    return folder


def _stanford(folder: Path) -> Path:
    encoder(folder, prefix="bert.", more={"architectures": ["HF_ColBERT"]})
    weights: Any = mx.load(str(folder / "model.safetensors"))
    weights |= _arrays({"linear.weight": (SIZE, WIDTH)}, 1)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "pt"})
    facts = {
        "query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 12, "doc_maxlen": 20,
        "attend_to_mask_tokens": False, "mask_punctuation": True,
    }  # fmt: skip
    write_json(folder / "artifact.metadata", facts)
    return folder


def bge_m3(folder: Path, *, size: int = 8) -> Path:
    """Writes a model with a vector of each text and its token vectors, in the files of BGE-M3."""
    encoder(folder)
    layer = np.random.default_rng(2).normal(size=(size, WIDTH)).astype(np.float32)
    arrays = {"weight": mx.array(layer), "bias": mx.zeros(size)}
    (folder / "colbert_linear.pt").write_bytes(torch_files.saved(arrays))
    list_modules(folder, _FIRST, ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_cls_token": True}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    return folder


PYLATE: Mapping[str, Callable[[Path], Path]] = {
    "usual": _pylate,
    "added tokens": lambda folder: _pylate(
        folder, added=("[Q] ", "[D] "), query_prefix="[Q] ", document_prefix="[D] ", skiplist_words=["dog", "absent"]
    ),
    "attending": lambda folder: _pylate(folder, attend_to_expansion_tokens=True),
    "not filled": lambda folder: _pylate(folder, do_query_expansion=False, skiplist_words=[]),
    "chained": lambda folder: _pylate(folder, chained=True),
    "without markers": lambda folder: _pylate(folder, query_prefix="", document_prefix=""),
    "stanford": _stanford,
}
MULTI_VECTOR: Mapping[str, Callable[[Path], Path]] = {
    "fixed": lambda folder: _multi_vector(
        folder, {"skiplist_words": [",", "absent"]}, {"prompts": {"query": "query : ", "document": ""}},
        {"query_expansion": {"strategy": "fixed", "length": 16}, "document_length": 20},
    ),
    "min": lambda folder: _multi_vector(
        folder, {"skiplist_words": [","], "skiplist_tasks": ["query", "document"]},
        {"similarity_fn_name": "meanmaxsim"},
        {"query_expansion": {"strategy": "min", "length": 10, "attend": True, "token": "[unused1]"},
         "query_length": 14},
    ),
    "some ids": lambda folder: _multi_vector(
        folder, {"keep_only_token_ids": [2, 5, 6]}, {}, {"query_length": 8, "document_length": 12}
    ),
    # PyLate also skips the unknown token if a word of the list is not in the vocabulary.
    "of PyLate": lambda folder: _pylate(folder, skiplist_words=[",", "."]),
}  # fmt: skip
PEERS = {"pylate": PYLATE, "multi_vector": MULTI_VECTOR}


def golden(peer: str) -> dict[str, dict[str, list[Any]]]:
    """Returns the stored vectors of a peer: by layout, for `query` and `document`, an array of each text."""
    stored: dict[str, dict[str, list[Any]]] = json.loads((_GOLDENS / f"tokens_{peer}.json").read_text("utf-8"))
    return stored


def write_golden(peer: str, vectors: Mapping[str, Any]) -> None:
    path = _GOLDENS / f"tokens_{peer}.json"
    path.write_text(json.dumps(vectors, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")


def rounded(vectors: Any) -> list[list[float]]:
    return [[float(f"{value:.7g}") for value in row] for row in np.asarray(vectors, np.float64).tolist()]
