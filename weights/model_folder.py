"""A model folder: the folder of its checkpoint, its modules, and its configuration.

Each file is read when it is first needed, and then kept. Functions that need the folder therefore share one object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mlxbert.errors import ConfigError
from mlxbert.weights.formats.config_json import GLINER_CONFIG, ConfigJson, read_config, read_json, read_json_list
from mlxbert.weights.formats.headers import Header
from mlxbert.weights.formats.static_table import MODEL2VEC, MODEL_TYPES
from mlxbert.weights.hub.needed_files import CONFIG, MODULES, TRANSFORMER_SETTINGS, leaves_folder
from mlxbert.weights.static_folder import KIND, static_config

SETTINGS = "config_sentence_transformers.json"
WITH_WEIGHTS = ("Dense", "LayerNorm")
_NAMESPACE = "sentence_transformers."
CUSTOM = "custom_st.Transformer"  # Jina's class, which also chooses the adapter
_KNOWN = ("Transformer", "Pooling", *WITH_WEIGHTS, "Normalize", "LogitScore", KIND)
_RERANKERS = (["Transformer"], ["Transformer", "LogitScore"])
_MAX_PATH = 255  # bytes; file systems refuse longer names anyway


@dataclass(frozen=True)
class Module:
    """An entry of `modules.json`: the name of the module's class, and the folder that holds its files."""

    kind: str
    folder: Path


@dataclass(frozen=True, eq=False)
class ModelFolder:
    """A model folder; each of its JSON files is read at most once.

    Attributes:
        path: The path of the folder.
        headers: Headers of weights that are on the hub, but not in the folder, by the path that each file would have.
        described_by: A configuration that is used instead of the one in the folder.
        adapter: The folder of an adapter that is merged into the weights.
        own_adapter: The task whose adapter is merged, if the checkpoint itself has one adapter per task (see
            `mlxbert.weights.adapters.task_adapters`).
    """

    path: Path
    headers: Mapping[Path, Header] = field(default_factory=dict)
    described_by: ConfigJson | None = None
    adapter: Path | None = None
    own_adapter: str | None = None

    @property
    def own(self) -> Path:
        """The folder of the most recently trained files: the adapter's if there is an adapter, else the model's."""
        return self.path if self.adapter is None else self.adapter

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules of sentence-transformers, in order; empty if there is no `modules.json`."""
        if isinstance(self._modules, ConfigError):
            raise self._modules
        return self._modules

    @property
    def has_modules(self) -> bool:
        """Whether there is a valid `modules.json`."""
        return bool(self._modules) and not isinstance(self._modules, ConfigError)

    @property
    def logit_score(self) -> Path | None:
        """The folder of the module that computes a score from the logits of two tokens, if there is such a module."""
        entries = self.modules if self.has_modules else ()
        return next((module.folder for module in entries if module.kind == "LogitScore"), None)

    @property
    def transformer_settings(self) -> ConfigJson:
        """The settings of the Transformer module in `modules.json`; empty if it has no settings."""
        paths = [self.modules[0].folder / name for name in TRANSFORMER_SETTINGS]
        return read_settings(next((path for path in paths if path.is_file()), paths[0]))

    @cached_property
    def transformer(self) -> Path:
        """The folder of the checkpoint: this folder, or the folder of the Transformer module in `modules.json`.

        Before version 2, sentence-transformers wrote a `config.json` that holds nothing but its version. A folder with
        such a file holds no checkpoint.
        """
        holds_checkpoint = self._config is not None and self._config.values.keys() != {"__version__"}
        if not (self.path / MODULES).is_file():
            return self.path
        if isinstance(self._modules, ConfigError):
            if holds_checkpoint:  # a checkpoint can do more than embed
                return self.path
            raise self._modules
        inner = self._modules[0].folder
        if holds_checkpoint and inner != self.path and (inner / CONFIG).is_file():
            raise ConfigError(
                f"{self.path}: holds a checkpoint, but {MODULES} names another checkpoint in {inner}",
                hint="pass a folder that holds only one checkpoint",
            )
        return self.path if holds_checkpoint else inner

    @property
    def is_static(self) -> bool:
        """Whether the model is static: a table of token vectors (see `mlxbert.weights.static_folder`)."""
        if self._config is not None and self._config.get("model_type") is not None:
            return self._config.get("model_type") in MODEL_TYPES
        return self.has_modules and self.modules[0].kind == KIND

    @cached_property
    def config_json(self) -> ConfigJson:
        """The `config.json` of the checkpoint, or the file that Google's releases have in its place."""
        if self.described_by is not None:
            return self.described_by
        stated = self._config if self.transformer == self.path else None
        if not self.is_static:
            return stated or read_config(self.transformer)
        if stated is None and (self.transformer / CONFIG).is_file():
            stated = read_config(self.transformer)
        normalize = self.has_modules and self.modules[-1].kind == "Normalize"
        return static_config(self.transformer, stated, self.path / MODULES, self.headers, normalize=normalize)

    @cached_property
    def settings(self) -> ConfigJson:
        """The content of `config_sentence_transformers.json`; empty if there is no such file."""
        return read_settings(self.path / SETTINGS)

    @property
    def described(self) -> ConfigJson:
        """The configuration of the model: `described_by`, else the `config.json` in this folder, else empty."""
        config = self._config if self.described_by is None else self.described_by
        return ConfigJson(self.path / CONFIG, {}) if config is None else config

    @cached_property
    def _config(self) -> ConfigJson | None:
        named = any((self.path / name).is_file() for name in (CONFIG, GLINER_CONFIG))
        return read_config(self.path) if named else None

    @cached_property
    def _modules(self) -> tuple[Module, ...] | ConfigError:
        try:
            modules = _read_modules(self.path)
        except ConfigError as problem:
            return problem
        if self._config is None or self._config.get("model_type") != MODEL2VEC:
            return modules
        if any(module.kind in WITH_WEIGHTS for module in modules):
            return modules
        # model2vec reads only this key; some folders of model2vec have no modules.json.
        ends = [Module("Normalize", self.path)] if self._config.get("normalize", False) is True else []
        place = modules[0].folder if modules else self.path
        return (Module(KIND, place), Module("Pooling", place), *ends)


