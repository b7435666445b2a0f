"""Limits how much longer the steps of a tokenizer can make a text, before the `tokenizers` library runs them.

The library allocates as much memory as the steps need: twelve replacements of "a" by ten "a" turn one character into
10**12.
"""

import base64
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from mlxbert.errors import InputError, TokenizerError

MAX_TEXT = 2**21  # code points that are tokenized at once, also after normalization; each takes up to a kilobyte
MAX_GROWTH = 4096  # factor for the bytes of a text, by a normalizer; the largest known is ALBERT's, 1,089
_MAX_WRITTEN = 64  # factor for the code points of a text, by replacements that the file states
_MAX_OTHER = 16  # factor by a pre-tokenizer or a decoder
_TYPICAL = 5  # factor by a pre-tokenizer
_MAX_STEPS = 64
_MAX_ADDED = 2**24  # bytes of all added tokens, normalized
_PIECE = 512  # code points that are normalized at once to measure the result
# The maximum factor by which a step can multiply the bytes of a character.
_FACTORS = {
    **{"NFC": 3, "NFD": 3, "NFKC": 11, "NFKD": 11, "Lowercase": 1.5, "BertNormalizer": 5, "ByteLevel": 2},
    "Metaspace": 5,
}
_MAX_SPECIAL = 64  # tokens that a post-processor adds; BERT's adds three
_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
_SECTIONS = ("normalizer", "pre_tokenizer", "decoder", "added_tokens")
_VALUE = re.compile(rb'[^"]*"\s*:\s*(?=[{\[])')


@dataclass(frozen=True)
class Growth:
    """The factors by which the steps of a tokenizer can multiply the length of a text."""

    total: float  # the factor by which all steps of the normalizer together can multiply the number of bytes
    # The factor by which the replacements in the normalizer can multiply the number of code points. A pre-tokenizer
    # that can make texts unusually long increases this factor.
    written: float

    @property
    def max_text(self) -> int:
        """The maximum number of code points of a text that is tokenized at once."""
        return int(MAX_TEXT / self.written)


def growth_of(tokenizer: Tokenizer) -> Growth:
    """Computes the factors by which the steps of a tokenizer can make a text longer."""
    normal, before = (
        [] if step is None else list(steps_of(json.loads(step.__getstate__())))
        for step in (tokenizer.normalizer, tokenizer.pre_tokenizer)
    )
    return Growth(_total(normal), _written(normal) * max(_total(before) / _TYPICAL, 1))


