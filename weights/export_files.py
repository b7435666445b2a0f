"""What lies beside the weights of a converted model: configuration, vocabulary, modules, licence, card."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers.normalizers import BertNormalizer

from mlxbert.errors import ConfigError
from mlxbert.weights import export, safetensors
from mlxbert.weights.checkpoint import Checkpoint
from mlxbert.weights.config_json import read_json
from mlxbert.weights.hub_files import CONFIG, SMALL
from mlxbert.weights.quantized import KEY, THEIR_KEY, Quantization
from mlxbert.weights.sentence_transformers import read_modules
from mlxbert.weights.tokenizer_files import WHOLE, read_tokenizer
from mlxbert.weights.weight_files import open_weights

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
        dtype: What the weights were converted to, if they were.
        quantization: How they were quantized, if they were.

    Returns:
        The keys that changed and their values; `None` for one that was taken out.
    """
    values = checkpoint.config_json.values
    changed: dict[str, Any] = {}
    own = read_json(checkpoint.config_json.path, ConfigError)
    changed |= {key: value for key, value in values.items() if key not in own}  # what Google leaves unsaid
    if dtype is not None:
        named = [key for key in _DTYPE_KEYS if key in values] or [_DTYPE_KEYS[0]]
        changed |= {key: dtype for key in named if values.get(key) != dtype}
    changed |= {key: None for key in (KEY, THEIR_KEY) if key in values}
    if quantization is not None:
        changed[KEY] = {"group_size": quantization.group_size, "bits": quantization.bits}
    kept = {key: value for key, value in values.items() if key not in changed}
    written = kept | {key: value for key, value in changed.items() if value is not None}
    _write_json(folder / CONFIG, written)
    return changed


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def copy_files(source: Path, checkpoint: Checkpoint, folder: Path) -> None:
    """Copies vocabulary, settings, modules and terms of a model folder; weights of modules become safetensors.

    Args:
        source: The model folder.
        checkpoint: The checkpoint in it, which may lie in a folder of its own.
        folder: Where to.

    Raises:
        MlxbertError: A module cannot be read.
    """
    inner = folder / checkpoint.folder.relative_to(source)
    inner.mkdir(parents=True, exist_ok=True)
    for here, there in {source: folder, checkpoint.folder: inner}.items():
        for name in SMALL:
            if (here / name).is_file() and not (here == checkpoint.folder and name == CONFIG):
                shutil.copyfile(here / name, there / name)
    for pattern in _TERMS:
        for path in source.glob(pattern):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
    for module in read_modules(source)[1:]:
        target = folder / module.folder.relative_to(source)
        target.mkdir(parents=True, exist_ok=True)
        if (module.folder / CONFIG).is_file():
            shutil.copyfile(module.folder / CONFIG, target / CONFIG)
        if module.kind in ("Dense", "LayerNorm"):
            arrays = dict(open_weights(module.folder).arrays())
            export.save(target / safetensors.SINGLE, arrays, {"format": "pt"})


def write_case(checkpoint: Checkpoint, folder: Path) -> str | None:
    """Says in `tokenizer_config.json` that case counts, where only the vocabulary told.

    transformers lower-cases a vocabulary without settings, a cased one, too; mlxbert does not.

    Returns:
        What changed, in a sentence; `None` if nothing did.
    """
    path = folder / SETTINGS
    settings = read_json(path, ConfigError) if path.is_file() else {}
    if (folder / WHOLE).is_file() or not (folder / "vocab.txt").is_file() or settings.get("do_lower_case") is not None:
        return None
    normalizer = read_tokenizer(checkpoint.folder).tokenizer.normalizer
    if not isinstance(normalizer, BertNormalizer) or normalizer.lowercase:
        return None
    _write_json(path, settings | {"do_lower_case": False})
    return f"{SETTINGS}: do_lower_case is false, as the vocabulary is cased"


def write_card(source: Path, folder: Path, title: str, note: str, tags: tuple[str, ...]) -> None:
    """Writes the model card: that of the source with a note behind it, or one of the note alone.

    Args:
        source: The model folder.
        folder: Where to.
        title: Of a card that is new.
        note: Markdown that says what was done.
        tags: Of a card that is new.
    """
    old = source / CARD
    if old.is_file():
        text = old.read_bytes().decode("utf-8", "replace").rstrip()
    else:
        listed = "\n".join(f"- {tag}" for tag in tags)
        text = f"---\ntags:\n{listed}\n---\n\n# {title}"
    (folder / CARD).write_text(f"{text}\n\n{note}\n", encoding="utf-8")
