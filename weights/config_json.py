"""Reading `config.json`: typed look-ups whose errors name the key, the value and what was expected."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxbert.errors import ConfigError, MlxbertError


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
    """A `config.json` and where it came from."""

    path: Path
    values: dict[str, Any]

    def _refuse(self, key: str, expected: str) -> ConfigError:
        if key not in self.values:
            return ConfigError(f"{self.path}: {key} is missing, expected {expected}")
        return ConfigError(f"{self.path}: {key} is {self.values[key]!r}, expected {expected}")

    def integer(self, key: str, *, least: int = 1, most: int = 2**31 - 1, default: int | None = None) -> int:
        """A whole number from `least` to `most`."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._refuse(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str, *, low: float, high: float, default: float) -> float:
        """A number between `low` and `high`."""
        value = self.values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self._refuse(key, f"a number from {low:g} to {high:g}")
        return float(value)

    def text(self, key: str, *, default: str | None = None) -> str:
        """A string."""
        value = self.values.get(key, default)
        if not isinstance(value, str):
            raise self._refuse(key, "a string")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false; `null` means the default."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self._refuse(key, "true or false")
        return default if value is None else value

    def choice(self, key: str, known: Iterable[str]) -> str:
        """One of the known strings."""
        value = self.values.get(key)
        if value not in tuple(known):
            raise self._refuse(key, f"one of {', '.join(known)}")
        return str(value)

    def only(self, key: str, allowed: Any, why: str) -> None:
        """Refuses any value of `key` but `allowed`, which is also what its absence means."""
        if self.values.get(key, allowed) not in (allowed, None):
            raise ConfigError(f"{self.path}: {key} is {self.values[key]!r}: {why}")


def read_config(folder: Path) -> ConfigJson:
    """The `config.json` of a model folder."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(
            f"{folder}: no config.json in this folder", hint="give the folder that holds config.json and the weights"
        )
    return ConfigJson(path, read_json(path, ConfigError))
