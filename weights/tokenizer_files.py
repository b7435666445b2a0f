"""Vocabulary files to a `tokenizers` object: `tokenizer.json`, or a WordPiece `vocab.txt`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from mlxbert.errors import TokenizerError
from mlxbert.weights.config_json import read_json

ROLES = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
# Classes that read a vocab.txt as BERT's WordPiece; others (BertJapaneseTokenizer …) split words in ways of their own.
_WORDPIECE_CLASSES = ("BertTokenizer", "BertTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend")
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_UNLIMITED = 10**6  # transformers writes 1e30 where a tokenizer knows no limit


@dataclass(frozen=True)
class TokenizerFiles:
    """What the vocabulary files of a model folder say.

    Attributes:
        tokenizer: Without padding and truncation.
        special: The special tokens by role (`unk`, `sep`, `pad`, `cls`, `mask`), those that the vocabulary has.
        max_length: The longest input in tokens that the files name, if they name one.
    """

    tokenizer: Tokenizer
    special: dict[str, str]
    max_length: int | None


def _settings(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json`, completed by `special_tokens_map.json`; empty where there are none."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name, TokenizerError)
    return settings


def _content(value: object) -> str | None:
    """A token as the files write it: plain, or `{"content": …}`."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _special(settings: Mapping[str, Any]) -> dict[str, str]:
    return {role: _content(settings.get(f"{role}_token")) or default for role, default in ROLES.items()}


def _read_vocab(path: Path) -> dict[str, int]:
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except OSError as problem:
        raise TokenizerError(f"{path}: cannot be read ({problem.strerror})") from None
    except UnicodeDecodeError as problem:
        raise TokenizerError(f"{path}: not UTF-8 at byte {problem.start}") from None
    if lines and not lines[-1]:
        lines.pop()
    return {line.removesuffix("\r"): number for number, line in enumerate(lines)}


def _is_cased(vocab: Mapping[str, int]) -> bool:
    """Whether a vocabulary was made from text that kept its capitals: more than one token in a hundred has one."""
    capitals = sum(token != token.lower() for token in vocab if not token.startswith("["))
    return capitals > len(vocab) / 100


def _flag(folder: Path, settings: Mapping[str, Any], key: str) -> bool | None:
    value = settings.get(key)
    if value is not None and not isinstance(value, bool):
        raise TokenizerError(f"{folder}/tokenizer_config.json: {key} is {value!r}, expected true, false or null")
    return value


def _normalizer(folder: Path, settings: Mapping[str, Any], vocab: Mapping[str, int]) -> normalizers.BertNormalizer:
    lower = _flag(folder, settings, "do_lower_case")
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=_flag(folder, settings, "tokenize_chinese_chars") is not False,
        strip_accents=_flag(folder, settings, "strip_accents"),
        # transformers lower-cases unless told not to, and so breaks a cased vocabulary without settings beside it.
        lowercase=not _is_cased(vocab) if lower is None else lower,
    )


def _never_split(folder: Path, settings: Mapping[str, Any], vocab: Mapping[str, int]) -> dict[str, AddedToken]:
    tokens = settings.get("never_split") or []
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise TokenizerError(f"{folder}/tokenizer_config.json: never_split is {tokens!r}, expected a list of strings")
    for token in tokens:
        if token not in vocab:
            raise TokenizerError(f"{folder}: never_split names {token!r}, which is not in the vocabulary")
    return {token: AddedToken(token, single_word=True, normalized=False) for token in tokens}


