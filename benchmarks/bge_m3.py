"""Compares the three kinds of vectors of BGE-M3's layout with those of its authors' package, FlagEmbedding.

`python benchmarks/bge_m3.py TEXTS VOCABULARY`: TEXTS has a text per line, of which the first 200 are embedded, and
VOCABULARY is XLM-R's `sentencepiece.bpe.model`. The model is random and narrow: 2 layers of 32 values. Prints the
largest difference of each kind, and in how many texts the sparse vectors have other tokens.

FlagEmbedding 1.4.2 has to be installed with `pip install --no-deps`. With transformers 5, one of its rerankers cannot
be imported, so empty modules take the place of all its rerankers here.
"""

import importlib.machinery
import json
import shutil
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

SIZE = 32
_RERANKERS = "FlagEmbedding.inference.reranker"
_ABSENT = (
    "datasets", "FlagEmbedding.inference.auto_reranker", _RERANKERS, f"{_RERANKERS}.encoder_only",
    f"{_RERANKERS}.decoder_only", f"{_RERANKERS}.decoder_only.base", f"{_RERANKERS}.model_mapping",
)  # fmt: skip


class _Empty(types.ModuleType):
    """A module that has a class of any name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def write_model(folder: Path, vocabulary: str) -> None:
    """Writes a random model in the layout of BGE-M3."""
    import torch
    from transformers import XLMRobertaConfig, XLMRobertaModel

    torch.manual_seed(1)
    sizes = {"hidden_size": SIZE, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 2 * SIZE}
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "vocab_size": 250_002, "type_vocab_size": 1}
    config = XLMRobertaConfig(**sizes, **ids, max_position_embeddings=514, initializer_range=0.2)
    XLMRobertaModel(config).save_pretrained(folder)
    for name, size in (("sparse", 1), ("colbert", SIZE)):
        torch.save(torch.nn.Linear(SIZE, size).state_dict(), folder / f"{name}_linear.pt")
    shutil.copy(vocabulary, folder / "sentencepiece.bpe.model")
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    files = {
        "tokenizer_config.json": {"tokenizer_class": "XLMRobertaTokenizer", "model_max_length": 512},
        "1_Pooling/config.json": {"word_embedding_dimension": SIZE, "pooling_mode_cls_token": True},
        "modules.json": [
            {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for number, (path, kind) in enumerate(modules)
        ],
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))


def main(source: str, vocabulary: str) -> None:
    """Prints the differences."""
    for name in _ABSENT:
        sys.modules[name] = _Empty(name)
    from FlagEmbedding.inference.embedder.encoder_only.m3 import M3Embedder

    import mlxbert

    texts = Path(source).read_text(encoding="utf-8").splitlines()[:200]
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder), vocabulary)
        theirs = M3Embedder(folder, use_fp16=False, devices="cpu", normalize_embeddings=True).encode(
            texts, return_dense=True, return_sparse=True, return_colbert_vecs=True, max_length=512
        )
        model = mlxbert.load(folder, task="embed", dtype="float32", device="cpu")
        dense = abs(mlxbert.embed(model, texts) - theirs["dense_vecs"]).max()
        pairs = zip(mlxbert.embed_tokens(model, texts), theirs["colbert_vecs"], strict=True)
        tokens = max(abs(ours - other).max() for ours, other in pairs)
        sparse, others = 0.0, 0
        for ours, other in zip(mlxbert.embed_sparse(model, texts), theirs["lexical_weights"], strict=True):
            found = dict(zip(map(str, ours.ids.tolist()), ours.values.tolist(), strict=True))
            others += found.keys() != other.keys()
            sparse = max([sparse, *(abs(found[token] - other[token]) for token in found.keys() & other.keys())])
    print(f"{len(texts)} texts: dense {dense:.1e}, tokens {tokens:.1e}, sparse {sparse:.1e}, other tokens in {others}")


if __name__ == "__main__":
    main(*sys.argv[1:])
