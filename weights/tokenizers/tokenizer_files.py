"""Reads the tokenizer of a model folder into a `tokenizers` object."""

import gc
import json
import logging
import re
import string
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from mlxbert.errors import MlxbertError, TokenizerError
from mlxbert.mac_files import is_system_file
from mlxbert.weights.formats.config_json import GLINER, GLINER_TOKENS
from mlxbert.weights.formats.static_table import MODULE
from mlxbert.weights.model_folder import ModelFolder, open_folder
from mlxbert.weights.tokenizers.added_tokens import add_tokens, collect
from mlxbert.weights.tokenizers.library_guards import check_ids, guarded, read_checked
from mlxbert.weights.tokenizers.text_growth import check_templates
from mlxbert.weights.tokenizers.tokenizer_classes import (
    CLASSES,
    MODEL_TYPES,
    NO_ENDS,
    REFUSED,
    UNCHANGED_TYPES,
    Ends,
    TokenizerClass,
    effect,
    other_ids,
)
from mlxbert.weights.tokenizers.tokenizer_settings import (
    ROLES,
    SPECIAL_ROLES,
    declared_class,
    flag,
    read_settings,
    special_tokens,
)

TOKENIZER_JSON = "tokenizer.json"
_LOG = logging.getLogger("mlxbert")
_UNLIMITED = 10**6  # transformers writes 1e30 for a tokenizer without a limit
# Settings that override a tokenizer.json, and the attributes of the steps that they change.
_BERT_SWITCHES = {
    "do_lower_case": "lowercase",
    "strip_accents": "strip_accents",
    "tokenize_chinese_chars": "handle_chinese_chars",
}
_BYTE_SWITCHES = {"add_prefix_space": "add_prefix_space"}
_LEFT_SETTINGS = {  # and what mlxbert does instead of "left"
    "padding_side": "padded on the right: the results are the same as without padding",
    "truncation_side": "truncated at the end",
}


@dataclass(frozen=True)
class Spelling:
    """How a vocabulary marks words: with a prefix on the first token of a word ("Ġ", "▁"), or on all others ("##")."""

    word_start: str
    continuation_prefix: str

    def is_continuation(self, token: str) -> bool:
        """Whether a token continues a word, rather than starting one."""
        if self.word_start:
            return not token.startswith(self.word_start)
        return bool(self.continuation_prefix) and token.startswith(self.continuation_prefix)


@dataclass(frozen=True)
class TokenizerFiles:
    """The tokenizer of a model folder, as its files describe it."""

    tokenizer: Tokenizer  # the tokenizer, without padding and truncation
    # The special tokens in the vocabulary, by role: `unk`, `sep`, `pad`, `cls` and `mask`. If the tokenizer has neither
    # `cls` nor `sep`, also `bos` and `eos`.
    special: dict[str, str]
    spelling: Spelling  # how tokens mark the boundaries of words
    max_length: int | None  # the maximum input length in tokens, if the files state one
    # Whether transformers passes segments (`token_type_ids`) to the model; `None` if version 4 does, but version 5 does
    # not.
    segments: bool | None = True
    # The `model_type` of a static model (see `mlxbert.weights.static_folder`); `None` for other models.
    static: str | None = None

    @property
    def lower_cases(self) -> bool:
        """Whether the tokenizer lowercases texts."""
        normalizer = self.tokenizer.normalizer
        return normalizer is not None and "A" not in normalizer.normalize_str("A")


