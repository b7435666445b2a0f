"""Reading `config.json`: typed look-ups whose errors name the key, the value and what was expected."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mlxbert.errors import ConfigError, MlxbertError

# What Google's releases call their configurations, by model_type.
GOOGLE_CONFIGS = {kind: f"{kind}_config*.json" for kind in ("bert", "albert", "electra")}


def _read(path: Path, error: type[MlxbertError]) -> Any:
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as problem:
        raise error(f"{path}: cannot be read ({problem.strerror})") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: not valid JSON ({problem})") from None


def read_json(path: Path, error: type[MlxbertError]) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        MlxbertError: Of the kind `error`; the file cannot be read, is no JSON, or holds something else than an object.
    """
    value = _read(path, error)
    if not isinstance(value, dict):
        raise error(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def read_json_list(path: Path, error: type[MlxbertError]) -> list[Any]:
    """The JSON list in a file; see `read_json`."""
    value = _read(path, error)
    if not isinstance(value, list):
        raise error(f"{path}: expected a JSON list, found {type(value).__name__}")
    return value


@dataclass(frozen=True)
class ConfigJson:
    """A `config.json` and where it came from; `null` means that a key is not there.

    Attributes:
        spelled: What this family calls a key, by its usual name; look-ups take the usual name, errors tell the one
            that the file has.
        inside: For a table within the file, the keys that lead to it, a dot after each.
        added: Keys of `values` that the file itself lacks: Google's releases leave them out.
    """

    path: Path
    values: dict[str, Any]
    spelled: Mapping[str, str] = field(default_factory=dict)
    inside: str = ""
    added: tuple[str, ...] = ()

    def respelled(self, spelled: Mapping[str, str]) -> "ConfigJson":
        """The same with other names for keys."""
        return replace(self, spelled=spelled)

    def _key(self, key: str) -> str:
        """The name that the file has for a key.

        Raises:
            ConfigError: The file has both, and they disagree.
        """
        own = self.spelled.get(key, key)
        if own == key or self.values.get(key) is None:
            return key if own not in self.values and key in self.values else own
        if self.values.get(own) is None:
            return key
        if self.values[own] != self.values[key]:
            raise ConfigError(
                f"{self.path}: {self.inside}{own} is {self.values[own]!r:.200} and {key} is {self.values[key]!r:.200}, "
                "expected the same: they are two names of one thing",
                hint="take out the one that is wrong",
            )
        return own

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key as it is; the default where there is none, or `null`."""
        value = self.values.get(self._key(key))
        return default if value is None else value

    def refuse(self, key: str, expected: str, hint: str | None = None) -> ConfigError:
        """The error for a value that is not as expected."""
        own = self._key(key)
        found = f"is {self.values[own]!r:.200}" if own in self.values else "is missing"
        return ConfigError(f"{self.path}: {self.inside}{own} {found}, expected {expected}", hint=hint)

    def integer(self, key: str, *, least: int = 1, most: int = 2**31 - 1, default: int | None = None) -> int:
        """A whole number from `least` to `most`."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.refuse(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, *, low: float, high: float, default: float | None = None) -> float:
        """A number between `low` and `high`."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.refuse(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def text(self, key: str, *, default: str | None = None) -> str:
        """A string."""
        value = self.get(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, "a string")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty where there is none."""
        value = self.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refuse(key, "a list of strings")
        return tuple(value)

    def table(self, key: str) -> "ConfigJson":
        """A table in the file, read as the file is; an empty one where there is none."""
        values = self.get(key, {})
        if not isinstance(values, dict):
            raise self.refuse(key, "a table")
        return ConfigJson(self.path, values, inside=f"{self.inside}{self._key(key)}.")

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def choice(self, key: str, known: Iterable[str], default: str | None = None) -> str:
        """One of the known strings."""
        value = self.get(key, default)
        if value not in tuple(known):
            raise self.refuse(key, f"one of {', '.join(known)}")
        return str(value)

    def only(self, key: str, allowed: Any, why: str, hint: str | None = None) -> None:
        """Refuses any value of `key` but `allowed`, which is also what its absence means."""
        if self.get(key, allowed) != allowed:
            raise ConfigError(f"{self.path}: {self.inside}{self._key(key)} is {self.get(key)!r:.200}: {why}", hint=hint)


def google_config(folder: Path) -> tuple[Path, str] | None:
    """Google's configuration of a folder without `config.json`, and the `model_type` that its name tells.

    Raises:
        ConfigError: There are several.
    """
    if (folder / "config.json").is_file():
        return None
    found = [(path, kind) for kind, name in GOOGLE_CONFIGS.items() for path in sorted(folder.glob(name))]
    if len(found) > 1:
        raise ConfigError(
            f"{folder}: {', '.join(path.name for path, _ in found[:5])}: expected one configuration",
            hint="keep the one that is wanted, or call it config.json and add its model_type",
        )
    return found[0] if found else None


def read_config(folder: Path) -> ConfigJson:
    """The `config.json` of a model folder, or what Google's releases have in its place."""
    path = folder / "config.json"
    if path.is_file():
        return ConfigJson(path, read_json(path, ConfigError))
    google = google_config(folder)
    if google is None:
        raise ConfigError(
            f"{folder}: no config.json in this folder", hint="give the folder that holds config.json and the weights"
        )
    path, model_type = google
    values = read_json(path, ConfigError)
    added = () if "model_type" in values else ("model_type",)
    return ConfigJson(path, {"model_type": model_type} | values, added=added)
