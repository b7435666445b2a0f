"""Reads `config.json`. An error about a value names the key, the value and the values that are expected."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlxbert.durable_files import from_json
from mlxbert.errors import ConfigError, MlxbertError

# The file names of the configurations in Google's releases, by model_type.
GOOGLE_CONFIGS = {kind: f"{kind}_config*.json" for kind in ("bert", "albert", "electra")}


def _read(path: Path, error: type[MlxbertError]) -> Any:
    try:
        return from_json(path.read_bytes().decode("utf-8-sig"))
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror})") from None
    except ValueError as problem:
        raise error(f"{path}: the file is not valid JSON ({problem})") from None


def read_json(path: Path, error: type[MlxbertError]) -> dict[str, Any]:
    """Reads the JSON object in a file; problems are raised as `error`."""
    value = _read(path, error)
    if not isinstance(value, dict):
        raise error(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_json_list(path: Path, error: type[MlxbertError]) -> list[Any]:
    """Reads the JSON array in a file; problems are raised as `error`."""
    value = _read(path, error)
    if not isinstance(value, list):
        raise error(f"{path}: expected a JSON array, found {type(value).__name__}")
    return value


# The configuration of a GLiNER model, and the key of `ConfigJson.values` for what does not describe its encoder.
GLINER_CONFIG, GLINER, _ENCODER = "gliner_config.json", "gliner", "encoder_config"
GLINER_TOKENS = {"ent_token": "<<ENT>>", "sep_token": "<<SEP>>"}  # the usual values of these keys


@dataclass(frozen=True)
class ConfigJson:
    """The content of a `config.json` and its path. A key with the value `null` counts as missing."""

    path: Path  # the path of the file
    values: dict[str, Any]  # the parsed content
    # The names that a family uses for keys, by the standard name. Functions take the standard name; errors state the
    # name in the file.
    aliases: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""  # for a nested object, the keys that lead to it, each followed by a dot
    added: tuple[str, ...] = ()  # keys in `values` that are not in the file, because Google's releases omit them

    def with_aliases(self, aliases: Mapping[str, str]) -> "ConfigJson":
        return replace(self, aliases=aliases)

    def _key(self, key: str) -> str:
        alias = self.aliases.get(key, key)
        if alias == key or self.values.get(key) is None:
            return key if alias not in self.values and key in self.values else alias
        if self.values.get(alias) is None:
            return key
        if self.values[alias] != self.values[key]:
            raise ConfigError(
                f"{self.path}: {self.prefix}{alias} is {self.values[alias]!r:.200}, but {key}, which has the same "
                f"meaning, is {self.values[key]!r:.200}",
                hint="remove the wrong key",
            )
        return alias

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of a key without checking it. If the key is missing or `null`, returns the default."""
        value = self.values.get(self._key(key))
        return default if value is None else value

    def refuse(self, key: str, expected: str, hint: str | None = None) -> ConfigError:
        """Returns the error to raise for a value that is invalid or missing."""
        name = self._key(key)
        state = f"is {self.values[name]!r:.200}" if name in self.values else "is missing"
        return ConfigError(f"{self.path}: {self.prefix}{name} {state}, expected {expected}", hint=hint)

    def integer(self, key: str, *, least: int = 1, most: int = 2**31 - 1, default: int | None = None) -> int:
        """Reads a whole number from `least` to `most`."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.refuse(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, *, low: float, high: float, default: float | None = None) -> float:
        """Reads a number from `low` to `high`."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.refuse(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def string(self, key: str, *, default: str | None = None) -> str:
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, "a string")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        """Reads a list of strings; returns an empty one if the key is missing."""
        value = self.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(key, "a list of strings")
        return tuple(value)

    def nested(self, key: str) -> "ConfigJson":
        """Reads a nested object, which has the same typed lookups and is empty if the key is missing."""
        values = self.get(key, {})
        if not isinstance(values, dict):
            raise self.refuse(key, "an object")
        return ConfigJson(self.path, values, prefix=f"{self.prefix}{self._key(key)}.")

    def flag(self, key: str, *, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def choice(self, key: str, known: Iterable[str], default: str | None = None) -> str:
        value = self.get(key, default)
        if value not in tuple(known):
            raise self.refuse(key, f"one of {', '.join(known)}")
        return str(value)

    def only(self, key: str, allowed: Any, why: str, hint: str | None = None) -> None:
        """Raises `ConfigError` if `key` has a value other than `allowed`; a missing key is accepted."""
        if self.get(key, allowed) != allowed:
            raise ConfigError(
                f"{self.path}: {self.prefix}{self._key(key)} is {self.get(key)!r:.200}, but {why}", hint=hint
            )


def google_config(folder: Path) -> tuple[Path, str] | None:
    """Finds the configuration of a Google release, and the `model_type` that its file name contains.

    Returns `None` if there is a `config.json`, or if there is no configuration at all.
    """
    if (folder / "config.json").is_file():
        return None
    configs = [(path, kind) for kind, name in GOOGLE_CONFIGS.items() for path in sorted(folder.glob(name))]
    if len(configs) > 1:
        raise ConfigError(
            f"{folder}: the folder has the configurations {', '.join(path.name for path, _ in configs[:5])}, "
            "expected one",
            hint="keep only the right file, or rename the right file to config.json and add its model_type",
        )
    return configs[0] if configs else None


def read_config(folder: Path) -> ConfigJson:
    """Reads the `config.json` of a model folder, or else the configuration of a Google release.

    In a folder with a `gliner_config.json`, that file is read instead.
    """
    path = folder / "config.json"
    if (folder / GLINER_CONFIG).is_file():
        return _read_gliner(folder / GLINER_CONFIG, path)
    if path.is_file():
        return ConfigJson(path, read_json(path, ConfigError))
    google = google_config(folder)
    if google is None:
        raise ConfigError(
            f"{folder}: the folder has no config.json", hint="use the folder with config.json and the weights"
        )
    path, model_type = google
    values = read_json(path, ConfigError)
    added = () if "model_type" in values else ("model_type",)
    return ConfigJson(path, {"model_type": model_type} | values, added=added)


def _read_gliner(path: Path, of_encoder: Path) -> ConfigJson:
    """Reads the configuration of a GLiNER model: the values of its encoder, and the other values in the key `gliner`.

    Older files do not describe the encoder, but name it. Its `config.json` is then expected in the same folder.
    """
    values = read_json(path, ConfigError)
    own = {key: value for key, value in values.items() if key != _ENCODER}
    encoder = values.get(_ENCODER)
    if encoder is None and of_encoder.is_file():
        encoder = read_json(of_encoder, ConfigError)
    if not isinstance(encoder, dict):
        name = own.get("model_name")
        raise ConfigError(
            f"{path}: {_ENCODER} is {encoder!r:.60}, expected an object that describes the encoder",
            hint=f"copy config.json and the tokenizer's files of {name} into the folder" if name else None,
        )
    return ConfigJson(path, encoder | {GLINER: own})


def gliner_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a `gliner_config.json` with these values (see `ConfigJson.values`)."""
    encoder = {key: value for key, value in values.items() if key not in (GLINER, "architectures")}
    return {**values[GLINER], "vocab_size": values["vocab_size"], _ENCODER: encoder}