def _choose(folder: Path, name: str | None, model_type: str | None) -> TokenizerClass | None:
    """Finds the tokenizer class of a folder.

    Returns `None` if the class is unknown or not named, but the folder has a `tokenizer.json`, which can be read
    without a class.
    """
    has_json = (folder / TOKENIZER_JSON).is_file()
    declared = name  # for messages; the fast and the slow classes of transformers are read the same way
    name = name and name.removesuffix("Fast")
    if name in REFUSED:
        raise TokenizerError(
            f"{folder}: tokenizer_class is {declared!r}, which mlxbert does not read because {REFUSED[name]}",
            hint="choose a model with another tokenizer",
        )
    if name is None:
        name = MODEL_TYPES.get(model_type or "")
    if name in CLASSES:
        kind = CLASSES[name]
        missing = [file for file in kind.files if not (folder / file).is_file()]
        if missing and not has_json:
            raise TokenizerError(
                f"{folder}: the folder has no tokenizer.json and no {' and no '.join(missing)}, "
                f"expected the files of {declared or name}",
                hint=_missing_hint(folder, missing),
            )
        return kind
    if has_json:
        return None
    if name is not None:
        raise TokenizerError(
            f"{folder}: tokenizer_class is {declared!r}, expected one of {', '.join(sorted(CLASSES))}, or any "
            "class with a tokenizer.json",
            hint="add the model's tokenizer.json to the folder",
        )
    kinds = [kind for kind in CLASSES.values() if all((folder / file).is_file() for file in kind.files)]
    if not kinds:
        files = dict.fromkeys(" with ".join(kind.files) for kind in CLASSES.values())
        raise TokenizerError(
            f"{folder}: the folder has no tokenizer.json and no vocabulary ({', '.join(files)})",
            hint="use a folder that also has the vocabulary",
        )
    return kinds[0]


def _missing_hint(folder: Path, missing: list[str]) -> str:
    """Returns the hint for missing files. SentencePiece models may have other names, such as 30k-clean.model."""
    models_here = sorted(path for path in folder.glob("*.model") if not is_system_file(path.name))
    if len(missing) == len(models_here) == 1 and missing[0].endswith(".model"):
        return f"if {models_here[0].name} is the vocabulary of the model, copy it to {missing[0]}"
    return f"copy {' and '.join(missing)} of the model into the folder"


def _present(tokenizer: Tokenizer, tokens: Mapping[str, AddedToken]) -> dict[str, str]:
    """Returns the special tokens in the vocabulary, by role; bos and eos only if there is neither cls nor sep."""
    roles = ROLES if {"cls", "sep"} & tokens.keys() else SPECIAL_ROLES
    contents = {role: tokens[role].content for role in roles if role in tokens}
    return {role: content for role, content in contents.items() if tokenizer.token_to_id(content) is not None}


def _from_vocabulary(
    folder: Path, kind: TokenizerClass, settings: Mapping[str, Any]
) -> tuple[Tokenizer, dict[str, str]]:
    tokens = special_tokens(settings, kind.special, mask_lstrip=kind.mask_lstrip)
    special = {role: token.content for role, token in tokens.items()}
    tokenizer = kind.build(folder, settings, special)
    if not kind.appends_missing:
        roles = ("unk", "sep", "cls") if "cls" in special else ("unk", "bos", "eos")
        for role in dict.fromkeys((*roles, kind.ends.first, kind.ends.last)):
            if tokenizer.token_to_id(special[role]) is None:
                raise TokenizerError(
                    f"{folder / kind.files[0]}: the {role} token {special[role]!r} is not in the vocabulary"
                )
    add_tokens(tokenizer, collect(folder, settings, tokens, kind.special), folder, complete=kind.appends_missing)
    tokenizer.post_processor = kind.ends.build(tokenizer, tokens, settings)
    return tokenizer, _present(tokenizer, tokens)


def _read_json(path: Path) -> Tokenizer:
    tokenizer = _read_file(path)
    tokenizer.no_truncation()  # some training runs save truncation and padding; here the caller decides both
    tokenizer.no_padding()
    _disable_dropout(path, tokenizer)
    return tokenizer


def _read_file(path: Path) -> Tokenizer:
    """Reads a `tokenizer.json` as it is."""
    try:
        data = read_checked(path)
        with guarded(str(path)):
            tokenizer = Tokenizer.from_buffer(data)
            check_templates(path, tokenizer)
    except OSError as problem:
        raise TokenizerError(f"{path}: cannot be read ({problem.strerror})") from None
    except TokenizerError:
        raise
    except Exception as problem:
        raise TokenizerError(f"{path}: the file is damaged ({problem})", hint="download the file again") from None
    return tokenizer


