"""Reads how a model folder makes sparse vectors: SPLADE of sentence-transformers, or the linear layer of BGE-M3.

A folder without such files can still make sparse vectors if it has a masked-LM head.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.errors import CheckpointError, ConfigError
from mlxbert.machine.device import mx
from mlxbert.nn.sparse_embedder import SparseConfig, SparseEmbedder, SpladePooling, StaticWeights, TokenWeights
from mlxbert.weights.formats.config_json import ConfigJson, read_json
from mlxbert.weights.formats.headers import FLOATS
from mlxbert.weights.formats.torch import reader as torch_file
from mlxbert.weights.hub.needed_files import CONFIG, SPARSE_LINEAR
from mlxbert.weights.model_folder import ModelFolder, read_settings
from mlxbert.weights.module_layouts import Module
from mlxbert.weights.sentence_transformers import module_weights, stated_length, with_limits, with_prompts

OUTPUT = {"text": {"method": "forward", "method_output_name": "logits"}}
ReadTokenizer = Callable[[ModelFolder], Any]  # returns `TokenizerFiles`
_IGNORED = ("cls", "eos", "sep", "bos", "pad", "unk")  # roles of the tokens that BGE-M3 leaves out
_MOST = 3.0e38  # less than the largest float32


def makes_sparse(folder: ModelFolder) -> bool:
    """Whether the files of a folder say that its model makes sparse vectors."""
    return folder.layout == "sparse" or (folder.transformer / SPARSE_LINEAR).is_file()


def read_sparse(folder: ModelFolder, config: EncoderConfig, read_tokenizer: ReadTokenizer) -> SparseEmbedder:
    """Reads the sparse embedder of a folder, with a function that reads the tokenizer of a folder.

    Raises:
        ConfigError: A file says something that mlxbert does not compute.
        CheckpointError: A file with weights cannot be used.
    """
    if folder.layout == "sparse":
        return _read_splade(folder, config, read_tokenizer)
    if (path := folder.transformer / SPARSE_LINEAR).is_file():
        # BGE-M3 computes dense and sparse vectors in the same pass.
        settings = SparseConfig(stated=True, max_length=stated_length(folder))
        return SparseEmbedder(
            settings, _read_linear(path, config.hidden_size), ignored=_special_ids(read_tokenizer(folder))
        )
    return SparseEmbedder(plain := SparseConfig(), SpladePooling(plain))


def _read_splade(folder: ModelFolder, config: EncoderConfig, read_tokenizer: ReadTokenizer) -> SparseEmbedder:
    routes, limits = folder.routes, folder.transformer_settings
    task = "fill-mask" if routes.documents[0].kind == "MLMTransformer" else "feature-extraction"  # the class's default
    if limits.get("transformer_task", task) != "fill-mask":
        raise limits.refuse("transformer_task", "'fill-mask', whose logits SPLADE pools")
    limits.only("module_output_name", "token_embeddings", "mlxbert reads 'token_embeddings' only")
    limits.only("modality_config", OUTPUT, "mlxbert reads the logits of texts only")
    limits.only("query_expansion", None, "mlxbert does not expand queries")
    settings = with_limits(SparseConfig(stated=True), limits)
    settings = with_prompts(settings, folder, "SparseEncoder")
    top_k = None if folder.settings.get("max_active_dims") is None else folder.settings.integer("max_active_dims")
    settings = _with_pooling(replace(settings, top_k=top_k), routes.documents[1], config.vocab_size)
    queries = _read_static(routes.queries[0], folder, config.vocab_size, read_tokenizer) if routes.queries else None
    return SparseEmbedder(settings, SpladePooling(settings), queries, routes.default)


def _with_pooling(settings: SparseConfig, module: Module, width: int) -> SparseConfig:
    path = module.folder / CONFIG
    values = ConfigJson(path, read_json(path, ConfigError))
    for key in ("embedding_dimension", "word_embedding_dimension"):
        values.only(key, width, f"the model has {width} word embeddings")
    largest = values.choice("pooling_strategy", ("max", "sum"), default="max") == "max"
    activation = values.choice("activation_function", ("relu", "log1p_relu"), default="relu")
    return replace(settings, largest=largest, logarithms=1 + (activation == "log1p_relu"))


def _read_static(module: Module, folder: ModelFolder, width: int, read_tokenizer: ReadTokenizer) -> StaticWeights:
    """Reads the weights of queries, from a tensor or from a JSON file that maps tokens to weights."""
    files = read_tokenizer(ModelFolder(module.folder)).tokenizer
    if files.get_vocab() != read_tokenizer(folder).tokenizer.get_vocab():
        raise ConfigError(
            f"{module.folder}: the vocabulary differs from the vocabulary of documents, expected the same"
        )
    values = read_settings(module.folder / CONFIG)
    if values.get("path") is None:
        arrays = module_weights(module.folder, {"weight": (width,)}, folder.headers)
        if not mx.isfinite(arrays["weight"]).all().item():
            raise CheckpointError(f"{module.folder}: tensor 'weight' has values that are not finite")
        return StaticWeights(arrays["weight"])
    name = values.string("path")
    if "/" in name or "\\" in name or not name.endswith(".json"):
        raise values.refuse("path", "the name of a JSON file in the same folder")
    weights, path = [0.0] * width, module.folder / name
    for token, weight in read_json(path, ConfigError).items():
        number = None
        with suppress(UnicodeEncodeError):  # half of a surrogate pair
            number = files.token_to_id(token)
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.fabs(weight) < _MOST:
            raise ConfigError(f"{path}: the weight of {token!r:.60} is {weight!r:.60}, expected a number")
        if number is None or number >= width:
            raise ConfigError(f"{path}: the token {token!r:.60} is not in the vocabulary, expected only known tokens")
        weights[number] = float(weight)
    return StaticWeights(mx.array(weights, mx.float32))


def _read_linear(path: Path, width: int) -> TokenWeights:
    """Reads BGE-M3's linear layer, which torch saved on its own."""
    header = torch_file.read_header(path)
    expected = {"weight": (1, width), "bias": (1,)}
    shapes = {name: info.shape for name, info in header.tensors.items()}
    if shapes != expected or any(info.dtype not in FLOATS for info in header.tensors.values()):
        raise CheckpointError(f"{path}: the tensors are {shapes!r:.200}, expected floats of the shapes {expected}")
    arrays = torch_file.load_arrays(path, header)
    weight, bias = (arrays[name].astype(mx.float32) for name in ("weight", "bias"))
    mx.eval(weight, bias)  # now: the file may change later
    return TokenWeights(weight[0], bias)


def _special_ids(files: Any) -> frozenset[int]:
    ids = (files.tokenizer.token_to_id(files.special[role]) for role in _IGNORED if role in files.special)
    return frozenset(number for number in ids if number is not None)
