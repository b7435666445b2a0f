"""Which files of a hub repository a model needs, told from their names and from the small files that steer the choice.

The same rules choose what is downloaded and say whether what lies in the cache is all there.
"""

import fnmatch
import glob
import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.errors import HubError
from mlxbert.weights.config_json import GOOGLE_CONFIGS
from mlxbert.weights.formats import names
from mlxbert.weights.formats.names import EXPECTED, NOT_READ, holds_weights

CONFIG, MODULES = "config.json", "modules.json"
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

ReadJson = Callable[[str], Any]


@dataclass(frozen=True)
class _Format:
    """A way to store the weights of one folder, by the names of its files.

    Attributes:
        first: Pattern of the file that is opened first; there must be one such file.
        beside: Patterns of the files that go with it; `{}` stands for its name without `ending`.
        ending: See `beside`.
        alone: Whether it is the weights even where nothing lies beside it.
        sharded: Whether it is a table that names the other files.
        as_good: Whether it is used where it is in the cache, instead of fetching a format that is preferred. What other
            programs keep of ONNX is often quantized, which mlxbert does not read.
    """

    first: str
    beside: tuple[str, ...] = ()
    ending: str = ""
    alone: bool = True
    sharded: bool = False
    as_good: bool = False


# In the order of preference, which is that of `weight_files.open_weights`.
_FORMATS = (
    _Format(names.SAFETENSORS, as_good=True),
    _Format(names.SAFETENSORS_INDEX, sharded=True, as_good=True),
    _Format(names.TORCH, as_good=True),
    _Format(names.TORCH_INDEX, sharded=True, as_good=True),
    _Format(names.NPZ),
    _Format(f"*{names.TF_INDEX}", ("{}.data-?????-of-?????",), ending=names.TF_INDEX, alone=False),
    *(_Format(name, ("{}_data*", "{}.data")) for name in names.ONNX),
)


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


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    """The names that a pattern fits, whose stars stand for no slash."""
    depth = pattern.count("/")
    return [name for name in names if name.count("/") == depth and fnmatch.fnmatchcase(name, pattern)]


def _shards(name: str, index: str, listed: Collection[str], read: ReadJson) -> list[str]:
    """The files that an index names, by their paths."""
    content = read(index)
    table = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(table, dict) or not table:
        raise HubError(f"{name}: {index} has weight_map {table!r:.60}, expected a table of shards")
    prefix = index.removesuffix(index.rpartition("/")[2])
    shards = list(dict.fromkeys(str(shard) for shard in table.values()))
    for shard in shards:
        if "/" in shard or leaves_folder(shard):
            raise HubError(f"{name}: {index} names shard {shard!r}, expected a plain file name")
        if prefix + shard not in listed:
            raise HubError(f"{name}: {index} names shard {shard!r}, which the repository does not hold")
    return [prefix + shard for shard in shards]


def _beside(format: _Format, first: str, inside: Collection[str]) -> list[str]:
    stem = glob.escape(first.removesuffix(format.ending))
    return [file for pattern in format.beside for file in _matching(inside, pattern.replace("{}", stem))]


def _weights(
    name: str, prefix: str, listed: Collection[str], read: ReadJson, is_here: Callable[[str], bool]
) -> list[str]:
    """The files that hold the weights of one folder, in one format; none where there are none."""
    inside = [file.removeprefix(prefix) for file in listed if file.startswith(prefix)]
    found: list[tuple[_Format, list[str]]] = []
    for format in _FORMATS:
        whole = [[first, *_beside(format, first, inside)] for first in _matching(inside, format.first)]
        usable = [files for files in whole if format.alone or len(files) > 1]
        if len(usable) == 1:  # of several nobody knows which is meant
            found.append((format, [prefix + file for file in usable[0]]))
    if not found:
        return []
    cached = [(format, files) for format, files in found if format.as_good and is_here(files[0])]
    format, files = (cached or found)[0]
    return files + (_shards(name, files[0], listed, read) if format.sharded else [])


def _configs(prefix: str, listed: Collection[str]) -> list[str]:
    """The configuration of a folder; where there is none of today's name, what Google called it."""
    if prefix + CONFIG in listed:
        return [prefix + CONFIG]
    patterns = (glob.escape(prefix) + pattern for pattern in GOOGLE_CONFIGS.values())
    return [file for pattern in patterns for file in _matching(listed, pattern)]


def needed_files(
    name: str, listed: Collection[str], read: ReadJson, is_here: Callable[[str], bool] = lambda file: False
) -> list[str]:
    """The files of a repository that its model needs, small ones first; of weights those of one format.

    Args:
        name: The repository, for messages.
        listed: All its files.
        read: Gives the parsed content of a JSON file that is listed.
        is_here: Whether a file is in the cache. Other programs may have fetched weights in PyTorch's own format: these
            are as good as the safetensors beside them on the hub.

    Raises:
        HubError: There is no configuration with weights beside it that mlxbert reads, or a file that steers the choice
            is damaged or names something outside of the repository.
    """
    modules = dict(_modules(name, read)) if MODULES in listed else {}
    # Where a module holds the encoder, weights at the root are no part of the model.
    elsewhere = "" not in modules and any(modules[folder] and _configs(f"{folder}/", listed) for folder in modules)
    small: list[str] = []
    weights: list[str] = []
    encoders = 0
    for folder, may_be_encoder in ({"": True} | modules).items():
        prefix = f"{folder}/" if folder else ""
        configs = _configs(prefix, listed)
        small += configs + [prefix + file for file in SMALL if prefix + file in listed and file != CONFIG]
        found = _weights(name, prefix, listed, read, is_here) if folder or not elsewhere else []
        weights += found
        encoders += bool(found and configs) and (may_be_encoder or not folder)
    if not encoders:
        raise _no_model(name, listed)
    return small + weights


def _no_model(name: str, listed: Collection[str]) -> HubError:
    others = [file for file in listed if holds_weights(file) or file.endswith(tuple(NOT_READ))]
    there = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
    return HubError(
        f"{name}: no {CONFIG} with weights that mlxbert reads beside it, expected {EXPECTED}; weights that are there: "
        f"{there or 'none'}",
        hint="another revision or another copy of the model may have them; transformers' save_pretrained writes "
        "safetensors",
    )
