"""Writes the files in which sentence-transformers states how a model computes sparse vectors."""

import json
from pathlib import Path

from mlxbert.nn.sparse_embedder import SparseEmbedder
from mlxbert.weights.hub.needed_files import CONFIG, MODULES, TRANSFORMER_SETTINGS
from mlxbert.weights.model_folder import SETTINGS
from mlxbert.weights.save import write_json
from mlxbert.weights.sparse_folder import OUTPUT

_TYPES = {
    "": "sentence_transformers.base.modules.transformer.Transformer",
    "1_SpladePooling": "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling",
}


def write_sparse(embedder: SparseEmbedder, folder: Path, max_length: int, width: int) -> None:
    """Writes the modules and the prompts of a SPLADE model. The checkpoint is in the same folder.

    Args:
        embedder: How the vectors are computed.
        max_length: The maximum input length in tokens.
        width: The number of word embeddings.
    """
    config = embedder.config
    limits = {"max_seq_length": max_length, "do_lower_case": config.lower_case}
    output = {"transformer_task": "fill-mask", "modality_config": OUTPUT, "module_output_name": "token_embeddings"}
    write_json(folder / TRANSFORMER_SETTINGS[0], {**output, **limits})
    (folder / "1_SpladePooling").mkdir()
    pooling = {
        "pooling_strategy": "max" if config.largest else "sum",
        "activation_function": "relu" if config.logarithms == 1 else "log1p_relu",
        "embedding_dimension": width,
    }
    write_json(folder / "1_SpladePooling" / CONFIG, pooling)
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(_TYPES.items())
    ]
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
    prompts = {"prompts": dict(config.prompts), "default_prompt_name": config.default_prompt_name}
    limit = {} if config.top_k is None else {"max_active_dims": config.top_k}
    settings = {"model_type": "SparseEncoder", **prompts, "similarity_fn_name": config.similarity, **limit}
    write_json(folder / SETTINGS, settings)
