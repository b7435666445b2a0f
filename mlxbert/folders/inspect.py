"""What is in a model folder, told from its configuration and the headers of its weights alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlxbert.config import EncoderConfig
from mlxbert.device import nn
from mlxbert.errors import MlxbertError
from mlxbert.folders import inventory
from mlxbert.folders.inventory import to_json
from mlxbert.nn.embedder import Embedder
from mlxbert.weights.checkpoint import Checkpoint, open_checkpoint
from mlxbert.weights.config_json import ConfigJson
from mlxbert.weights.formats.files import open_weights
from mlxbert.weights.formats.headers import Header
from mlxbert.weights.sentence_transformers import (
    SETTINGS,
    read_embedder,
    read_modules,
    read_settings,
    transformer_folder,
)
from mlxbert.weights.tokenizers.files import TokenizerFiles, read_tokenizer

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def inspect_folder(folder: Path, headers: Mapping[Path, Header] | None = None) -> dict[str, Any]:
    """Everything that a model folder says of its model, as plain values; no weight is read.

    Keys:
        folder: The folder.
        family, because: What kind of model it is, and what says so.
        architectures: The classes that `config.json` names.
        config: The encoder's facts and what follows from them; what is a kind of its own has a `type`.
        max_length, limited_by, limits: The longest input in tokens, which of the places that name one decides it, and
            what each of them says.
        parts: Of the encoder and of each part behind it: how its tensors are called in the file and in the network,
            their number, the number of parameters, and the `problem`, should it be impossible to load.
        unused: Tensors that become nothing, and why.
        skipped: How many entries of the files are no tensors of a model, what an optimizer needs say, and the name of
            one of them.
        parameters: Their number per part, and in total.
        memory: Bytes that the parameters take, by dtype.
        weights: Their format, how they are stored, in how many bytes, in which files, and whether these are here.
        tokenizer: Its kind, vocabulary, special tokens, whether it lower-cases.
        embedding: How vectors are made: the fields of `EmbeddingConfig`, `size`, `unit` (whether they have length 1),
            the `modules` behind the pooling, `similarity` (what the model's authors compare vectors with) and
            `max_length`; or only the `problem`, should they be impossible.
        labels: Names of the classes by their numbers, as `config.json` has them.
        tensors: Of every tensor its name as transformers has it, dtype, shape, and what it becomes; `stored_as` where
            the file calls it something else.

    Args:
        folder: The model folder.
        headers: Those of weights that are not in it but elsewhere, by where they would lie.

    Raises:
        MlxbertError: The folder is no checkpoint that mlxbert reads, or its encoder cannot be loaded.
    """
    checkpoint = open_checkpoint(transformer_folder(folder), headers)
    files = read_tokenizer(checkpoint.folder)
    embedding = _embedding(folder, checkpoint, headers or {})
    parts = inventory.describe(checkpoint)
    counts, modules = inventory.parameters(checkpoint), _module_parameters(embedding)
    values = checkpoint.config_json.values
    return {
        "folder": str(folder),
        "family": checkpoint.family_name,
        "because": f"{checkpoint.config_json.path.name} says model_type {values.get('model_type')!r}",
        "architectures": values.get("architectures"),
        "config": _facts(checkpoint.config),
        **_limits(checkpoint.config, files, embedding),
        "parts": parts,
        "unused": inventory.unused(checkpoint),
        "skipped": _skipped(checkpoint),
        "parameters": counts | modules | {"total": sum(counts.values()) + sum(modules.values())},
        # What stands behind the pooling computes in float32 always.
        "memory": {dtype: size * sum(counts.values()) + 4 * sum(modules.values()) for dtype, size in _BYTES.items()},
        "weights": _weights(folder, checkpoint, embedding, headers or {}),
        "tokenizer": _tokenizer(checkpoint.config, files),
        "embedding": embedding,
        "labels": to_json(values.get("id2label")),
        "tensors": inventory.tensors(checkpoint),
    }


def _facts(config: EncoderConfig) -> dict[str, Any]:
    """The fields of a configuration, and the properties that follow from them."""
    facts: dict[str, Any] = to_json(config)
    facts.pop("type")
    properties = [name for name, value in vars(type(config)).items() if isinstance(value, property)]
    return facts | {name: to_json(getattr(config, name)) for name in properties}


def _limits(config: EncoderConfig, files: TokenizerFiles, embedding: dict[str, Any]) -> dict[str, Any]:
    """How long an input may be, and who says so; completes what is said of vectors."""
    limits = {"config": config.max_length, "tokenizer": files.max_length}
    longest = min(limit for limit in limits.values() if limit is not None)
    own = embedding.get("max_length")  # goes before that of the tokenizer, as in `Tokenizer.adapted`
    if "problem" not in embedding:
        embedding["max_length"] = longest if own is None else min(own, config.max_length)
    return {
        "max_length": longest,
        "limited_by": [name for name, limit in limits.items() if limit == longest],
        "limits": limits | {"sentence_transformers": own},
    }


def _tokenizer(config: EncoderConfig, files: TokenizerFiles) -> dict[str, Any]:
    normalizer = files.tokenizer.normalizer
    return {
        "kind": type(files.tokenizer.model).__name__,
        "vocab_size": files.tokenizer.get_vocab_size(),
        "word_embeddings": config.vocab_size,
        "special": files.special,
        "lower_case": normalizer is not None and "A" not in normalizer.normalize_str("A"),
        "model_max_length": files.max_length,
    }


def _embedding(folder: Path, checkpoint: Checkpoint, headers: Mapping[Path, Header]) -> dict[str, Any]:
    try:
        embedder = read_embedder(folder, checkpoint.config.hidden_size, headers)
        settings = read_settings(folder / SETTINGS)
    except MlxbertError as problem:  # there is more to a model than vectors
        return {"problem": problem.message}
    facts: dict[str, Any] = to_json(embedder.config)
    facts.pop("type")
    return facts | {
        "size": embedder.size,
        "unit": embedder.unit,
        "modules": _modules(folder, embedder),
        "similarity": _similarity(settings),
    }


def _modules(folder: Path, embedder: Embedder) -> list[dict[str, Any]]:
    found = []
    for module, layer in zip(read_modules(folder)[2:], embedder.layers, strict=True):
        arrays = dict(nn.utils.tree_flatten(layer.parameters()))
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        count = sum(array.size for array in arrays.values())
        place = module.folder.relative_to(folder).as_posix()
        found.append({"kind": module.kind, "folder": place, "shapes": shapes, "parameters": count})
    return found


def _similarity(settings: ConfigJson) -> str | None:
    name = settings.values.get("similarity_fn_name")
    return name if isinstance(name, str) else None


def _skipped(checkpoint: Checkpoint) -> dict[str, Any]:
    names = checkpoint.weights.skipped
    return {"count": len(names), "example": names[0] if names else None}


def _module_parameters(embedding: dict[str, Any]) -> dict[str, int]:
    modules = embedding.get("modules", ())
    return {module["folder"]: module["parameters"] for module in modules if module["parameters"]}


def _weights(
    folder: Path, checkpoint: Checkpoint, embedding: dict[str, Any], headers: Mapping[Path, Header]
) -> dict[str, Any]:
    found = dict(checkpoint.weights.headers)
    for module in _module_parameters(embedding):
        found |= open_weights(folder / module, elsewhere=headers).headers
    used = [name for plain, name in checkpoint.names.items() if plain not in checkpoint.ignored]
    dtypes = sorted({checkpoint.tensors[name].dtype for name in used})
    return {
        "format": checkpoint.weights.format,
        "storage": checkpoint.storage.name if checkpoint.storage else ", ".join(dtypes),
        "bytes": sum(header.size for header in found.values()),
        "files": {path.relative_to(folder).as_posix(): header.size for path, header in found.items()},
        "here": headers.keys().isdisjoint(found),
    }
