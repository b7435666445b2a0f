"""Writes the files in which sentence-transformers and PyLate state how a model computes vectors.

They are written in the older dialect, which every version can read. From version 6 on, sentence-transformers opens
PyLate's files, too.
"""

import json
from pathlib import Path

from mlxbert.errors import ArgumentError
from mlxbert.machine.device import mx, nn
from mlxbert.nn.embedder import Dense, Embedder, EmbeddingConfig, Normalize
from mlxbert.weights.formats import safetensors
from mlxbert.weights.hub.needed_files import CONFIG, MODULES, TRANSFORMER_SETTINGS
from mlxbert.weights.model_folder import SETTINGS
from mlxbert.weights.save import write_file, write_json
from mlxbert.weights.sentence_transformers import ACTIVATIONS, POOLINGS
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
            f"`pooling` is {'+'.join(config.poolings)!r}, but the files of a static model can only state 'mean'"
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
