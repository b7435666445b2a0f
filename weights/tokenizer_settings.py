"""What the files beside a vocabulary say: special tokens, added tokens, switches."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from mlxbert.errors import MlxbertError, TokenizerError
from mlxbert.weights.config_json import read_json

ROLES = ("unk", "sep", "pad", "cls", "mask")
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_NO_CLASS = ("PreTrainedTokenizer", "PreTrainedTokenizerFast", "TokenizersBackend", "AutoTokenizer")


def read_settings(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json`, completed by `special_tokens_map.json`; empty where there are none."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name, TokenizerError)
    return settings


def declared_class(folder: Path, settings: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The tokenizer class that the files name, without `Fast`, and the type of the model."""
    try:
        config = read_json(folder / "config.json", TokenizerError)
    except MlxbertError:  # a tokenizer alone, or a file that whoever needs it will complain about
        config = {}
    for values in (settings, config):
        name = values.get("tokenizer_class")
        if name is not None and not isinstance(name, str):
            raise TokenizerError(f"{folder}: tokenizer_class is {name!r}, expected the name of a class")
        if name and name not in _NO_CLASS:
            return name.removesuffix("Fast"), None
    kind = config.get("model_type")
    return None, kind if isinstance(kind, str) else None


def flag(folder: Path, settings: Mapping[str, Any], key: str) -> bool | None:
    """A switch of `tokenizer_config.json`, `None` where it says nothing."""
    value = settings.get(key)
    if value is not None and not isinstance(value, bool):
        raise TokenizerError(f"{folder}/tokenizer_config.json: {key} is {value!r}, expected true, false or null")
    return value


def switch(folder: Path, settings: Mapping[str, Any], key: str, *, default: bool) -> bool:
    """A switch of `tokenizer_config.json` or its default."""
    value = flag(folder, settings, key)
    return default if value is None else value


def _content(value: object) -> str | None:
    """A token as the files write it: plain, or `{"content": …}`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _token(content: str, entry: object, **flags: bool) -> AddedToken:
    """A token to be recognised in the text before anything else, with the flags its file gives it."""
    if isinstance(entry, Mapping):
        flags |= {key: bool(entry[key]) for key in _FLAGS if key in entry}
    return AddedToken(content, **flags)


def special_tokens(
    settings: Mapping[str, Any], defaults: Mapping[str, str], *, mask_lstrip: bool
) -> dict[str, AddedToken]:
    """The special tokens by role: what the settings say, else the defaults."""
    found = {}
    for role in ROLES:
        entry = settings.get(f"{role}_token")
        content = _content(entry) or defaults.get(role)
        if content is not None:
            lstrip = role == "mask" and mask_lstrip
            found[role] = _token(content, entry, lstrip=lstrip, normalized=False, special=True)
    return found


def never_split(folder: Path, settings: Mapping[str, Any], vocab: Mapping[str, int]) -> list[AddedToken]:
    """Words of the vocabulary that are not to be split."""
    tokens = settings.get("never_split") or []
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise TokenizerError(f"{folder}/tokenizer_config.json: never_split is {tokens!r}, expected a list of strings")
    for token in tokens:
        if token not in vocab:
            raise TokenizerError(f"{folder}: never_split names {token!r}, which is not in the vocabulary")
    return [AddedToken(token, single_word=True, normalized=False) for token in tokens]


def added_tokens(folder: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Further tokens that are recognised before anything else, by the id they must get."""
    found: dict[int, AddedToken] = {}
    if (folder / "added_tokens.json").is_file():
        for token, number in read_json(folder / "added_tokens.json", TokenizerError).items():
            if not isinstance(number, int) or isinstance(number, bool):
                raise TokenizerError(
                    f"{folder}/added_tokens.json: {token!r} has id {number!r}, expected a whole number"
                )
            found[number] = AddedToken(token, normalized=False)
    entries = settings.get("added_tokens_decoder") or {}
    if not isinstance(entries, dict):
        raise TokenizerError(
            f"{folder}/tokenizer_config.json: added_tokens_decoder is {entries!r:.60}, expected a table"
        )
    for number, entry in entries.items():
        content = _content(entry)
        if content is None or not str(number).isdecimal():
            raise TokenizerError(f"{folder}/tokenizer_config.json: added_tokens_decoder: {number!r} is no token")
        found[int(number)] = _token(content, entry)
    return found


def add_tokens(tokenizer: Tokenizer, added: Mapping[int, AddedToken], folder: Path) -> None:
    """Adds tokens in the order of their ids, and makes sure that they get them."""
    for number, token in sorted(added.items()):
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        got = tokenizer.token_to_id(token.content)
        if got != number:
            raise TokenizerError(
                f"{folder}: added token {token.content!r} should have id {number}, the vocabulary gives it {got}"
            )
