"""Tiny vocabularies of every kind, created when they are needed."""

import functools
import io
import json
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxbert.weights.tokenizers.sentencepiece_tokenizer import CONTROL, NORMAL, UNKNOWN

SENTENCES = (
    "the cat sat on the mat in Paris and the dog went to the store",
    "he bought 2,500 bottles of milk (cold) and played with the cats in 2019, she said",
    "Tokyo is the largest city, Paris is not; a café is where one sits -- or stands!",
)
# In the order of ids; "Ġ" is how these vocabularies spell a space.
BYTE_TOKENS = [
    *("<s>", "<pad>", "</s>", "<unk>", *"Paristhecng.#", "\u0120", "in", "ing", "th", "\u0120th", "\u0120the"),
    *("ar", "is", "aris", "Paris", "\u0120P", "\u0120Paris", "##", "\u00c3", "\u00a9", "\u00c3\u00a9", "<mask>"),
]
BYTE_MERGES = (
    *("i n", "in g", "t h", "\u0120 th", "\u0120th e", "a r", "i s", "ar is", "\u0120 P", "\u0120P aris", "P aris"),
    *("# #", "\u00c3 \u00a9"),
)


def put(folder: Path, files: Mapping[str, str | bytes | dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if isinstance(content, dict):
            content = json.dumps(content)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def byte_files(tokens: Sequence[str] = BYTE_TOKENS, merges: Sequence[str] = BYTE_MERGES) -> dict[str, str]:
    vocab = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    return {"vocab.json": json.dumps(vocab), "merges.txt": "\n".join(["#version: 0.2", *merges, ""])}


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def field(number: int, value: bytes | int | float) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


Entry = tuple[str, float, int]
HEAD: list[Entry] = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]


def plain(*texts: str) -> list[Entry]:
    """Returns entries for ordinary pieces; each has a lower score than the one before."""
    return [(text, -1.0 - number / 8, NORMAL) for number, text in enumerate(texts)]


def pieces_file(
    entries: Sequence[Entry], *, trainer: Mapping[int, int] | None = None, normalizer: Mapping[int, Any] | None = None
) -> bytes:
    """Returns a SentencePiece model with these pieces; settings are given by their field numbers."""
    parts = [field(1, field(1, text.encode()) + field(2, score) + field(3, kind)) for text, score, kind in entries]
    for number, settings in ((2, trainer or {}), (3, normalizer or {})):
        parts.append(field(number, b"".join(field(key, value) for key, value in settings.items())))
    return b"".join(parts)


@functools.cache
def trained(
    kind: str = "unigram", size: int = 90, symbols: str = "", control: str = "", rules: str | None = None
) -> bytes:
    """Returns a SentencePiece model that was trained on a few sentences.

    `rules` replaces the 240 kB of rules for normalization, which some libraries read byte by byte: lines of code points
    in hexadecimal, a tab, and what they become.
    """
    import sentencepiece

    written = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        file.write(rules or "")
        file.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(SENTENCES * 3), model_writer=written, model_type=kind, vocab_size=size,
            hard_vocab_limit=False, user_defined_symbols=symbols, control_symbols=control, minloglevel=3,
            normalization_rule_tsv="" if rules is None else file.name,
        )  # fmt: skip
    return written.getvalue()