def longest_output(table: bytes) -> int:
    """Returns the length in bytes of the longest string in a table of replacements that SentencePiece compiled."""
    return max(map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")))


def check_growth(path: Path, data: bytes) -> None:
    """Raises `TokenizerError` for a `tokenizer.json` whose steps could make a text too long."""
    normalizer, added = 1.0, list[str]()
    for name, section in _sections(path, data):
        if name == "added_tokens":
            tokens = [token for token in section if isinstance(token, Mapping) and token.get("normalized") is not False]
            added += [str(token.get("content")) for token in tokens]
            continue
        steps = list(steps_of(section))
        if len(steps) > _MAX_STEPS:
            raise TokenizerError(f"{path}: the {name} has {len(steps):,} steps, expected at most {_MAX_STEPS}")
        limits = [(_total(steps), MAX_GROWTH if name == "normalizer" else _MAX_OTHER), (_written(steps), _MAX_WRITTEN)]
        for growth, limit in limits:
            if growth > limit:
                raise TokenizerError(
                    f"{path}: the {name} can make a text {growth:,.0f} times as long, expected at most {limit:,} times"
                )
        if name == "normalizer":
            normalizer = max(normalizer, limits[0][0])
    check_added(path, added, normalizer)


def check_templates(path: Path, tokenizer: Tokenizer) -> None:
    """Raises `TokenizerError` for a post-processor that adds many tokens or repeats a text."""
    before = tokenizer.post_processor
    added = 0
    for step in [] if before is None else steps_of(json.loads(before.__getstate__())):
        ids = {name: len(token["ids"]) for name, token in step.get("special_tokens", {}).items()}
        for name in ("single", "pair"):
            pieces = step.get(name, [])
            texts = [piece["Sequence"]["id"] for piece in pieces if "Sequence" in piece]
            if len(texts) != len(set(texts)):
                raise TokenizerError(f"{path}: the post_processor repeats a text, expected each text once")
            added += sum(ids.get(piece["SpecialToken"]["id"], 0) for piece in pieces if "SpecialToken" in piece)
        added += 0 if "single" in step else 1  # other steps add a few
    if added > _MAX_SPECIAL:
        raise TokenizerError(f"{path}: the post_processor adds {added:,} tokens, expected at most {_MAX_SPECIAL}")


def offsets(data: bytes, part: bytes) -> Iterator[int]:
    """Yields the offsets of `part` in `data`.

    The module `re` is several times slower, which matters for large vocabularies.
    """
    at = data.find(part)
    while at >= 0:
        yield at
        at = data.find(part, at + 1)


def _sections(path: Path, data: bytes) -> Iterator[tuple[str, Any]]:
    """Yields the sections of a `tokenizer.json` that can make a text longer, wherever they are in the file."""
    for name in _SECTIONS:
        for at in offsets(data, f'"{name}"'.encode()):
            if (key := _VALUE.match(data, at + 1)) is not None:
                yield name, _read(path, data, key.end())


def _read(path: Path, data: bytes, start: int) -> Any:
    """Parses the JSON value at an offset. Reads as little as possible, because the rest of the file may be large."""
    for size in (2**18, 2**22, len(data)):
        try:
            return json.JSONDecoder().raw_decode(data[start : start + size].decode("utf-8", "replace"))[0]
        except (ValueError, RecursionError) as error:
            problem = error
    raise TokenizerError(f"{path}: the file is damaged ({problem})", hint="download the file again")


def check_added(path: Path, added: Sequence[str], growth: float) -> None:
    """Raises `TokenizerError` if the added tokens together could be too long after normalization."""
    size = sum(map(_bytes, added))
    if size * growth > _MAX_ADDED:
        raise TokenizerError(
            f"{path}: the normalizer can make the {size:,} bytes of the added tokens {growth:,.0f} times as long, "
            f"expected at most {_MAX_ADDED:,} bytes"
        )


def check_size(tokenizer: Tokenizer, growth: Growth, text: str) -> None:
    """Raises `InputError` if a text is too long to be tokenized at once, before or after normalization."""
    size, limit = len(text), growth.max_text
    normalizer = tokenizer.normalizer if size * (1 if text.isascii() else 4) * growth.total > MAX_TEXT else None
    if normalizer is not None and size <= limit:
        size = 0
        for start in range(0, len(text), _PIECE):
            size += len(normalizer.normalize_str(text[start : start + _PIECE]))
            if size > limit:
                break
    if size > limit:
        raise InputError(
            f"the text has a part of more than {limit:,} characters that can only be tokenized as a whole",
            hint="split the text, or use `overflow='truncate'`, which tokenizes only the beginning",
        )


def steps_of(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the steps of a normalizer, pre-tokenizer, decoder or post-processor, including the steps of sequences."""
    waiting = [value]
    while waiting:
        step = waiting.pop()
        inside = [step[name] for name in _LISTS if name in step] if isinstance(step, Mapping) else []
        waiting += [item for items in inside if isinstance(items, list) for item in items]
        if isinstance(step, Mapping) and not inside:
            yield step


def _total(steps: Sequence[Mapping[str, Any]]) -> float:
    return math.prod(_replacement(step, _bytes) * _factor(step) for step in steps)


def _written(steps: Sequence[Mapping[str, Any]]) -> float:
    return math.prod(_replacement(step, len) for step in steps)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def _replacement(step: Mapping[str, Any], size: Callable[[str], int]) -> float:
    """Returns the factor by which the replacement in a step can multiply the size of a text; 1 if it has none."""
    pattern, content = step.get("pattern"), step.get("content")
    if not isinstance(content, str) or pattern is None:
        return 1.0
    exact = pattern.get("String") if isinstance(pattern, Mapping) else pattern
    if isinstance(exact, str) and exact:
        return max(size(content) / size(exact), 1.0)
    return 1.0 + size(content)  # a regular expression may match the empty string between any two characters


def _factor(step: Mapping[str, Any]) -> float:
    if isinstance(step.get("prepend"), str):
        return 1.0 + _bytes(step["prepend"])
    if isinstance(step.get("precompiled_charsmap"), str):
        try:
            return max(longest_output(base64.b64decode(step["precompiled_charsmap"])), 1.0)
        except ValueError:
            return 1.0  # the library rejects it
    return float(_FACTORS.get(str(step.get("type")), 1))
