"""Reads the declarations of added tokens, which are matched before a text is split, and assigns their ids.

As in transformers, tokens with an id come first, then special tokens with a role, then other special tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from mlxbert.errors import TokenizerError
from mlxbert.weights.formats.config_json import read_json
from mlxbert.weights.tokenizers.library_guards import MAX_TOKEN
from mlxbert.weights.tokenizers.text_growth import check_added, growth_of
from mlxbert.weights.tokenizers.tokenizer_settings import SPECIAL_ROLES, content_of, make_token

_LISTS = ("extra_special_tokens", "additional_special_tokens")


@dataclass(frozen=True)
class Added:
    """An added token."""

    token: AddedToken  # the token with its flags
    number: int | None = None  # the id that the files declare for the token, if any
    # Whether the token comes from the defaults of the tokenizer class. The vocabulary may lack it.
    from_class: bool = False
    overrides: bool = False  # whether the token's flags override the flags in a `tokenizer.json`


def _special(content: str, entry: object) -> AddedToken:
    return make_token(content, entry, normalized=False, special=True)


def _extra_special(settings: Mapping[str, Any]) -> list[AddedToken]:
    """Returns the special tokens without a standard role: first tokens with custom names, then the tokens in a list."""
    roles = {f"{role}_token" for role in SPECIAL_ROLES}
    by_name = {key: value for key, value in settings.items() if key.endswith("_token") and key not in roles}
    entries: list[object] = []
    for key in _LISTS:
        listed = settings.get(key) or []
        if isinstance(listed, dict):
            by_name |= listed
        elif not entries:  # transformers reads only the first of two lists
            entries = listed
    tokens = [(content_of(entry), entry) for entry in (*by_name.values(), *entries)]
    return [_special(content, entry) for content, entry in tokens if content]


def _with_ids(folder: Path, settings: Mapping[str, Any], special: Mapping[str, AddedToken]) -> list[Added]:
    """Reads the tokens that declare an id, sorted by id."""
    by_content: dict[str, Added] = {}
    path = folder / "added_tokens.json"
    if path.is_file():
        for content, number in read_json(path, TokenizerError).items():
            if not isinstance(number, int) or isinstance(number, bool):
                raise TokenizerError(f"{path}: token {content!r} has id {number!r}, expected a whole number")
            by_content[content] = Added(special.get(content) or AddedToken(content, normalized=True), number)
    path = folder / "tokenizer_config.json"
    entries = settings.get("added_tokens_decoder") or {}
    if not isinstance(entries, dict):
        raise TokenizerError(f"{path}: added_tokens_decoder is {entries!r:.60}, expected an object")
    for number, entry in entries.items():
        text = content_of(entry)
        if text is None or not str(number).isdecimal():
            raise TokenizerError(
                f"{path}: added_tokens_decoder has the entry {{{number!r}: {entry!r:.60}}}, expected an id and a token"
            )
        token = make_token(text, entry)
        if text in special:
            token.special = True
        by_content[text] = Added(token, int(number), overrides=True)
    return sorted(by_content.values(), key=lambda added: added.number or 0)


def collect(
    folder: Path, settings: Mapping[str, Any], roles: Mapping[str, AddedToken], defaults: Mapping[str, str]
) -> list[Added]:
    """Returns all added tokens of a folder, without duplicates, in the order in which they are added.

    `defaults` holds the special tokens of the tokenizer class.
    """
    extra = _extra_special(settings)
    special = {token.content: token for token in (*reversed(extra), *roles.values())}
    by_content = {added.token.content: added for added in _with_ids(folder, settings, special)}
    for role in SPECIAL_ROLES:
        if role in roles:
            token = roles[role]
            by_content.setdefault(token.content, Added(token, from_class=token.content == defaults.get(role)))
    for token in extra:
        by_content.setdefault(token.content, Added(token))
    return list(by_content.values())


def _missing(tokenizer: Tokenizer, added: Iterable[Added]) -> list[Added]:
    return [entry for entry in added if tokenizer.token_to_id(entry.token.content) is None]


def add_tokens(tokenizer: Tokenizer, added: Sequence[Added], folder: Path, *, complete: bool) -> None:
    """Adds tokens to a tokenizer. Tokens that are already in the vocabulary keep their ids.

    If `complete` is set, default tokens of the class that the vocabulary lacks are always appended. Otherwise they are
    appended only if other tokens are appended, too.
    """
    check_added(folder, [entry.token.content for entry in added if entry.token.normalized], growth_of(tokenizer).total)
    longest = max((entry.token.content for entry in added), key=len, default="")
    if len(longest) > MAX_TOKEN:
        raise TokenizerError(
            f"{folder}: added token {longest!r:.40} has {len(longest):,} characters, expected at most {MAX_TOKEN:,}"
        )
    present = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    # If the vocabulary lacks a token of its class, the model has no embedding for it, unless embeddings were added for
    # other tokens as well.
    complete = complete or any(entry.number is None and not entry.from_class for entry in _missing(tokenizer, added))
    chosen = [
        entry.token
        for entry in added
        if (complete or not entry.from_class or tokenizer.token_to_id(entry.token.content) is not None)
        and (entry.token.content not in present or (entry.overrides and entry.token != present[entry.token.content]))
    ]
    # Many at once: the library rebuilds its tables with each call, and Gemma has thousands of tokens.
    for special, tokens in groupby(chosen, key=lambda token: token.special):
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([*tokens])
    for entry in added:
        got = tokenizer.token_to_id(entry.token.content)
        if entry.number not in (None, got):
            raise TokenizerError(
                f"{folder}: added token {entry.token.content!r} has id {got} in the vocabulary, expected "
                f"{entry.number}",
                hint="the vocabulary, added_tokens.json and tokenizer_config.json must be from the same model",
            )
