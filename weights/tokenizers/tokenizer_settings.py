"""Reads the files with a tokenizer's settings: its class, special tokens, added tokens and flags."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from mlxbert.errors import MlxbertError, TokenizerError
from mlxbert.weights.formats.config_json import read_json
from mlxbert.weights.model_folder import ModelFolder

ROLES = ("unk", "sep", "pad", "cls", "mask")
SPECIAL_ROLES = ("bos", "eos", *ROLES)  # in the order in which transformers adds missing tokens
_LISTS = ("additional_special_tokens", "extra_special_tokens")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_GENERIC = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend", "AutoTokenizer")


def _check(path: Path, values: Mapping[str, Any]) -> None:

    def refuse(key: str, expected: str) -> TokenizerError:
        return TokenizerError(f"{path}: {key} is {values[key]!r:.60}, expected {expected}")

    for key in (f"{role}_token" for role in SPECIAL_ROLES):
        if values.get(key) is not None and content_of(values[key]) is None:
            raise refuse(key, 'a string, an object with "content", or null')
    for key in _LISTS:
        entries = values.get(key)
        listed = entries.values() if isinstance(entries, dict) else entries or []
        if not isinstance(listed, Iterable) or isinstance(listed, str) or None in map(content_of, listed):
            raise refuse(key, "a list or an object of tokens")
    inputs = values.get("model_input_names")
    if inputs is not None and not (isinstance(inputs, list) and all(isinstance(name, str) for name in inputs)):
        raise refuse("model_input_names", "a list of strings or null")
    limit = values.get("model_max_length")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise refuse("model_max_length", "a number or null")


def read_settings(folder: Path) -> dict[str, Any]:
    """Reads `tokenizer_config.json`; keys that it lacks are taken from `special_tokens_map.json`.

    The settings are empty if neither file exists.
    """
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            values = read_json(folder / name, TokenizerError)
            _check(folder / name, values)
            settings |= values
    return settings


def declared_class(folder: ModelFolder, settings: Mapping[str, Any]) -> tuple[str | None, str | None, bool]:
    """Returns the tokenizer class that the files name, the `model_type`, and whether a generic class is named first.

    A generic class, such as `PreTrainedTokenizerFast`, does not determine a tokenizer and is never returned.
    """
    try:
        config = folder.config_json.values
    except MlxbertError:  # a tokenizer alone, or an invalid config.json, which its reader reports
        config = {}
    generic, kind = None, config.get("model_type")
    model_type = kind if isinstance(kind, str) else None
    for values in (settings, config):
        name = values.get("tokenizer_class")
        if name is not None and not isinstance(name, str):
            raise TokenizerError(f"{folder.transformer}: tokenizer_class is {name!r}, expected the name of a class")
        if name and generic is None:
            generic = name in _GENERIC
        if name and name not in _GENERIC:
            return name, model_type, bool(generic)
    return None, model_type, bool(generic)


def flag(folder: Path, settings: Mapping[str, Any], key: str) -> bool | None:
    """Reads a flag of `tokenizer_config.json`; returns `None` if the flag is missing or null."""
    value = settings.get(key)
    if value is not None and not isinstance(value, bool):
        raise TokenizerError(f"{folder}/tokenizer_config.json: {key} is {value!r}, expected true, false or null")
    return value


def switch(folder: Path, settings: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """Reads a flag of `tokenizer_config.json`; returns `default` if the flag is missing or null."""
    value = flag(folder, settings, key)
    return default if value is None else value


def content_of(value: object) -> str | None:
    """Returns the text of a token, given its entry: a string or an object with `content`; `None` for other entries."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def make_token(content: str, entry: object, **flags: bool) -> AddedToken:
    """Creates a token that is matched before a text is split. The flags in its entry override `flags`."""
    if isinstance(entry, Mapping):
        flags |= {key: bool(entry[key]) for key in _FLAGS if key in entry}
    return AddedToken(content, **flags)


def special_tokens(
    settings: Mapping[str, Any], defaults: Mapping[str, str], *, mask_lstrip: bool
) -> dict[str, AddedToken]:
    """Returns the special tokens by role, including bos and eos, from the settings or else from the defaults."""
    tokens = {}
    for role in SPECIAL_ROLES:
        entry = settings.get(f"{role}_token")
        content = content_of(entry) or defaults.get(role)
        if content is not None:
            lstrip = role == "mask" and mask_lstrip
            tokens[role] = make_token(content, entry, lstrip=lstrip, normalized=False, special=True)
    return tokens


def never_split(folder: Path, settings: Mapping[str, Any], vocab: Mapping[str, int]) -> list[AddedToken]:
    """Reads the list of words that the tokenizer must not split; all of them must be in the vocabulary."""
    tokens = settings.get("never_split") or []
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise TokenizerError(f"{folder}/tokenizer_config.json: never_split is {tokens!r}, expected a list of strings")
    for token in tokens:
        if token not in vocab:
            raise TokenizerError(f"{folder}: never_split names {token!r}, which is not in the vocabulary")
    return [AddedToken(token, single_word=True, normalized=False) for token in tokens]
