"""What lies beside the weights of a converted model: configuration, vocabulary, modules, licence."""

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers.normalizers import BertNormalizer

from mlxbert.errors import ConfigError
from mlxbert.weights import save
from mlxbert.weights.checkpoint import Checkpoint
from mlxbert.weights.config_json import read_json
from mlxbert.weights.folder import WITH_WEIGHTS, ModelFolder
from mlxbert.weights.formats import safetensors
from mlxbert.weights.formats.files import open_weights
from mlxbert.weights.formats.quantized import KEY, THEIR_KEY, Quantization
from mlxbert.weights.hub.cache import is_commit
from mlxbert.weights.hub.files import CONFIG, SMALL
from mlxbert.weights.tokenizers.files import WHOLE, TokenizerFiles

CARD, SETTINGS = "README.md", "tokenizer_config.json"
_TERMS = ("LICENSE*", "LICENCE*", "NOTICE*")
_DTYPE_KEYS = ("dtype", "torch_dtype")  # what transformers calls it since version 5, and what it did before


def write_config(
    checkpoint: Checkpoint, folder: Path, dtype: str | None, quantization: Quantization | None
) -> dict[str, Any]:
    """Writes `config.json` as it was, but for what is not true of the weights that lie beside it now.

    Args:
        checkpoint: The opened source.
        folder: Where to.
        dtype: What the weights were converted to, one of `FLOATS`, if they were.
        quantization: How they were quantized, if they were.

    Returns:
        The keys that changed and their values; `None` for one that was taken out.
    """
    values = checkpoint.config_json.values
    changed: dict[str, Any] = {}
    changed |= {key: values[key] for key in checkpoint.config_json.added}
    if dtype is not None:
        named = [key for key in _DTYPE_KEYS if key in values] or [_DTYPE_KEYS[0]]
        changed |= {key: save.NAMES[dtype] for key in named if values.get(key) != save.NAMES[dtype]}
    for key, value in checkpoint.family.config_overrides(checkpoint.config_json, checkpoint.config).items():
        if values.get(key) != value:
            changed[key] = value
    changed |= {key: None for key in (KEY, THEIR_KEY) if key in values}
    if quantization is not None:
        if save.is_untied(checkpoint, checkpoint.parts):  # a copy in floats would differ from what is quantized
            changed["tie_word_embeddings"] = None
        changed[KEY] = {"group_size": quantization.group_size, "bits": quantization.bits}
    kept = {key: value for key, value in values.items() if key not in changed}
    written = kept | {key: value for key, value in changed.items() if value is not None}
    _write_json(folder / CONFIG, written)
    return changed


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_files(source: ModelFolder, checkpoint: Checkpoint, folder: Path) -> Iterator[Path]:
    """Copies vocabulary, settings and terms of a model folder, and the settings of its modules.

    Args:
        source: The model folder.
        checkpoint: The checkpoint in it, which may lie in a folder of its own.
        folder: Where to.

    Yields:
        Each file when it is copied.
    """
    places = dict.fromkeys((source.path, checkpoint.folder), SMALL)
    terms = [path for here in places for pattern in _TERMS for path in here.glob(pattern) if is_own(path, source.path)]
    places = dict.fromkeys((module.folder for module in source.modules[1:]), (CONFIG,)) | places
    files = [here / name for here, names in places.items() for name in names]
    for path in (*files, *terms):
        if path.is_file() and path != checkpoint.config_json.path:
            target = folder / path.relative_to(source.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            yield path


def is_own(path: Path, source: Path) -> bool:
    """Whether a file belongs to the model, be it linked to: what lies elsewhere is nobody's to publish."""
    repository = source.resolve().parents[1] if is_commit(source.name) else source.resolve()
    return path.resolve().is_relative_to(repository)


def write_modules(source: ModelFolder, folder: Path, dtype: str | None) -> Iterator[tuple[Path, str | None]]:
    """Writes the weights of modules behind the pooling.

    Args:
        source: The model folder.
        folder: Where to.
        dtype: One of `FLOATS`; `None` leaves them as they are.

    Yields:
        A file that was read, and what changed, in a sentence.

    Raises:
        MlxbertError: A module cannot be read.
    """
    for module in source.modules[1:]:
        if module.kind not in WITH_WEIGHTS:
            continue
        target = folder / module.folder.relative_to(source.path)
        target.mkdir(parents=True, exist_ok=True)
        weights = open_weights(module.folder)
        stored = {info.dtype for info in weights.tensors.values()}
        arrays = {
            name: save.converted(f"{module.folder}: tensor {name!r}", array, dtype) if dtype else array
            for name, array in weights.arrays().items()
        }
        save.write_file(target / safetensors.SINGLE, arrays, {"format": "pt"})
        changes = [f"{weights.format} → safetensors"] if weights.format != "safetensors" else []
        changes += [f"dtype {', '.join(sorted(stored))} → {dtype}"] if dtype and stored != {dtype} else []
        for path in weights.files:
            yield path, f"{module.folder.name}: {', '.join(changes)}" if changes else None


def write_case(files: TokenizerFiles, folder: Path) -> str | None:
    """Says in `tokenizer_config.json` that case counts, where only the vocabulary told.

    transformers lower-cases a vocabulary without settings, a cased one, too; mlxbert does not.

    Returns:
        What changed, in a sentence; `None` if nothing did.
    """
    path = folder / SETTINGS
    settings = read_json(path, ConfigError) if path.is_file() else {}
    if (folder / WHOLE).is_file() or not (folder / "vocab.txt").is_file() or settings.get("do_lower_case") is not None:
        return None
    normalizer = files.tokenizer.normalizer
    if not isinstance(normalizer, BertNormalizer) or normalizer.lowercase:
        return None
    _write_json(path, settings | {"do_lower_case": False})
    return f"{SETTINGS}: do_lower_case is false, as the vocabulary is cased"