def _added(folder: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Tokens that are recognised in the text before anything else, by the id they must get."""
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
        flags = {key: bool(entry[key]) for key in _TOKEN_FLAGS if key in entry} if isinstance(entry, dict) else {}
        found[int(number)] = AddedToken(content, **flags)
    return found


def _add_tokens(tokenizer: Tokenizer, added: Mapping[int, AddedToken], folder: Path) -> None:
    for number, token in sorted(added.items()):
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])
        got = tokenizer.token_to_id(token.content)
        if got != number:
            raise TokenizerError(
                f"{folder}: added token {token.content!r} should have id {number}, the vocabulary gives it {got}"
            )


def _bert_template(tokenizer: Tokenizer, special: Mapping[str, str]) -> processors.TemplateProcessing:
    """`[CLS] A [SEP]` and `[CLS] A [SEP] B [SEP]`, the second text in segment 1."""
    cls, sep = special["cls"], special["sep"]
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )


def _from_vocab_txt(folder: Path, settings: Mapping[str, Any]) -> Tokenizer:
    kind = settings.get("tokenizer_class")
    if kind is not None and kind not in _WORDPIECE_CLASSES:
        raise TokenizerError(
            f"{folder}: tokenizer_class is {kind!r}, beside a vocab.txt expected {', '.join(_WORDPIECE_CLASSES)}",
            hint="a tokenizer.json in the folder would be read whatever the class",
        )
    vocab = _read_vocab(folder / "vocab.txt")
    special = _special(settings)
    for role in ("unk", "sep", "cls"):
        if special[role] not in vocab:
            raise TokenizerError(f"{folder}/vocab.txt: the {role} token {special[role]!r} is not in it")
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=special["unk"], max_input_chars_per_word=100))
    tokenizer.normalizer = _normalizer(folder, settings, vocab)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = _bert_template(tokenizer, special)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special.values() if token in vocab])
    tokenizer.add_tokens(list(_never_split(folder, settings, vocab).values()))
    _add_tokens(tokenizer, _added(folder, settings), folder)
    return tokenizer


def _from_tokenizer_json(path: Path, settings: Mapping[str, Any]) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_buffer(path.read_bytes())
    except OSError as problem:
        raise TokenizerError(f"{path}: cannot be read ({problem.strerror})") from None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:  # the library panics on some damaged files, which is no Exception
        raise TokenizerError(f"{path}: damaged: {problem}") from None
    tokenizer.no_truncation()  # limits and padding saved by training runs: both are the caller's business here
    tokenizer.no_padding()
    if isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
        normalizer = tokenizer.normalizer
        for key, attribute in (
            ("do_lower_case", "lowercase"),
            ("strip_accents", "strip_accents"),
            ("tokenize_chinese_chars", "handle_chinese_chars"),
        ):
            value = _flag(path.parent, settings, key)
            if value is not None:  # transformers lets these settings win over the file; so do we
                setattr(normalizer, attribute, value)
        tokenizer.normalizer = normalizer
    special = _special(settings)
    known = all(tokenizer.token_to_id(special[role]) is not None for role in ("cls", "sep"))
    if tokenizer.post_processor is None and isinstance(tokenizer.model, models.WordPiece) and known:
        tokenizer.post_processor = _bert_template(tokenizer, special)  # as transformers does
    return tokenizer


def lower_cased(tokenizer: Tokenizer) -> Tokenizer:
    """A copy that lower-cases texts before anything else, as sentence-transformers does for `do_lower_case`."""
    changed = Tokenizer.from_str(tokenizer.to_str())
    steps = [normalizers.Lowercase()] if changed.normalizer is None else [normalizers.Lowercase(), changed.normalizer]
    changed.normalizer = normalizers.Sequence(steps)
    return changed


def read_tokenizer(folder: Path) -> TokenizerFiles:
    """The tokenizer of a model folder.

    Raises:
        TokenizerError: There is none, or its files are damaged or of a kind mlxbert does not read.
    """
    settings = _settings(folder)
    if (folder / "tokenizer.json").is_file():
        tokenizer = _from_tokenizer_json(folder / "tokenizer.json", settings)
    elif (folder / "vocab.txt").is_file():
        tokenizer = _from_vocab_txt(folder, settings)
    else:
        raise TokenizerError(f"{folder}: no tokenizer.json and no vocab.txt in this folder")
    special = {role: token for role, token in _special(settings).items() if tokenizer.token_to_id(token) is not None}
    limit = settings.get("model_max_length")
    named = isinstance(limit, int | float) and not isinstance(limit, bool) and 0 < limit < _UNLIMITED
    return TokenizerFiles(tokenizer, special, int(limit) if named and limit is not None else None)
