"""The tiny model in the layouts of sparse models, written without torch."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxbert.machine.device import mx
from tests.helpers.st_folder import list_modules, write_json
from tests.helpers.tiny import CONFIG, save

TEXTS = ("the cat sat on the mat .", "a man went to the store , he bought milk", "Paris is a city", "", "play " * 40)
NEW = "sentence_transformers.base.modules.transformer.Transformer"
OLD = "sentence_transformers.sparse_encoder.models.MLMTransformer"
NEW_POOLING = "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling"
OLD_POOLING = "sentence_transformers.sparse_encoder.models.SpladePooling"
STATIC = "sentence_transformers.sparse_encoder.models.SparseStaticEmbedding"
TASK = {
    "transformer_task": "fill-mask",
    "modality_config": {"text": {"method": "forward", "method_output_name": "logits"}},
    "module_output_name": "token_embeddings",
}


def save_splade(folder: Path, *, old: bool = False, settings: Mapping[str, Any] | None = None, **pooling: Any) -> Path:
    """Writes a SPLADE model; `old` is the older dialect, `pooling` the settings of the pooling."""
    save(folder)
    name = "1_SpladePooling"
    list_modules(folder, ("", OLD if old else NEW), (name, OLD_POOLING if old else NEW_POOLING))
    width = {"word_embedding_dimension" if old else "embedding_dimension": CONFIG["vocab_size"]}
    write_json(folder / name / "config.json", {"pooling_strategy": "max", **width, **pooling})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 32} if old else TASK)
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder", **(settings or {})})
    return folder


def save_routed(folder: Path, *, json_weights: bool = False, root: bool = False, **parameters: Any) -> Path:
    """Writes a model whose queries have static weights, stored as a tensor or in a JSON file."""
    document, query = "" if root else "document_0_MLMTransformer", "query_0_SparseStaticEmbedding"
    save(folder / document)
    write_json(folder / "document_1_SpladePooling" / "config.json", {"pooling_strategy": "max"})
    (folder / query).mkdir()
    shutil.copyfile(folder / document / "vocab.txt", folder / query / "vocab.txt")
    limits = {"tokenizer_class": "BertTokenizer", "model_max_length": CONFIG["max_position_embeddings"]}
    write_json(folder / query / "tokenizer_config.json", limits)
    if json_weights:
        write_json(folder / query / "config.json", {"frozen": True, "path": "idf.json"})
        write_json(folder / query / "idf.json", {"cat": 2.5, "mat": 1.25, "the": 0.125, "[UNK]": 0.5})
    else:
        write_json(folder / query / "config.json", {"frozen": False})
        weights = mx.arange(CONFIG["vocab_size"]).astype(mx.float32) / 8
        mx.save_safetensors(str(folder / query / "model.safetensors"), {"weight": weights})
    types = {query: STATIC, document: OLD, "document_1_SpladePooling": OLD_POOLING}
    structure = {"query": [query], "document": [document, "document_1_SpladePooling"]}
    router = {"types": types, "structure": structure, "parameters": {"default_route": "document", **parameters}}
    write_json(folder / "router_config.json", router)
    write_json(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder"})
    return list_modules(folder, ("", "Router"))


def change_json(path: Path, **changes: Any) -> None:
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes)
