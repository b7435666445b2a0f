"""Which files of a hub repository a model needs, told from their names and from the small files that steer the choice.

The same rules choose what is downloaded and say whether what lies in the cache is all there.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from mlxbert.errors import HubError

CONFIG, MODULES = "config.json", "modules.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# What describes the Transformer module of a sentence-transformers model: the first of these that is there.
TRANSFORMER_SETTINGS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
SMALL = (
    CONFIG,
    "adapter_config.json",  # nobody uses it here, but its weights must not be forgotten silently
    MODULES,
    "config_sentence_transformers.json",
    *TRANSFORMER_SETTINGS,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
)
_OTHER_WEIGHTS = (".bin", ".h5", ".ckpt", ".msgpack", ".onnx", ".gguf", ".pt", ".pth", ".safetensors")

ReadJson = Callable[[str], Any]


def leaves_folder(path: str) -> bool:
    """Whether a path that others chose could mean something outside of the folder that it is put into."""
    return (
        path.startswith("/")
        or "\\" in path
        or "\0" in path
        or re.match(r"[A-Za-z]:", path) is not None
        or ".." in path.split("/")
    )


def parse_json(name: str, path: Path) -> Any:
    """The JSON in a file of a repository.

    Raises:
        FileNotFoundError: It is not there.
        HubError: It cannot be read or is no JSON.
    """
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError:
        raise
    except OSError as problem:
        raise HubError(f"{path}: cannot be read ({problem.strerror})") from None
    except (ValueError, RecursionError) as problem:
        raise HubError(
            f"{name}: {path.name} is not valid JSON ({problem})",
            hint=f"should the copy be damaged, `mlxbert models remove {name}` makes room for another",
        ) from None


def _modules(name: str, read: ReadJson) -> list[tuple[str, bool]]:
    """The folder of each module of a sentence-transformers model, and whether it is the encoder."""
    modules = read(MODULES)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise HubError(f"{name}: {MODULES} holds {modules!r:.60}, expected a list of modules")
    found = []
    for module in modules:
        path = module.get("path", "")
        if not isinstance(path, str) or leaves_folder(path):
            raise HubError(f"{name}: {MODULES} has path {path!r}, expected a folder inside the model's own")
        found.append((path.strip("/"), str(module.get("type")).endswith("Transformer")))
    return found


def _weights(name: str, prefix: str, listed: Collection[str], read: ReadJson) -> list[str]:
    """The files that hold the weights of one folder: one, or an index and its shards; none where there are none."""
    if prefix + SINGLE in listed:
        return [prefix + SINGLE]
    if prefix + INDEX not in listed:
        return []
    index = read(prefix + INDEX)
    table = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(table, dict) or not table:
        raise HubError(f"{name}: {prefix}{INDEX} has weight_map {table!r:.60}, expected a table of shards")
    shards = list(dict.fromkeys(str(shard) for shard in table.values()))
    for shard in shards:
        if "/" in shard or leaves_folder(shard):
            raise HubError(f"{name}: {prefix}{INDEX} names shard {shard!r}, expected a plain file name")
        if prefix + shard not in listed:
            raise HubError(f"{name}: {prefix}{INDEX} names shard {shard!r}, which the repository does not hold")
    return [prefix + INDEX, *(prefix + shard for shard in shards)]


def needed_files(name: str, listed: Collection[str], read: ReadJson) -> list[str]:
    """The files of a repository that its model needs, small ones first.

    Args:
        name: The repository, for messages.
        listed: All its files.
        read: Gives the parsed content of a JSON file that is listed.

    Raises:
        HubError: There is no configuration with safetensors weights beside it, or a file that steers the choice is
            damaged or names something outside of the repository.
    """
    folders = {"": True} | (dict(_modules(name, read)) if MODULES in listed else {})
    small: list[str] = []
    weights: list[str] = []
    encoders = 0
    for folder, may_be_encoder in folders.items():
        prefix = f"{folder}/" if folder else ""
        small += [prefix + file for file in SMALL if prefix + file in listed]
        found = _weights(name, prefix, listed, read)
        weights += found
        encoders += bool(found) and prefix + CONFIG in listed and (may_be_encoder or not folder)
    if not encoders:
        raise _no_model(name, listed)
    return small + weights


def _no_model(name: str, listed: Iterable[str]) -> HubError:
    others = [file for file in listed if file.endswith(_OTHER_WEIGHTS)]
    there = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return HubError(
        f"{name}: no {SINGLE} with a {CONFIG} beside it; weights that are there: {there or 'none'}",
        hint="another revision or another copy of the model may have safetensors; "
        "transformers' save_pretrained writes them",
    )