def _disable_dropout(path: Path, tokenizer: Tokenizer) -> None:
    """Disables the dropout of merges, which would give a text different tokens in every run.

    Some vocabularies were trained with it.
    """
    model = tokenizer.model
    if isinstance(model, models.BPE) and model.dropout:
        _LOG.warning(
            "%s: dropout %.3g of merges is disabled, so that a text always has the same tokens", path, model.dropout
        )
        model.dropout = None
        tokenizer.model = model


def _apply_steps(folder: Path, kind: TokenizerClass, tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
    """Replaces the steps of a `tokenizer.json` by the steps of its class, as transformers does.

    One case differs from transformers: if the file is cased and `tokenizer_config.json` has no `do_lower_case`, texts
    are not lowercased.
    """
    for part, ours in kind.steps(folder, settings).items():
        stated = getattr(tokenizer, part)
        if kind.keeps_steps and stated is not None:
            continue
        cased = isinstance(stated, normalizers.BertNormalizer) and not stated.lowercase
        if cased and flag(folder, settings, "do_lower_case") is None:
            ours.lowercase = False
            note = "%s does not lowercase texts, but transformers would, because do_lower_case is not set"
            _LOG.warning(note, folder / TOKENIZER_JSON)
        if _state(stated) != _state(ours):
            setattr(tokenizer, part, ours)
            _warn_replaced(folder, part, _type_name(stated), _type_name(ours))


def _warn_replaced(folder: Path, part: str, stated: str, ours: str) -> None:
    other = "another " if stated == ours else ""
    note = "%s: %s is %s, but %s%s of the tokenizer_class is used, as in transformers"
    _LOG.warning(note, folder / TOKENIZER_JSON, part, stated, other, ours)


def _type_name(step: Any) -> str:
    return "null" if step is None else type(step).__name__


def _state(step: Any) -> Any:
    return step if step is None else json.loads(step.__getstate__())


def _apply_switches(folder: Path, tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
    """Applies the settings that override a `tokenizer.json`, as in transformers."""
    for part, kind, keys in (
        ("normalizer", normalizers.BertNormalizer, _BERT_SWITCHES),
        ("pre_tokenizer", pre_tokenizers.ByteLevel, _BYTE_SWITCHES),
    ):
        step = getattr(tokenizer, part)
        if isinstance(step, kind):
            for key, attribute in keys.items():
                value = flag(folder, settings, key)
                if value is not None:
                    setattr(step, attribute, value)
            setattr(tokenizer, part, step)


def _has_token(tokenizer: Tokenizer, settings: Mapping[str, Any], role: str, token: AddedToken) -> bool:
    return bool(settings.get(f"{role}_token")) or tokenizer.token_to_id(token.content) is not None


def _from_tokenizer_json(
    folder: Path, kind: TokenizerClass | None, settings: Mapping[str, Any], *, unchanged: bool
) -> tuple[Tokenizer, dict[str, str]]:
    tokenizer = _read_json(folder / TOKENIZER_JSON)
    if kind is not None and not unchanged and not isinstance(tokenizer.model, kind.model):
        unchanged = True
        note = "%s has a vocabulary of type %s, but its tokenizer_class has %s, so the file is used unchanged"
        _LOG.warning(note, folder / TOKENIZER_JSON, type(tokenizer.model).__name__, kind.model.__name__)
    if not unchanged:
        _apply_switches(folder, tokenizer, settings)
        if kind is not None:
            _apply_steps(folder, kind, tokenizer, settings)
    match, tokens = _roles(tokenizer, kind, settings)
    add_tokens(tokenizer, collect(folder, settings, tokens, match.special if match else {}), folder, complete=False)
    special = _present(tokenizer, tokens)
    ends = None if unchanged or match is None else match.ends
    if ends is not None and match is not kind and ends.used == "always":
        ends = replace(ends, used="missing")  # a guessed class replaces nothing
    _apply_ends(folder, ends, tokenizer, tokens, settings)
    return tokenizer, special


def _apply_ends(
    folder: Path,
    ends: Ends | None,
    tokenizer: Tokenizer,
    tokens: Mapping[str, AddedToken],
    settings: Mapping[str, Any],
) -> None:
    """Sets the special tokens that are put before and after each text, as in transformers.

    The tokenizer class determines them (`ends`), otherwise the `tokenizer.json`. If neither does, texts get no special
    tokens.
    """
    before = tokenizer.post_processor
    if ends is not None and ends.applies(tokenizer, tokens):
        before_effect = effect(tokenizer)
        tokenizer.post_processor = ends.build(tokenizer, tokens, settings)
        if effect(tokenizer) != before_effect:
            _warn_replaced(folder, "post_processor", _type_name(before), _type_name(tokenizer.post_processor))
        return
    if before is None:
        tokenizer.post_processor = NO_ENDS
        _LOG.warning(
            "%s: post_processor is null, so texts get no special tokens, as in transformers", folder / TOKENIZER_JSON
        )
    for token, (number, correct) in other_ids(tokenizer).items():
        problem = "does not have" if correct is None else f"gives the id {correct}"
        note = "%s: the post_processor adds %s with the id %d, as in transformers, but the vocabulary %s this token"
        _LOG.warning(note, folder / TOKENIZER_JSON, token, number, problem)


def _roles(
    tokenizer: Tokenizer, kind: TokenizerClass | None, settings: Mapping[str, Any]
) -> tuple[TokenizerClass | None, dict[str, AddedToken]]:
    """Returns the class whose default special tokens fit a `tokenizer.json`, and the special tokens by role.

    Some folders name a class that does not match the file. In this case the first class that matches is used. But no
    class is guessed if the file has `<bos>` and `<eos>` in place of `[CLS]` and `[SEP]`, because an `<s>` in such a
    vocabulary is the HTML tag, not a special token.
    """
    declared = special_tokens(settings, kind.special if kind else {}, mask_lstrip=bool(kind and kind.mask_lstrip))
    if "eos" in declared and not {"cls", "sep"} & declared.keys():
        return kind, declared
    for match in (kind, CLASSES["BertTokenizer"], CLASSES["XLMRobertaTokenizer"]):
        if match is None:
            continue
        tokens = special_tokens(settings, match.special, mask_lstrip=match.mask_lstrip)
        if match is not kind:  # for a guessed class, use only tokens that exist
            tokens = {role: token for role, token in tokens.items() if _has_token(tokenizer, settings, role, token)}
        if {"cls", "sep"} <= _present(tokenizer, tokens).keys():
            return match, tokens
    return None, special_tokens(settings, {}, mask_lstrip=False)


def lower_cased(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a copy that lowercases texts first, as sentence-transformers does if `do_lower_case` is set."""
    changed = _copy(tokenizer)
    steps = [normalizers.Lowercase()] if changed.normalizer is None else [normalizers.Lowercase(), changed.normalizer]
    changed.normalizer = normalizers.Sequence(steps)
    return changed


def without_special(tokenizer: Tokenizer) -> Tokenizer:
    """Returns a copy that treats special tokens in a text as ordinary text."""
    changed = _copy(tokenizer)
    changed.encode_special_tokens = True
    return changed


def _copy(tokenizer: Tokenizer) -> Tokenizer:
    check_ids(tokenizer)
    with guarded("the vocabulary"):
        return Tokenizer.from_str(tokenizer.to_str())


def _spelling(tokenizer: Tokenizer) -> Spelling:
    """Finds out how the vocabulary marks words, by splitting a word that follows a space."""
    if isinstance(tokenizer.model, models.WordPiece):
        return Spelling("", tokenizer.model.continuing_subword_prefix)
    text = "a a"
    if tokenizer.normalizer is not None:
        text = tokenizer.normalizer.normalize_str(text)
    if tokenizer.pre_tokenizer is not None:
        text = "".join(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)[-1:])
    mark = text[-2:-1]
    return Spelling("" if mark in string.whitespace or mark == "a" else mark, "")


def has_words_between_spaces(tokenizer: Tokenizer) -> bool:
    """Whether the tokens of a word are independent of the text before the preceding space, as in Gemma.

    In Gemma's vocabulary, a piece has spaces at its start only, but the library treats a whole text as one word.
    """
    if not isinstance(tokenizer.model, models.BPE) or tokenizer.normalizer is None:
        return False
    if tokenizer.normalizer.normalize_str(" b  b ") != "\u2581b\u2581\u2581b\u2581":
        return False
    if len({*tokenizer.encode("b b", add_special_tokens=False).word_ids}) > 1:
        return False
    return not re.search("[^\u2581\n]\u2581", "\n".join(tokenizer.get_vocab(with_added_tokens=False)))


def read_tokenizer(folder: Path | ModelFolder) -> TokenizerFiles:
    """Reads the tokenizer of a model folder."""
    folder = open_folder(folder)
    with guarded(str(folder.transformer)), _no_collection():
        return _read(folder.transformer, folder)


@contextmanager
def _no_collection() -> Iterator[None]:
    """In a `with` block, disables garbage collection, which takes a third of the time if 250,000 pieces are created."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _read_static(folder: Path, model_type: str) -> TokenizerFiles:
    """Reads the tokenizer of a static model, which consists of a `tokenizer.json` and adds no special tokens."""
    path = folder / TOKENIZER_JSON
    if not path.is_file():
        raise TokenizerError(
            f"{folder}: the folder of a static model has no tokenizer.json",
            hint="copy the tokenizer.json of the model into the folder",
        )
    limit = (_read_file(path).truncation or {}).get("max_length") if model_type == MODULE else None
    tokenizer = _read_json(path)
    tokenizer.post_processor = NO_ENDS
    unknown = getattr(tokenizer.model, "unk_token", None)
    if isinstance(tokenizer.model, models.Unigram):
        stated = re.search(rb'"unk_id"\s*:\s*(\d+)', path.read_bytes())
        unknown = tokenizer.id_to_token(int(stated[1])) if stated else None
    special = {"unk": unknown} if unknown is not None and tokenizer.token_to_id(unknown) is not None else {}
    return TokenizerFiles(tokenizer, special, _spelling(tokenizer), limit, segments=False, static=model_type)


def _add_gliner_tokens(folder: ModelFolder, tokenizer: Tokenizer) -> None:
    """Adds GLiNER's tokens to the vocabulary of its encoder.

    They are missing in a new model, and may be missing if the configuration does not state their ids.
    """
    try:
        own = folder.config_json.nested(GLINER)
        tokens = ["[FLERT]", *(own.string(key, default=usual) for key, usual in GLINER_TOKENS.items())]
    except MlxbertError:  # a tokenizer alone, or an invalid configuration, which its reader reports
        return
    stated = -1 not in (own.get("class_token_index", -1), own.get("vocab_size", -1))
    if own.values and (folder.described_by is not None or not stated):
        tokenizer.add_special_tokens(tokens)


def _read(folder: Path, model_folder: ModelFolder) -> TokenizerFiles:
    if model_folder.is_static:
        return _read_static(folder, model_folder.config_json.string("model_type"))
    settings = read_settings(folder)
    name, model_type, generic = declared_class(model_folder, settings)
    kind = _choose(folder, name, model_type)
    if kind is None or (folder / TOKENIZER_JSON).is_file():
        # A tokenizer without a class and a config.json may be BERT's.
        unchanged = generic or model_type in UNCHANGED_TYPES or (kind is None and (name or model_type) is not None)
        tokenizer, special = _from_tokenizer_json(folder, kind, settings, unchanged=unchanged)
    else:
        tokenizer, special = _from_vocabulary(folder, kind, settings)
    _add_gliner_tokens(model_folder, tokenizer)
    for key, instead in _LEFT_SETTINGS.items():
        if settings.get(key) == "left":
            _LOG.warning("%s: %s is left, but texts are %s", folder / "tokenizer_config.json", key, instead)
    segments = None if kind is None or generic else kind.segments
    if (inputs := settings.get("model_input_names")) is not None:
        segments = "token_type_ids" in inputs
    limit = settings.get("model_max_length")
    limited = isinstance(limit, int | float) and not isinstance(limit, bool) and 0 < limit < _UNLIMITED
    max_length = int(limit) if limited and limit is not None else None
    return TokenizerFiles(tokenizer, special, _spelling(tokenizer), max_length, segments)
