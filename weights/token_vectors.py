"""Reads how a model computes token vectors, from the files of four projects.

- PyLate: a Transformer and layers `pylate.models.Dense.Dense`; the rest is in `config_sentence_transformers.json`.
- sentence-transformers from version 6: the modules of a `MultiVectorEncoder`.
- Stanford's ColBERT: a class `HF_ColBERT`, whose weights have a `linear.weight`; the rest is in `artifact.metadata`.
- BGE-M3: `colbert_linear.pt`, next to the modules of its vectors of texts.
"""

import string
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlxbert.errors import CheckpointError, ConfigError
from mlxbert.machine.device import mx, nn
from mlxbert.nn.embedder import Dense, Normalize
from mlxbert.nn.token_embedder import MAXSIM, MEAN_MAXSIM, TOKEN_SIMILARITIES, TokenConfig, TokenEmbedder, TokenSide
from mlxbert.nn.vector_settings import SIMILARITIES
from mlxbert.weights.formats.config_json import ConfigJson
from mlxbert.weights.formats.weight_files import open_weights
from mlxbert.weights.hub.needed_files import CONFIG, METADATA, TOKEN_LINEAR
from mlxbert.weights.model_folder import PROJECTION, SETTINGS, STANFORD_CLASS, ModelFolder, open_folder, read_settings
from mlxbert.weights.module_layouts import TOKEN_MASK
from mlxbert.weights.sentence_transformers import TOKENS, read_layers, set_weights, stated_length

_PYLATE = "ColBERT"  # model_type in the settings
_PYLATE_MAXSIM = "MaxSim"  # what PyLate computes, whatever older versions of it have written as the similarity
_MULTI_VECTOR = "MultiVectorEncoder"
_DEFAULTS = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 32, "document_length": 180}
_PUNCTUATION = tuple(string.punctuation)
_EXPANSION_KEYS = ("strategy", "attend", "token", "length")


def makes_tokens(folder: ModelFolder) -> bool:
    """Whether the files of a folder say that its model makes token vectors."""
    return _layout(folder) is not None


def _layout(folder: ModelFolder) -> str | None:
    """Returns whose files a folder has: `pylate`, `multivector`, `stanford` or `bge`; `None` for other models."""
    model_type = folder.settings.values.get("model_type")
    if model_type == _MULTI_VECTOR:
        return "multivector"
    if model_type == _PYLATE or (folder.layout == "tokens" and "query_prefix" in folder.settings.values):
        return "pylate"
    if STANFORD_CLASS in (folder.described.values.get("architectures") or ()):
        return "stanford"
    return "bge" if (folder.path / TOKEN_LINEAR).is_file() else None


def read_token_embedder(folder: Path | ModelFolder, width: int, *, with_weights: bool = True) -> TokenEmbedder:
    """Reads how a model computes token vectors.

    Args:
        with_weights: Whether to read the weights of layers. Otherwise they are zeros, and only their headers
            are read.

    Raises:
        ConfigError: The model computes no token vectors, or its settings are wrong.
        CheckpointError: The weights of a layer cannot be used.
    """
    folder = open_folder(folder)
    layout = _layout(folder)
    if layout == "pylate":
        return _embedder(_pylate(folder), width, [*_dense(folder, width, with_weights), Normalize()])
    if layout == "multivector":
        return _embedder(_multi_vector(folder), width, _dense(folder, width, with_weights))
    if layout == "stanford":
        return _embedder(_stanford(folder), width, [_projection(folder, width, with_weights), Normalize()])
    if layout == "bge":
        side = TokenSide(skip_first=True, length=stated_length(folder))
        config = TokenConfig(query=side, document=side, similarity=MEAN_MAXSIM)
        return _embedder(config, width, [_bge_linear(folder.path / TOKEN_LINEAR, width, with_weights), Normalize()])
    raise ConfigError(
        f"{folder.path}: the model gives no token vectors",
        hint="use a model for late interaction, such as lightonai/GTE-ModernColBERT-v1, or train one",
    )


def _embedder(config: TokenConfig, width: int, layers: list[nn.Module]) -> TokenEmbedder:
    embedder = TokenEmbedder(config, width, layers)
    embedder.eval()
    return embedder


def _dense(folder: ModelFolder, width: int, with_weights: bool) -> list[nn.Module]:
    """Reads the layers after the transformer; checks that each takes what the one before it gives."""
    modules = [module for module in folder.modules[1:] if module.kind != TOKEN_MASK]
    layers = read_layers(folder, modules, TOKENS, with_weights=with_weights)
    for number, layer in enumerate(layers, 1):
        if isinstance(layer, Dense):
            out, taken = layer.linear.weight.shape
            if taken != width:
                raise ConfigError(
                    f"{folder.path / SETTINGS}: layer {number} takes {taken} values per token, but gets {width}"
                )
            width = out
    return layers


def _pylate(folder: ModelFolder) -> TokenConfig:
    """Reads the settings of PyLate; its defaults take the place of missing ones."""
    settings = ConfigJson(folder.settings.path, _DEFAULTS | _present(folder.settings.values))
    expands = settings.flag("do_query_expansion", default=True)
    attends = settings.flag("attend_to_expansion_tokens", default=False)
    words = settings.strings("skiplist_words") if settings.get("skiplist_words") is not None else _PUNCTUATION
    prompts, name = settings.nested("prompts"), settings.get("default_prompt_name")
    prompt = "" if name is None else prompts.string(str(name))
    length = settings.integer("query_length", most=2**15)
    query = TokenSide(
        marker=settings.string("query_prefix"), prompt=prompt, length=length, expand=length if expands else 0,
        attend=attends,
    )  # fmt: skip
    document = TokenSide(
        marker=settings.string("document_prefix"), prompt=prompt, skipped=words, skips_unknown=True,
        length=settings.integer("document_length", most=2**15),
    )  # fmt: skip
    settings.choice("similarity_fn_name", (_PYLATE_MAXSIM, *SIMILARITIES), default=_PYLATE_MAXSIM)
    lower = folder.transformer_settings.flag("do_lower_case", default=False)
    return TokenConfig(query=query, document=document, lower_case=lower)


