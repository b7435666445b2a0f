"""Writes a trained model as a folder for mlxbert, transformers, sentence-transformers and PyLate."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from mlxbert.errors import ConfigError
from mlxbert.folders import copied_files
from mlxbert.folders.atomic_folder import MARKER
from mlxbert.folders.save import embedder_of_head, has_own_head, seal, write_checkpoint
from mlxbert.frozen_dict import FrozenDict
from mlxbert.model import Model
from mlxbert.nn.embedder import Dense, Embedder, Normalize
from mlxbert.nn.sparse_embedder import SparseEmbedder
from mlxbert.nn.token_embedder import MAXSIM, TokenConfig, TokenEmbedder, TokenSide
from mlxbert.weights import save as weights
from mlxbert.weights.hub.needed_files import CONFIG, MODULES, TRANSFORMER_SETTINGS
from mlxbert.weights.model_folder import SETTINGS
from mlxbert.weights.save import write_json
from mlxbert.weights.sparse_folder import OUTPUT
from mlxbert.weights.write_sentence_transformers import write_embedder, write_layer

WriteWeights = Callable[[Path], None]


def write_trained(
    model: Model,
    partial: Path,
    describe: Callable[[Path], Mapping[str, str]],
    keys: Mapping[str, object] = FrozenDict(),
    embedder: Embedder | SparseEmbedder | TokenEmbedder | None = None,
    adapter: WriteWeights | None = None,
) -> None:
    """Writes a trained model into an empty folder that is moved into place later.

    `describe` is called with the folder once it can be loaded, and returns the content of more files by name, such as
    the model card. `keys` are more keys for `config.json`; the value `None` removes a key. Without an `embedder`, no
    modules are written. `adapter` is called in place of writing all weights.
    """
    inner = copied_files.place_of_encoder(None, own=has_own_head(model))
    (partial / MARKER).touch()
    (partial / inner).mkdir(exist_ok=True)
    copied_files.copy_vocabulary(model.files, partial / inner)
    copied_files.copy_licenses(model.files, partial)
    copied_files.write_casing(model.tokenizer.files, partial / inner)
    if adapter is None:
        tensors = weights.plan_network(model.architecture, model.network)
        write_checkpoint(model, partial / inner, tensors, None, weights.parse_size("5GB"), keys)
        static = model.config.is_static
        if isinstance(embedder, SparseEmbedder):
            limit = embedder.config.max_length or model.tokenizer.max_length
            write_sparse(embedder, partial, limit, model.config.vocab_size)
        elif isinstance(embedder, TokenEmbedder):
            write_token_embedder(embedder, partial, inner)
        elif embedder is not None or inner or static:
            embedder = embedder or embedder_of_head(model)
            limit = embedder.config.max_length or model.tokenizer.max_length
            write_embedder(embedder, partial, limit, inner, static=static)
    else:
        adapter(partial)
        changed = weights.config_changes(model.architecture, None)
        changed |= weights.network_changes(model.architecture, model.network)
        weights.write_config(model.architecture, partial, changed | dict(keys))
    for name, content in describe(partial).items():
        (partial / name).write_text(content, encoding="utf-8")
    seal(model, partial, modules=False)


_TYPES = {
    "": "sentence_transformers.base.modules.transformer.Transformer",
    "1_SpladePooling": "sentence_transformers.sparse_encoder.modules.splade_pooling.SpladePooling",
}
_TRANSFORMER, _DENSE = "sentence_transformers.models.Transformer", "pylate.models.Dense.Dense"


def write_sparse(embedder: SparseEmbedder, folder: Path, max_length: int, width: int) -> None:
    """Writes the modules and the prompts of a SPLADE model with `width` word embeddings, next to its checkpoint."""
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
    _write_modules(folder, _TYPES)
    prompts = {"prompts": dict(config.prompts), "default_prompt_name": config.default_prompt_name}
    limit = {} if config.top_k is None else {"max_active_dims": config.top_k}
    settings = {"model_type": "SparseEncoder", **prompts, "similarity_fn_name": config.similarity, **limit}
    write_json(folder / SETTINGS, settings)


def _write_modules(folder: Path, types: Mapping[str, str]) -> None:
    """Writes the list of modules, given the type of each path."""
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (path, kind) in enumerate(types.items())
    ]
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")


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
    """Writes the modules and the settings of a model that passes `check_writable`; `inner` holds the transformer."""
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
    _write_modules(folder, {inner: _TRANSFORMER} | dict.fromkeys(paths, _DENSE))
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
