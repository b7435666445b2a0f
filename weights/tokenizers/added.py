"""Tokens that are recognised before anything else: which files name them, and the ids that they get.

The order is that of transformers: tokens with an id, special tokens by role, further special tokens.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from mlxbert.errors import TokenizerError
from mlxbert.weights.config_json import read_json
from mlxbert.weights.tokenizers.settings import NAMED, content_of, make_token

_LISTS = ("extra_special_tokens", "additional_special_tokens")


@dataclass(frozen=True)
class Added:
    """A token and what is known of it.

    Attributes:
        token: With its flags.
        number: The id that files state for it.
        own: Whether it is the class's own, which it need not have.
        decided: Whether its flags win over those in a `tokenizer.json`.
    """

    token: AddedToken
    number: int | None = None
    own: bool = False
    decided: bool = False


def _special(content: str, entry: object) -> AddedToken:
    return make_token(content, entry, normalized=False, special=True)


def _further(settings: Mapping[str, Any]) -> list[AddedToken]:
    """Special tokens beside those with a role: under names of their own, then in a list."""
    roles = {f"{role}_token" for role in NAMED}
    table = {key: value for key, value in settings.items() if key.endswith("_token") and key not in roles}
    entries: list[object] = []
    for key in _LISTS:
        found = settings.get(key) or []
        if isinstance(found, dict):
            table |= found
        elif not entries:  # of two lists transformers reads the first
            entries = found
    named = [(content_of(entry), entry) for entry in (*table.values(), *entries)]
    return [_special(content, entry) for content, entry in named if content]


def _numbered(folder: Path, settings: Mapping[str, Any], special: Mapping[str, AddedToken]) -> list[Added]:
    """The tokens with an id of their own, in the order of the ids."""
    found: dict[str, Added] = {}
    path = folder / "added_tokens.json"
    if path.is_file():
        for content, number in read_json(path, TokenizerError).items():
            if not isinstance(number, int) or isinstance(number, bool):
                raise TokenizerError(f"{path}: {content!r} has id {number!r}, expected a whole number")
            found[content] = Added(special.get(content) or AddedToken(content, normalized=True), number)
    path = folder / "tokenizer_config.json"
    entries = settings.get("added_tokens_decoder") or {}
    if not isinstance(entries, dict):
        raise TokenizerError(f"{path}: added_tokens_decoder is {entries!r:.60}, expected a table")
    for number, entry in entries.items():
        text = content_of(entry)
        if text is None or not str(number).isdecimal():
            raise TokenizerError(f"{path}: added_tokens_decoder: {number!r} is no token")
        token = make_token(text, entry)
        if text in special:
            token.special = True
        found[text] = Added(token, int(number), decided=True)
    return sorted(found.values(), key=lambda added: added.number or 0)


def collect(
    folder: Path, settings: Mapping[str, Any], roles: Mapping[str, AddedToken], defaults: Mapping[str, str]
) -> list[Added]:
    """All added tokens of a folder, each once, in the order in which they are to be added.

    Args:
        folder: For `added_tokens.json`.
        settings: What `read_settings` gives.
        roles: The special tokens by role.
        defaults: Those of the class.
    """
    further = _further(settings)
    special = {token.content: token for token in (*reversed(further), *roles.values())}
    found = {added.token.content: added for added in _numbered(folder, settings, special)}
    for role in NAMED:
        if role in roles:
            token = roles[role]
            found.setdefault(token.content, Added(token, own=token.content == defaults.get(role)))
    for token in further:
        found.setdefault(token.content, Added(token))
    return list(found.values())


def _missing(tokenizer: Tokenizer, added: Iterable[Added]) -> list[Added]:
    return [one for one in added if tokenizer.token_to_id(one.token.content) is None]


def add_tokens(tokenizer: Tokenizer, added: Sequence[Added], folder: Path, *, complete: bool) -> None:
    """Adds tokens; those that the vocabulary has keep their ids.

    Args:
        tokenizer: What they are added to.
        added: In the order of new ids.
        folder: For messages.
        complete: Whether tokens of the class that the vocabulary lacks are put behind it, even if nothing else is.
    """
    there = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    # A model whose vocabulary lacks a token of its class has no row for it, unless rows were added for others, too.
    complete = complete or any(one.number is None and not one.own for one in _missing(tokenizer, added))
    for one in added:
        content = one.token.content
        lacks = tokenizer.token_to_id(content) is None
        if lacks and one.own and not complete:
            continue
        if lacks or one.decided or content not in there:
            (tokenizer.add_special_tokens if one.token.special else tokenizer.add_tokens)([one.token])
        got = tokenizer.token_to_id(content)
        if one.number not in (None, got):
            raise TokenizerError(
                f"{folder}: added token {content!r} should have id {one.number}, the vocabulary gives it {got}",
                hint="vocabulary, added_tokens.json and tokenizer_config.json must be of one model",
            )
