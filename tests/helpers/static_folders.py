"""Folders of tiny static models, as model2vec and sentence-transformers write them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.helpers.st_folder import list_modules, write_json

WORDS = ("[PAD]", "[UNK]", "the", "cat", "sat", "on", "mat", "rain", "##s", "a", "man", "eat", ".", "dog", "##ing")
WIDTH = 6
TEXTS = ("The cat sat on the mat.", "", "a zebra eats", "Zebra!", "It rains, it rains", "dog " * 700, "x" * 5000)


def tokenizer(limit: int | None = None, *, ends: bool = False) -> Tokenizer:
    """Returns a WordPiece tokenizer for `WORDS`, with truncation if there is a limit, and perhaps special tokens."""
    made = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    if limit is not None:
        made.enable_truncation(limit)
    if ends:
        made.post_processor = processors.TemplateProcessing(single="[PAD] $A [PAD]", special_tokens=[("[PAD]", 0)])
    return made


def table(rows: int = len(WORDS), seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(rows, WIDTH)).astype(np.float32)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Writes a safetensors file. NumPy's float64 is allowed, which MLX cannot write."""
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "int8": "I8", "int64": "I64", "int32": "I32"}
    header, data = {}, b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        span = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": names[array.dtype.name], "shape": [*array.shape], "data_offsets": span}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def model2vec(
    folder: Path, tensors: Mapping[str, np.ndarray[Any, Any]] | None = None, *, normalize: bool = True, **config: Any
) -> Path:
    values = {"model_type": "model2vec", "normalize": normalize, "hidden_dim": WIDTH} | config
    write_json(folder / "config.json", values)
    tokenizer(512).save(str(folder / "tokenizer.json"))
    write_tensors(folder / "model.safetensors", {"embeddings": table()} if tensors is None else tensors)
    return folder


def module(folder: Path, inner: str = "0_StaticEmbedding", *, limit: int | None = None, normalize: bool = True) -> Path:
    """Writes a folder of sentence-transformers whose first module is a StaticEmbedding in the folder `inner`."""
    (folder / inner).mkdir(parents=True, exist_ok=True)
    tokenizer(limit, ends=True).save(str(folder / inner / "tokenizer.json"))
    write_tensors(folder / inner / "model.safetensors", {"embedding.weight": table()})
    kinds = [(inner, "StaticEmbedding"), *([("1_Normalize", "Normalize")] if normalize else [])]
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    return list_modules(folder, *kinds)
