"""Determines which files of a hub repository a model needs, from the file names and the content of a few small files.

The same rules select the files to download and decide whether the cached files are complete.
"""

import fnmatch
import glob
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from mlxbert.durable_files import from_json
from mlxbert.errors import HubError
from mlxbert.weights.formats import file_names
from mlxbert.weights.formats.config_json import GLINER_CONFIG, GOOGLE_CONFIGS
from mlxbert.weights.formats.file_names import EXPECTED, NOT_READ, holds_weights

CONFIG, MODULES, ROUTER = "config.json", "modules.json", "router_config.json"
# The settings of the Transformer module in a sentence-transformers model: the first file that exists is used.
TRANSFORMER_SETTINGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
TEMPLATE = "chat_template.jinja"
SPARSE_LINEAR = "sparse_linear.pt"  # BGE-M3's layer for sparse vectors
TOKEN_LINEAR, METADATA = "colbert_linear.pt", "artifact.metadata"  # its layer for token vectors; Stanford's settings
VOCABULARY = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt"),
    *("vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "spm.model", "tokenizer.model", TEMPLATE),
)
SMALL = (
    *(CONFIG, file_names.ADAPTER, MODULES, "config_sentence_transformers.json", *TRANSFORMER_SETTINGS, *VOCABULARY),
    *(ROUTER, SPARSE_LINEAR, TOKEN_LINEAR, METADATA),
)

ReadJson = Callable[[str], Any]


# The patterns of the file that is opened first, in order of preference, as in `formats.weight_files.open_weights`;
# exactly one file must match. Weights in the first formats are used if another program has cached them, even if a
# preferred format could be downloaded.
_INDEXES = (file_names.SAFETENSORS_INDEX, file_names.TORCH_INDEX)
_REUSABLE = (file_names.SAFETENSORS, file_names.SAFETENSORS_INDEX, file_names.TORCH, file_names.TORCH_INDEX)
_TENSORFLOW = f"*{file_names.TF_INDEX}"
_FORMATS = (*_REUSABLE, file_names.NPZ, _TENSORFLOW)


def leaves_folder(path: str) -> bool:
    """Whether an untrusted path could point outside the folder that it is joined to."""
    return re.match(r"/|[A-Za-z]:|.*[\\\0]", path, re.DOTALL) is not None or ".." in path.split("/")


