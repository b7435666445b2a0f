"""Copies the files of a converted model other than its weights: configuration, vocabulary, modules, licenses."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from tokenizers.normalizers import BertNormalizer

from mlxbert.errors import ConfigError
from mlxbert.labels.labels import VECTOR_CLASSIFIER
from mlxbert.weights import save
from mlxbert.weights.families.registry import family_of, read_architecture
from mlxbert.weights.formats import safetensors
from mlxbert.weights.formats.config_json import read_config, read_json, read_json_list
from mlxbert.weights.formats.weight_files import open_weights
from mlxbert.weights.hub.cache import is_commit
from mlxbert.weights.hub.needed_files import CONFIG, MODULES, ROUTER, SMALL, TRANSFORMER_SETTINGS, VOCABULARY
from mlxbert.weights.model_folder import SETTINGS as ST_SETTINGS, ModelFolder
from mlxbert.weights.module_layouts import CUSTOM, FOR_TRAINING, STATIC, WITH_WEIGHTS
from mlxbert.weights.sentence_transformers import read_embedder
from mlxbert.weights.tokenizers.tokenizer_files import TOKENIZER_JSON, TokenizerFiles
from mlxbert.weights.write_sentence_transformers import write_embedder

CARD, SETTINGS = "README.md", "tokenizer_config.json"
ENCODER = "encoder"  # the folder of an encoder whose head does not exist in transformers
_VECTOR_FILES = (MODULES, ROUTER, ST_SETTINGS)
LICENSES = ("LICENSE*", "LICENCE*", "NOTICE*")


def place_of_encoder(source: ModelFolder | None, *, own: bool) -> str:
    """Returns the subfolder for the encoder: the same as in the source, unless that would mislead transformers.

    An encoder with a head that only mlxbert has goes into a subfolder. At the top, transformers would load it with a
    random classifier. In a subfolder, transformers finds no model, and sentence-transformers finds the encoder through
    `modules.json`.

    Args:
        source: The folder that is copied; `None` for a new model.
        own: Whether the model has a head that does not exist in transformers.

    Returns:
        The relative path of the subfolder; empty for the folder itself.
    """
    inner = "" if source is None else source.transformer.relative_to(source.path).as_posix().removeprefix(".")
    if own:
        return inner or ENCODER
    if source is not None and source.is_static:
        return ""  # model2vec reads a table with the names of model2vec at the top only
    moved = source is not None and inner == ENCODER and VECTOR_CLASSIFIER in read_config(source.transformer).values
    return "" if moved else inner


def copy_files(source: ModelFolder, folder: Path, inner: str, *, vectors: bool = True) -> Iterator[Path]:
    """Copies the vocabulary, settings and licenses of a model folder, and the settings of its modules.

    Args:
        inner: The subfolder of the encoder (see `place_of_encoder`).
        vectors: Whether to copy the files that say how the model makes vectors.

    Yields:
        The path of each source file after it was copied.
    """
    in_code = family_of(source.config_json)[1].embeds_in_code and len(source.modules) < 2
    names_by_folder = dict.fromkeys((source.path, source.transformer), SMALL)
    if vectors:
        names_by_folder = dict.fromkeys((module.folder for module in source.modules[1:]), (CONFIG,)) | names_by_folder
        names_by_folder |= {module.folder: _files_of_queries(module.folder) for module in source.routes.queries}
    files = [inner / name for inner, names in names_by_folder.items() for name in names]
    for path in (*files, *_licenses(source)):
        left_out = path.name in _VECTOR_FILES and (in_code or not vectors)
        if path.is_file() and path != source.transformer / CONFIG and not left_out:
            target = folder / path.relative_to(source.path)
            if path.parent == source.transformer and path.name in (*TRANSFORMER_SETTINGS, *VOCABULARY):
                target = folder / inner / path.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            if path.name == MODULES and source.has_modules:
                _change_modules(target, None if source.path / inner == source.transformer else inner)
            yield path
    if in_code and source.own_adapter is not None:  # the adapter was merged into the weights
        config = read_architecture(source.config_json).config
        write_embedder(read_embedder(source, config.hidden_size), folder, config.max_length)
    elif source.is_static and vectors and not (source.path / MODULES).is_file():  # for sentence-transformers
        write_embedder(read_embedder(source, source.config_json.integer("hidden_size")), folder, static=True)
    elif source.own_adapter is not None:  # the prompt of the adapter becomes the default
        settings = source.settings.values
        prompts = settings.get("prompts") or source.config_json.get("task_instructions", {})
        default_prompt = {"default_prompt_name": source.own_adapter} if source.own_adapter in prompts else {}
        save.write_json(folder / ST_SETTINGS, {**settings, "prompts": prompts, **default_prompt})


def _files_of_queries(folder: Path) -> tuple[str, ...]:
    path = read_json(folder / CONFIG, ConfigError).get("path") if (folder / CONFIG).is_file() else None
    return (CONFIG, *VOCABULARY, *([path] if isinstance(path, str) else []))


def _change_modules(path: Path, inner: str | None) -> None:
    """Updates the entry of the transformer in `modules.json`.

    Its path becomes `inner`, unless that is `None`. Jina's custom class becomes the standard class, because the
    custom class is only needed for adapters, which are merged or left out. Modules that only training uses are removed.
    """
    before = read_json_list(path, ConfigError)
    first = {"type": "sentence_transformers.models.Transformer"} if before[0]["type"] == CUSTOM else {}
    first |= {} if inner is None else {"path": inner}
    after = [module for module in before if not module["type"].endswith(f".{FOR_TRAINING}")]
    if first or after != before:
        path.write_text(json.dumps([after[0] | first, *after[1:]], indent=2) + "\n", encoding="utf-8")


def copy_licenses(source: ModelFolder, folder: Path) -> None:
    """Copies the licenses and notices of a model folder, because they also cover weights derived from the model."""
    for path in _licenses(source):
        shutil.copyfile(path, folder / path.name)


def _licenses(source: ModelFolder) -> list[Path]:
    folders = dict.fromkeys((source.path, source.transformer))
    paths = (path for inner in folders for pattern in LICENSES for path in inner.glob(pattern))
    return [path for path in paths if path.is_file() and is_own(path, source.path)]


def copy_vocabulary(source: ModelFolder, folder: Path) -> None:
    """Copies only the vocabulary files of a model folder."""
    for name in VOCABULARY:
        if (source.transformer / name).is_file():
            shutil.copyfile(source.transformer / name, folder / name)


def is_own(path: Path, source: Path) -> bool:
    """Whether a file really lies in the folder of the model, with links resolved; other files must not be published."""
    repository = source.resolve().parents[1] if is_commit(source.name) else source.resolve()
    return path.resolve().is_relative_to(repository)


def write_modules(source: ModelFolder, folder: Path, dtype: str | None) -> Iterator[tuple[Path, str | None]]:
    """Writes the weights of the modules that follow the pooling.

    Args:
        dtype: The dtype of the weights, one of `FLOATS`; `None` to leave it unchanged.

    Yields:
        The path of each source file, and a sentence about what changed, if anything did.
    """
    for module in (*source.modules[1:], *source.routes.queries):
        has_weights = module.kind in WITH_WEIGHTS or (
            module.kind == STATIC and read_json(module.folder / CONFIG, ConfigError).get("path") is None
        )
        if not has_weights:
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


def write_casing(files: TokenizerFiles, folder: Path) -> str | None:
    """Writes `do_lower_case: false` to `tokenizer_config.json` if no setting says that the vocabulary is cased.

    Without such a setting, transformers lowercases texts even if the vocabulary is cased, but mlxbert does not.

    Returns:
        A sentence about the change; `None` if nothing changed.
    """
    path = folder / SETTINGS
    settings = read_json(path, ConfigError) if path.is_file() else {}
    if (
        (folder / TOKENIZER_JSON).is_file()
        or not (folder / "vocab.txt").is_file()
        or settings.get("do_lower_case") is not None
    ):
        return None
    normalizer = files.tokenizer.normalizer
    if not isinstance(normalizer, BertNormalizer) or normalizer.lowercase:
        return None
    save.write_json(path, settings | {"do_lower_case": False})
    return f"{SETTINGS}: do_lower_case is false, because the vocabulary is cased"


def card_of(source: Path) -> list[Path]:
    """Returns a list that contains only the path of the model card in a folder.

    The list is empty if there is no card, or if the card is a link that leads out of the model's files.
    """
    return [path for path in [source / CARD] if path.is_file() and is_own(path, source)]
