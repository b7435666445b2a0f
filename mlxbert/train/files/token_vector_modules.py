"""Writes the files in which sentence-transformers and PyLate state how a model computes sparse or token vectors."""

import json
from pathlib import Path

from mlxbert.errors import ConfigError
from mlxbert.nn.embedder import Dense, Normalize
from mlxbert.nn.sparse_embedder import SparseEmbedder
from mlxbert.nn.token_embedder import MAXSIM, TokenConfig, TokenEmbedder, TokenSide
from mlxbert.weights.hub.needed_files import CONFIG, MODULES, TRANSFORMER_SETTINGS
from mlxbert.weights.model_folder import SETTINGS
from mlxbert.weights.save import write_json
from mlxbert.weights.sparse_folder import OUTPUT
from mlxbert.weights.write_sentence_transformers import write_layer

_TYPES = {
    "": "sentence_transformers.base.modules.transformer.Transformer",
    "1_SpladePooling": "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling",
}
_TRANSFORMER, _DENSE = "sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"


def write_sparse(embedder: SparseEmbedder, folder: Path, max_length: int, width: int) -> None:
    """Writes the modules and the prompts of a SPLADE model. The checkpoint is in the same folder.

    Args:
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


def check_writable(embedder: TokenEmbedder) -> None:
    """Raises `ConfigError` if PyLate's files cannot say what a model computes."""
    config = embedder.config
    dense, last = embedder.layers[:-1], embedder.layers[-1:]
    query, document = config.query, config.document
    same = TokenConfig(
        query=TokenSide(marker=query.marker, length=query.length, expand=query.expand, attend=query.attend),
        document=TokenSide(
            marker=document.marker, length=document.length, skipped=document.skipped,
            skips_unknown=document.skips_unknown,
        ),
        lower_case=config.lower_case,
    )  # fmt: skip
    fits = query.length is not None and document.length is not None and query.expand in (0, query.length)
    layers = dense and all(isinstance(layer, Dense) for layer in dense) and isinstance(last[0], Normalize)
    if not (fits and layers and config == same and config.similarity == MAXSIM):
        raise ConfigError(
            "the model cannot be trained for token vectors, because its settings do not fit into PyLate's files",
            hint="start from a model of PyLate, or from one that gives no token vectors",
        )


def write_token_embedder(embedder: TokenEmbedder, folder: Path, inner: str = "") -> None:
    """Writes the modules and the settings of a model that passes `check_writable`.

    Args:
        inner: The path of the transformer within the folder.
    """
    check_writable(embedder)
    config, layers = embedder.config, embedder.layers[:-1]
    longest = max(config.query.length or 0, config.document.length or 0)
    write_json(
        folder / inner / TRANSFORMER_SETTINGS[0], {"max_seq_length": longest, "do_lower_case": config.lower_case}
    )
    paths = [f"{number}_Dense" for number in range(1, len(layers) + 1)]
    for path, layer in zip(paths, layers, strict=True):
        (folder / path).mkdir()
        write_layer(layer, folder / path)
    entries = [(inner, _TRANSFORMER), *((path, _DENSE) for path in paths)]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind} for number, (path, kind) in enumerate(entries)
    ]
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
    write_json(
        folder / SETTINGS,
        {
            "model_type": "ColBERT", "prompts": {}, "default_prompt_name": None, "similarity_fn_name": "MaxSim",
            "query_prefix": config.query.marker, "document_prefix": config.document.marker,
            "query_length": config.query.length, "document_length": config.document.length,
            "attend_to_expansion_tokens": config.query.attend, "skiplist_words": list(config.document.skipped),
            "do_query_expansion": config.query.expand > 0,
        },
    )  # fmt: skip