def parse_json(name: str, path: Path) -> Any:
    """Reads a JSON file of a repository; `name` is the repository, for messages."""
    try:
        return from_json(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise HubError(f"{path}: cannot be read ({problem.strerror})") from None
    except ValueError as problem:
        raise HubError(
            f"{name}: {path.name} is not valid JSON ({problem})",
            hint=f"if the cached copy is damaged, `mlxbert models download {name}` replaces it",
        ) from None


def _modules(name: str, read: ReadJson) -> list[tuple[str, bool]]:
    """Returns the folder of each module, also behind a router, and whether the module can be the encoder."""
    modules = read(MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise HubError(f"{name}: {MODULES} holds {modules!r:.60}, expected a list of modules")
    found = [(MODULES, module.get("path", ""), str(module.get("type"))) for module in modules]
    if [kind.rpartition(".")[2] for *_, kind in found] == ["Router"]:
        content = read(ROUTER)
        types = content.get("types") if isinstance(content, dict) else None
        if not isinstance(types, dict):
            raise HubError(f"{name}: {ROUTER} has types {types!r:.60}, expected an object")
        found += [(ROUTER, folder, str(kind)) for folder, kind in types.items()]
    for file, folder, _ in found:
        if not isinstance(folder, str) or leaves_folder(folder):
            raise HubError(f"{name}: {file} has path {folder!r:.60}, expected a folder within the model")
    ends = {MODULES: ("Transformer", "StaticEmbedding"), ROUTER: ("Transformer",)}
    return [(folder.strip("/"), kind.endswith(ends[file])) for file, folder, kind in found]


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    """Returns the names that match a pattern. Unlike in fnmatch, `*` does not match a slash."""
    depth = pattern.count("/")
    return [name for name in names if name.count("/") == depth and fnmatch.fnmatchcase(name, pattern)]


def _shards(name: str, index: str, listed: Collection[str], read: ReadJson) -> list[str]:
    content = read(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise HubError(
            f"{name}: {index} has weight_map {weight_map!r:.60}, expected an object that maps tensors to shards"
        )
    prefix = index.removesuffix(index.rpartition("/")[2])
    shards = list(dict.fromkeys(str(shard) for shard in weight_map.values()))
    for shard in shards:
        if "/" in shard or leaves_folder(shard):
            raise HubError(f"{name}: {index} names shard {shard!r}, expected a plain file name")
        if prefix + shard not in listed:
            raise HubError(f"{name}: {index} names shard {shard!r}, which is not in the repository")
    return [prefix + shard for shard in shards]


def _tensorflow_data(index: str, inside: Collection[str]) -> list[str]:
    return _matching(inside, f"{glob.escape(index.removesuffix(file_names.TF_INDEX))}.data-?????-of-?????")


def _weights(
    name: str, prefix: str, listed: Collection[str], read: ReadJson, is_here: Callable[[str], bool]
) -> list[str]:
    """Returns the weight files that a folder has in one format; empty if the folder has none."""
    inside = [file.removeprefix(prefix) for file in listed if file.startswith(prefix)]
    choices: list[tuple[str, list[str]]] = []
    for pattern in _FORMATS:
        groups = [[first] for first in _matching(inside, pattern)]
        if pattern == _TENSORFLOW:  # an index without its data is something else
            groups = [[index, *data] for (index,) in groups if (data := _tensorflow_data(index, inside))]
        if len(groups) == 1:  # several would be ambiguous
            choices.append((pattern, [prefix + file for file in groups[0]]))
    if not choices:
        return []
    cached = [(pattern, files) for pattern, files in choices if pattern in _REUSABLE and is_here(files[0])]
    pattern, files = (cached or choices)[0]
    shards = _shards(name, files[0], listed, read) if pattern in _INDEXES else []
    own_files = [file for file in inside if re.fullmatch(r"[^/]+\.safetensors", file)]
    if {prefix + file for file in own_files} <= {*files, *shards}:
        return files + shards  # most folders: not worth importing MLX
    from mlxbert.nn.heads import OWN_LAYERS

    return files + shards + [prefix + layer.file for layer in OWN_LAYERS if layer.file in own_files]


def _configs(prefix: str, listed: Collection[str]) -> list[str]:
    """Returns the configuration of a folder: `config.json`, or otherwise files with the names that Google used.

    For a GLiNER model, it is `gliner_config.json`, and `config.json` if there is one.
    """
    if found := [prefix + name for name in (GLINER_CONFIG, CONFIG) if prefix + name in listed]:
        return found
    patterns = (glob.escape(prefix) + pattern for pattern in GOOGLE_CONFIGS.values())
    return [file for pattern in patterns for file in _matching(listed, pattern)]


def needed_files(
    name: str, listed: Collection[str], read: ReadJson, is_here: Callable[[str], bool] = lambda file: False
) -> list[str]:
    """Returns the files of a repository that its model or adapter needs: small files first, weights in one format only.

    Args:
        name: The name of the repository, for messages.
        read: Returns the parsed content of a JSON file in `listed`.
        is_here: Returns whether a file is in the cache. If another program cached the weights in PyTorch's
            format, they are used, even if the hub also has safetensors.
    """
    modules = dict(_modules(name, read)) if MODULES in listed else {}
    # If a module holds the encoder, weights at the root are not part of the model.
    elsewhere = "" not in modules and any(modules[folder] and _configs(f"{folder}/", listed) for folder in modules)
    small: list[str] = []
    weights: list[str] = []
    encoders = 0
    for folder, may_be_encoder in ({"": True} | modules).items():
        prefix = f"{folder}/" if folder else ""
        configs = _configs(prefix, listed)
        small += configs + [prefix + file for file in SMALL if prefix + file in listed and file != CONFIG]
        files = _weights(name, prefix, listed, read, is_here) if folder or not elsewhere else []
        weights += files
        static = MODULES in listed and folder in modules and f"{prefix}tokenizer.json" in listed and modules[folder]
        encoders += bool(files and (configs or static)) and (may_be_encoder or not folder)
    if not encoders and {file_names.ADAPTER, file_names.ADAPTER_WEIGHTS} <= {*listed}:
        return [*small, file_names.ADAPTER_WEIGHTS]
    if not encoders:
        raise _no_model_error(name, listed)
    return small + weights + _own_adapters(listed, read)


def _own_adapters(listed: Collection[str], read: ReadJson) -> list[str]:
    """Returns the files of the adapters that a checkpoint keeps in subfolders (jina-embeddings-v5).

    In other models, subfolders of the same names have another purpose.
    """
    files = [
        file
        for name in (file_names.ADAPTER, file_names.ADAPTER_WEIGHTS)
        for file in _matching(listed, f"{file_names.ADAPTERS}/*/{name}")
    ]
    config = read(CONFIG) if files and CONFIG in listed else {}
    return files if isinstance(config, dict) and config.get("task_names") else []


def _no_model_error(name: str, listed: Collection[str]) -> HubError:
    weights = [file for file in listed if holds_weights(file) or file.endswith(tuple(NOT_READ))]
    names = ", ".join(weights[:3]) + (f" and {len(weights) - 3} more" if len(weights) > 3 else "")
    return HubError(
        f"{name}: no folder has {CONFIG} and weights that mlxbert reads, expected {EXPECTED}, "
        f"found {names or 'no weights'}",
        hint="try another revision or another copy of the model; save_pretrained of transformers writes safetensors",
    )
