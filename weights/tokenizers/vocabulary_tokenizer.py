"""Builds a `tokenizers` object, without special tokens, from `vocab.txt`, or from `vocab.json` and `merges.txt`."""

from collections.abc import Mapping
from itertools import pairwise
from operator import ne
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from mlxbert.errors import TokenizerError
from mlxbert.weights.formats.config_json import read_json
from mlxbert.weights.tokenizers.tokenizer_settings import flag, never_split, switch

SpecialTokens = Mapping[str, str]


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as problem:
        raise TokenizerError(f"{path}: cannot be read ({problem.strerror})") from None
    except UnicodeDecodeError as problem:
        raise TokenizerError(f"{path}: the file is not UTF-8 at byte {problem.start}") from None
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def _is_cased(vocab: Mapping[str, int]) -> bool:
    """Whether a vocabulary is cased: more than one in a hundred of its tokens contain a capital letter."""
    tokens = [token for token in vocab if not token.startswith("[")]
    lowered = "\n".join(tokens).lower().split("\n")  # a tenth of the time of a call for each token
    capitals = sum(map(ne, tokens, lowered))
    return capitals > len(vocab) / 100


def bert_steps(folder: Path, settings: Mapping[str, Any], *, lower_case: bool = True) -> dict[str, Any]:
    """Returns the normalizer and the pre-tokenizer of BERT; `lower_case` is the default of `do_lower_case`."""
    normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=switch(folder, settings, "tokenize_chinese_chars", default=True),
        strip_accents=flag(folder, settings, "strip_accents"),
        lowercase=switch(folder, settings, "do_lower_case", default=lower_case),
    )
    return {"normalizer": normalizer, "pre_tokenizer": pre_tokenizers.BertPreTokenizer()}


def byte_steps(folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the steps of byte-level vocabularies, which have no normalizer."""
    spaced = switch(folder, settings, "add_prefix_space", default=False)
    return {"normalizer": None, "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=spaced)}


def word_piece(folder: Path, settings: Mapping[str, Any], special: SpecialTokens) -> Tokenizer:
    """Builds a WordPiece tokenizer from a `vocab.txt` with one token per line."""
    lines = _lines(folder / "vocab.txt")
    vocab = dict(zip(lines, range(len(lines)), strict=True))
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token=special["unk"], max_input_chars_per_word=100))
    # transformers lowercases by default, which breaks a cased vocabulary without settings.
    stated = flag(folder, settings, "do_lower_case")
    lower_case = not _is_cased(vocab) if stated is None else stated
    for part, step in bert_steps(folder, settings, lower_case=lower_case).items():
        setattr(tokenizer, part, step)
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_tokens(never_split(folder, settings, vocab))
    return tokenizer


def _merges(path: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(_lines(path), start=1):
        if number == 1 and line.startswith("#version"):  # later lines that start with # are merges of "#"
            continue
        left, _, right = line.partition(" ")
        if not left or not right or " " in right:
            raise TokenizerError(f"{path}: line {number} is {line!r:.60}, expected two tokens separated by a space")
        merges.append((left, right))
    return merges


def byte_pairs(folder: Path, settings: Mapping[str, Any], special: SpecialTokens) -> Tokenizer:
    """Builds a byte-level BPE tokenizer from a `vocab.json` and a `merges.txt`, which lists the merges in order."""
    path = folder / "vocab.json"
    vocab = read_json(path, TokenizerError)
    numbers = sorted(number for number in vocab.values() if type(number) is int)
    if len(numbers) != len(vocab):
        wrong = next(item for item in vocab.items() if type(item[1]) is not int)
        raise TokenizerError(f"{path}: token {wrong[0]!r} has id {wrong[1]!r:.40}, expected a whole number")
    for before, number in pairwise([-1, *numbers]):
        if number != before + 1:
            what = "appears twice" if number == before else f"follows id {before}"
            raise TokenizerError(f"{path}: id {number} {what}, expected every id from 0 exactly once")
    merges = _merges(folder / "merges.txt")
    try:
        tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False))
    except Exception as problem:  # the library names the token
        raise TokenizerError(
            f"{folder / 'merges.txt'}: a merge is invalid ({problem}), expected only tokens of vocab.json",
            hint="use vocab.json and merges.txt of the same model",
        ) from None
    tokenizer.pre_tokenizer = byte_steps(folder, settings)["pre_tokenizer"]
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
