"""A model folder: the folder of its checkpoint, its modules, and its configuration.

Each file is read when it is first needed, and then kept. Functions that need the folder therefore share one object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from mlxbert.errors import ConfigError
from mlxbert.weights.formats.config_json import GLINER_CONFIG, ConfigJson, read_config, read_json
from mlxbert.weights.formats.headers import Header
from mlxbert.weights.formats.static_table import MODEL2VEC, MODEL_TYPES
from mlxbert.weights.hub.needed_files import CONFIG, MODULES, TRANSFORMER_SETTINGS
from mlxbert.weights.module_layouts import WITH_WEIGHTS, Module, Modules, read_modules
from mlxbert.weights.static_folder import KIND, static_config

SETTINGS = "config_sentence_transformers.json"
STANFORD_CLASS, PROJECTION = "HF_ColBERT", "linear.weight"  # a class with a layer for token vectors; its tensor


@dataclass(frozen=True, eq=False)
class ModelFolder:
    """A model folder; each of its JSON files is read at most once."""

    path: Path
    # Headers of weights that are on the hub, but not in the folder, by the path that each file would have.
    headers: Mapping[Path, Header] = field(default_factory=dict)
    described_by: ConfigJson | None = None  # a configuration that is used instead of the one in the folder
    adapter: Path | None = None  # the folder of an adapter that is merged into the weights
    # The task whose adapter is merged, if the checkpoint itself has one adapter per task (see
    # `mlxbert.weights.adapters.task_adapters`).
    own_adapter: str | None = None

    @property
    def own(self) -> Path:
        """The folder of the most recently trained files: the adapter's if there is an adapter, else the model's."""
        return self.path if self.adapter is None else self.adapter

    @property
    def routes(self) -> Modules:
        """The modules of sentence-transformers, and what they are for."""
        if isinstance(self._modules, ConfigError):
            raise self._modules
        return self._modules

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules of sentence-transformers for documents, in order; empty if there is no `modules.json`."""
        return self.routes.documents

    @property
    def has_modules(self) -> bool:
        """Whether there is a valid `modules.json`."""
        return not isinstance(self._modules, ConfigError) and bool(self._modules.documents)

    @property
    def layout(self) -> str:
        """What the modules are for, a key of `LAYOUTS`; empty if there is no valid `modules.json`."""
        return "" if isinstance(self._modules, ConfigError) else self._modules.layout

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
        inner = self._modules.documents[0].folder
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
    def _modules(self) -> Modules | ConfigError:
        try:
            modules = read_modules(self.path)
        except ConfigError as problem:
            return problem
        if self._config is None or self._config.get("model_type") != MODEL2VEC:
            return modules
        if any(module.kind in WITH_WEIGHTS for module in modules.documents):
            return modules
        # model2vec reads only this key; some folders of model2vec have no modules.json.
        ends = [Module("Normalize", self.path)] if self._config.get("normalize", False) is True else []
        place = modules.documents[0].folder if modules.documents else self.path
        return Modules("dense", (Module(KIND, place), Module("Pooling", place), *ends))


def open_folder(folder: Path | ModelFolder) -> ModelFolder:
    """Opens a model folder by its path. A folder that is already open is returned unchanged."""
    return folder if isinstance(folder, ModelFolder) else ModelFolder(folder)


def read_settings(path: Path) -> ConfigJson:
    """Reads a JSON file with settings; without such a file, the settings are empty."""
    return ConfigJson(path, read_json(path, ConfigError) if path.is_file() else {})
