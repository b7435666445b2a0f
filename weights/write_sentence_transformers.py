"""Writes the files in which sentence-transformers and PyLate state how a model computes vectors.

They are written in the older dialect, which every version can read. From version 6 on, sentence-transformers opens
PyLate's files, too.
"""

import json
from pathlib import Path

from mlxbert.errors import ArgumentError, ConfigError
from mlxbert.machine.device import mx, nn
from mlxbert.nn.embedder import Dense, Embedder, EmbeddingConfig, Normalize
from mlxbert.nn.sparse_embedder import SparseEmbedder
from mlxbert.nn.token_embedder import MAXSIM, TokenConfig, TokenEmbedder, TokenSide
from mlxbert.weights.formats import safetensors
from mlxbert.weights.hub.needed_files import CONFIG, MODULES, TRANSFORMER_SETTINGS
from mlxbert.weights.model_folder import SETTINGS
from mlxbert.weights.save import write_file, write_json
from mlxbert.weights.sentence_transformers import ACTIVATIONS, POOLINGS
from mlxbert.weights.sparse_folder import OUTPUT
from mlxbert.weights.static_folder import KIND

_PACKAGE = "sentence_transformers.models"
_FUNCTIONS = {ours: theirs for theirs, ours in ACTIVATIONS.items()}


def write_embedder(
    embedder: Embedder, folder: Path, max_length: int = 0, inner: str = "", *, static: bool = False
) -> None:
    """Writes the modules, the pooling and the prompts of a model.

    Args:
        embedder: How vectors are computed. They must not be pooled with attention weights, which
            sentence-transformers does not support.
        max_length: The maximum input length in tokens; not used for a static model.
        inner: The path of the transformer within the folder.
        static: Whether the model is static; its first module also pools.

    Raises:
        ArgumentError: A static model does not use mean pooling.
    """
    config = embedder.config
    if static and config.poolings != ("mean",):
        raise ArgumentError(
            f"pooling is {'+'.join(config.poolings)!r}, but the files of a static model can only state 'mean'"
        )
    if not static:
        limits = {"max_seq_length": max_length, "do_lower_case": config.lower_case}
        write_json(folder / inner / TRANSFORMER_SETTINGS[0], limits)
    layers = list(embedder.layers)
    if config.normalize and not (layers and isinstance(layers[-1], Normalize)):
        layers.append(Normalize())
    first = [inner] if static else [inner, "1_Pooling"]
    paths = [*first, *(f"{number}_{type(layer).__name__}" for number, layer in enumerate(layers, len(first)))]
    for path in paths[1:]:
        (folder / path).mkdir()
    if not static:
        write_json(folder / paths[1] / CONFIG, _pooling(config, embedder.width))
    for path, layer in zip(paths[len(first) :], layers, strict=True):
        write_layer(layer, folder / path)
    kinds = [KIND if static else "Transformer", *(path.partition("_")[2] for path in paths[1:])]
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"{_PACKAGE}.{kind}"}
        for number, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
    prompt_values = {"prompts": dict(config.prompts), "default_prompt_name": config.default_prompt_name}
    truncated = {} if config.dimensions is None else {"truncate_dim": config.dimensions}
    write_json(folder / SETTINGS, {**prompt_values, "similarity_fn_name": config.similarity, **truncated})


def _pooling(config: EmbeddingConfig, width: int) -> dict[str, object]:
    flags = {flag: name in config.poolings for name, flag in POOLINGS.values()}
    return {"word_embedding_dimension": width, **flags, "include_prompt": config.include_prompt}


def write_layer(layer: nn.Module, folder: Path) -> None:
    """Writes the settings and the weights of a layer into the folder of its module."""
    arrays = dict(nn.utils.tree_flatten(layer.parameters()))
    if isinstance(layer, Normalize):
        return
    if isinstance(layer, Dense):
        out, width = layer.linear.weight.shape
        module = "linear" if layer.activation == "linear" else "activation"  # of torch
        settings = {
            "in_features": width, "out_features": out, "bias": "bias" in layer.linear,
            "activation_function": f"torch.nn.modules.{module}.{_FUNCTIONS[layer.activation]}",
        }  # fmt: skip
        settings |= {"use_residual": True} if layer.has_residual else {}
    else:
        settings, arrays = {"dimension": layer.weight.size}, {f"norm.{name}": array for name, array in arrays.items()}
    write_json(folder / CONFIG, settings)
    mx.eval(arrays)
    write_file(folder / safetensors.SINGLE, arrays, {"format": "pt"})


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


_TRANSFORMER, _DENSE = "sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"


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
        embedder: How the vectors are computed.
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