def _present(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _multi_vector(folder: ModelFolder) -> TokenConfig:
    """Reads the settings of a `MultiVectorEncoder`."""
    settings, transformer = folder.settings, folder.transformer_settings
    prompts = settings.nested("prompts")
    mask = next((module for module in folder.modules if module.kind == TOKEN_MASK), None)
    masking = ConfigJson(settings.path, {}) if mask is None else read_settings(mask.folder / CONFIG)
    words, kept = masking.strings("skiplist_words"), masking.get("keep_only_token_ids")
    if kept is not None and not (isinstance(kept, list) and all(type(number) is int for number in kept)):
        raise masking.refuse("keep_only_token_ids", "a list of token ids")
    raw = masking.get("skiplist_tasks", ["document"])
    tasks = (
        [raw]
        if isinstance(raw, str)
        else [*ConfigJson(masking.path, {"skiplist_tasks": raw}).strings("skiplist_tasks")]
    )
    limit = stated_length(folder)

    def side(kind: str, **more: Any) -> TokenSide:
        length = transformer.integer(f"{kind}_length", most=2**15) if transformer.get(f"{kind}_length") else limit
        skipped = words if kind in tasks else ()
        return TokenSide(prompt=prompts.string(kind, default=""), skipped=skipped, **{"length": length, **more})

    document = side("document", kept=None if kept is None else tuple(kept))
    query = side("query", **_expansion(transformer.nested("query_expansion")))
    if query.expand and transformer.get("query_expansion")["strategy"] == "min":
        query = replace(query, length=transformer.get("query_length") or limit)
    similarity = settings.choice("similarity_fn_name", TOKEN_SIMILARITIES, default=MAXSIM)
    lower = transformer.flag("do_lower_case", default=False)
    return TokenConfig(query=query, document=document, similarity=similarity, lower_case=lower)


def _expansion(values: ConfigJson) -> dict[str, Any]:
    """Returns the fields of a `TokenSide` about the tokens that fill queries."""
    if not values.values:
        return {}
    if unknown := [key for key in values.values if key not in _EXPANSION_KEYS]:
        raise ConfigError(f"{values.path}: query_expansion has the key {unknown[0]!r:.60}, expected only "
                          f"{', '.join(_EXPANSION_KEYS)}")  # fmt: skip
    values.choice("strategy", ("fixed", "min"))
    length = values.integer("length", most=2**15)
    filler = None if values.get("token") is None else values.string("token")
    return {"expand": length, "length": length, "filler": filler, "attend": values.flag("attend", default=False)}


def _stanford(folder: ModelFolder) -> TokenConfig:
    """Reads the settings of Stanford's ColBERT; its defaults take the place of missing ones."""
    settings = read_settings(folder.transformer / METADATA)
    settings.only("similarity", "cosine", "mlxbert compares token vectors by their cosine")
    length = settings.integer("query_maxlen", most=2**15, default=32)
    skips = settings.flag("mask_punctuation", default=True)
    query = TokenSide(
        marker=settings.string("query_token_id", default="[unused0]"), length=length, expand=length,
        attend=settings.flag("attend_to_mask_tokens", default=False),
    )  # fmt: skip
    document = TokenSide(
        marker=settings.string("doc_token_id", default="[unused1]"), skipped=_PUNCTUATION if skips else (),
        length=settings.integer("doc_maxlen", most=2**15, default=180), skips_unknown=True,
    )  # fmt: skip
    return TokenConfig(query=query, document=document)


def _projection(folder: ModelFolder, width: int, with_weights: bool) -> Dense:
    """Reads the layer that Stanford's ColBERT stores next to the tensors of its encoder."""
    weights = open_weights(folder.transformer, folder.config_json.strings("architectures"), folder.headers)
    info = weights.tensors.get(PROJECTION)
    if info is None or len(info.shape) != 2 or info.shape[1] != width:
        state = "is missing" if info is None else f"has shape {info.shape}"
        raise CheckpointError(f"{folder.transformer}: tensor {PROJECTION!r} {state}, expected shape (size, {width})")
    return _linear({"linear.weight": weights.arrays()[PROJECTION] if with_weights else mx.zeros(info.shape)})


def _bge_linear(path: Path, width: int, with_weights: bool) -> Dense:
    """Reads the layer of BGE-M3, which is a file of its own."""
    from mlxbert.weights.formats.torch import reader as torch_format

    header = torch_format.read_header(path)
    shapes = {name: info.shape for name, info in header.tensors.items()}
    size = next(iter(shapes.get("bias", (0,))), 0)
    if shapes != {"weight": (size, width), "bias": (size,)}:
        raise CheckpointError(
            f"{path}: the tensors are {shapes!r:.200}, expected a weight of shape (size, {width}) and a bias (size,)"
        )
    zeros = {name: mx.zeros(shape) for name, shape in shapes.items()}
    arrays = torch_format.load_arrays(path, header) if with_weights else zeros
    return _linear({f"linear.{name}": arrays[name] for name in shapes})


def _linear(arrays: Mapping[str, mx.array]) -> Dense:
    wide = {name: array.astype(mx.float32) for name, array in arrays.items()}
    mx.eval(wide)  # now: the file may change later
    out, width = wide["linear.weight"].shape
    layer = Dense(width, out, bias="linear.bias" in wide, activation="linear")
    set_weights(layer, wide)
    return layer
