"""The modules of sentence-transformers in a model folder, and what each sequence of modules is for.

A new kind of vectors adds its modules to `KNOWN` and their sequence to `LAYOUTS`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.errors import ConfigError
from mlxbert.weights.formats.config_json import ConfigJson, read_json, read_json_list
from mlxbert.weights.hub.needed_files import MODULES, ROUTER, leaves_folder
from mlxbert.weights.static_folder import KIND as STATIC_MODEL

WITH_WEIGHTS = ("Dense", "LayerNorm")
CUSTOM = "custom_st.Transformer"  # Jina's class, which also chooses the adapter
_NAMESPACES = ("sentence_transformers.", "pylate.models.")
_ROUTER, STATIC = "Router", "SparseStaticEmbedding"
TOKEN_MASK = "MultiVectorMask"
_AFTER_POOLING = (*WITH_WEIGHTS, "Normalize")
FOR_TRAINING = "Dropout"  # changes nothing when a model embeds
KNOWN = (
    *("Transformer", "Pooling", *_AFTER_POOLING, FOR_TRAINING, "LogitScore"),
    *("MLMTransformer", "SpladePooling", STATIC, STATIC_MODEL),
    TOKEN_MASK,
)
# What a folder is for, by the kinds of its modules: kinds of vectors, and `reranker`.
LAYOUTS = {
    "dense": rf"(Transformer|{STATIC_MODEL}) Pooling( ({'|'.join(_AFTER_POOLING)}))*",
    "reranker": r"Transformer( LogitScore)?",
    "sparse": r"(MLM)?Transformer SpladePooling",
    "tokens": rf"Transformer( (Dense|Normalize|{TOKEN_MASK}))+",
}
_MAX_PATH = 255  # bytes; file systems refuse longer names anyway


@dataclass(frozen=True)
class Module:
    """An entry of `modules.json`: the name of the module's class, and the folder that holds its files."""

    kind: str
    folder: Path


@dataclass(frozen=True)
class Modules:
    """The modules of a folder."""

    layout: str = ""  # the key of `LAYOUTS` that the modules match; empty if the folder has no `modules.json`
    documents: tuple[Module, ...] = ()  # the modules for documents and for all other texts, in order
    # The modules for queries, if a router sends queries to other modules; otherwise empty.
    queries: tuple[Module, ...] = ()
    default: str = "document"  # the kind of texts, `query` or `document`, whose modules embed a text of an unknown kind


def read_modules(folder: Path) -> Modules:
    """Reads the `modules.json` of a folder; without this file, the folder has no modules."""
    path = folder / MODULES
    if not path.is_file():
        return Modules()
    entries = [_entry(path, entry) for entry in read_json_list(path, ConfigError)]
    if [kind.rpartition(".")[2] for kind, _ in entries] == [_ROUTER] and entries[0][0].startswith(_NAMESPACES):
        return _routed(_inside(path, folder, entries[0][1]))
    modules = [_module(path, folder, *entry) for entry in entries]
    modules = [module for module in modules if module.kind != FOR_TRAINING]
    if modules and modules[0].kind == STATIC_MODEL:  # its vectors are the mean of the tokens' vectors
        modules.insert(1, Module("Pooling", modules[0].folder))
    return Modules(_layout(path, modules), tuple(modules))


def _entry(path: Path, entry: Any) -> tuple[str, str]:
    match entry:
        case {"type": str(kind), "path": str(inner)}:
            return kind, inner
    raise ConfigError(f"{path}: a module is {entry!r:.80}, expected an object with type and path")


def _inside(path: Path, folder: Path, inner: str) -> Path:
    """Returns the folder of a module that `path` names; raises `ConfigError` if it is not inside the model folder."""
    if leaves_folder(inner):
        raise ConfigError(f"{path}: a module has path {inner!r}, expected a path inside the model folder")
    if len(inner.encode("utf-8", "replace")) > _MAX_PATH:
        raise ConfigError(
            f"{path}: a module has path {inner!r:.80}… of {len(inner)} characters, expected a shorter path"
        )
    return folder / inner


def _module(path: Path, folder: Path, kind: str, inner: str) -> Module:
    """Checks the class and the folder of a module that `path` names."""
    name = kind.rpartition(".")[2]
    if not (kind.startswith(_NAMESPACES) or kind == CUSTOM) or name not in KNOWN:
        raise ConfigError(
            f"{path}: a module has type {kind!r}, expected one of {', '.join(KNOWN)} of sentence-transformers",
            hint="mlxbert never runs code from a model folder",
        )
    return Module(name, _inside(path, folder, inner))


def _layout(path: Path, modules: Sequence[Module]) -> str:
    kinds = [module.kind for module in modules]
    layout = next((name for name, pattern in LAYOUTS.items() if re.fullmatch(pattern, " ".join(kinds))), None)
    if layout is None:
        raise unknown_modules(path, kinds)
    return layout


def _routed(folder: Path) -> Modules:
    """Reads the modules behind a router, which may send queries to other modules than documents."""
    path = folder / ROUTER
    match read_json(path, ConfigError):
        case {
            "types": dict(types),
            "structure": {"query": list(query), "document": list(document)} as routes,
        } as values:
            parameters = ConfigJson(path, values).nested("parameters")
        case _:
            raise ConfigError(f"{path}: expected types, and a structure with a list for query and a list for document")
    queries, documents = (
        tuple(_routed_module(path, folder, types, name) for name in route) for route in (query, document)
    )
    layout = _layout(path, documents)
    if layout != "sparse" or (queries != documents and [module.kind for module in queries] != [STATIC]):
        kinds = [", ".join(module.kind for module in route) or "none" for route in (queries, documents)]
        raise ConfigError(
            f"{path}: the modules for queries are {kinds[0]}, for documents {kinds[1]}, expected Transformer, "
            f"SpladePooling for documents, and the same modules or {STATIC} for queries"
        )
    first = next(iter(routes)) if parameters.flag("allow_empty_key", default=True) else "document"
    default = parameters.choice("default_route", ("query", "document"), default=first)
    return Modules(layout, documents, () if queries == documents else queries, default)


def _routed_module(path: Path, folder: Path, types: Mapping[str, Any], name: object) -> Module:
    """Returns the module that a route names; its folder has the same name."""
    if not isinstance(name, str) or not isinstance(types.get(name), str):
        raise ConfigError(f"{path}: structure names the module {name!r:.80}, expected one of {', '.join(types)[:200]}")
    return _module(path, folder, types[name], name)


def unknown_modules(path: Path, kinds: list[str]) -> ConfigError:
    """Returns the error for a sequence of modules that mlxbert does not support."""
    return ConfigError(
        f"{path}: the modules are {', '.join(kinds) or 'none'}, expected Transformer, Pooling, "
        "then any of Dense, LayerNorm, Normalize; Transformer, SpladePooling; or, for token vectors, Transformer, "
        f"then any of Dense, Normalize, {TOKEN_MASK}"
    )
