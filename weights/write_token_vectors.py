"""Writes the files in which PyLate states how a model computes vectors of tokens.

sentence-transformers from version 6 opens these files, too.
"""

import json
from pathlib import Path

from mlxbert.errors import ConfigError
from mlxbert.nn.embedder import Dense, Normalize
from mlxbert.nn.token_embedder import MAXSIM, TokenConfig, TokenEmbedder, TokenSide
from mlxbert.weights.hub.needed_files import MODULES, TRANSFORMER_SETTINGS
from mlxbert.weights.model_folder import SETTINGS
from mlxbert.weights.save import write_json
from mlxbert.weights.write_sentence_transformers import write_layer

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
            "the model cannot be trained for vectors of tokens, because its settings do not fit into PyLate's files",
            hint="start from a model of PyLate, or from one that gives no vectors of tokens",
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