def open_folder(folder: Path | ModelFolder) -> ModelFolder:
    """Opens a model folder by its path. A folder that is already open is returned unchanged."""
    return folder if isinstance(folder, ModelFolder) else ModelFolder(folder)


def read_settings(path: Path) -> ConfigJson:
    """Reads a JSON file with settings; without such a file, the settings are empty."""
    return ConfigJson(path, read_json(path, ConfigError) if path.is_file() else {})


def _read_modules(folder: Path) -> tuple[Module, ...]:
    path = folder / MODULES
    if not path.is_file():
        return ()
    modules = []
    for entry in read_json_list(path, ConfigError):
        match entry:
            case {"type": str(kind), "path": str(inner)}:
                pass
            case _:
                raise ConfigError(f"{path}: a module is {entry!r:.80}, expected an object with type and path")
        name = kind.rpartition(".")[2]
        if not (kind.startswith(_NAMESPACE) or kind == CUSTOM) or name not in _KNOWN:
            raise ConfigError(
                f"{path}: a module has type {kind!r}, expected one of {', '.join(_KNOWN)} of sentence-transformers",
                hint="mlxbert never runs code from a model folder",
            )
        if leaves_folder(inner):
            raise ConfigError(f"{path}: a module has path {inner!r}, expected a path inside the model folder")
        if len(inner.encode("utf-8", "replace")) > _MAX_PATH:
            raise ConfigError(
                f"{path}: a module has path {inner!r:.80}… of {len(inner)} characters, expected a shorter path"
            )
        modules.append(Module(name, folder / inner))
    if modules and modules[0].kind == KIND:  # its vectors are the mean of the tokens' vectors
        modules.insert(1, Module("Pooling", modules[0].folder))
    kinds = ["Transformer" if module.kind == KIND else module.kind for module in modules]
    leading = {"Transformer", "Pooling", "LogitScore"}
    if kinds not in _RERANKERS and (kinds[:2] != ["Transformer", "Pooling"] or leading & {*kinds[2:]}):
        raise unknown_modules(path, kinds)
    return tuple(modules)


def unknown_modules(path: Path, kinds: list[str]) -> ConfigError:
    """Returns the error for a sequence of modules that mlxbert does not support."""
    return ConfigError(
        f"{path}: the modules are {', '.join(kinds) or 'none'}, expected Transformer, Pooling, "
        "then any of Dense, LayerNorm, Normalize"
    )
