"""Generates the files of the models for `scripts/behaviour`, byte by byte: vocabularies and tensors."""

import io
import json
import struct
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = dict[str, NDArray[Any]]
Files = dict[str, str | bytes]

WORDS = (
    "the cat dog sat on mat in paris tokyo city largest a is of man went to store he bought milk play ##ing ##s , . !"
)
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(), *"bcdefghijk")
SIZE = 43
_SPARE = tuple(f"##{letter}" for letter in "abcdefghij")


def vocabulary(size: int = SIZE, **settings: object) -> Files:
    """A small vocabulary of BERT's kind, for any model."""
    words = (*VOCABULARY, *_SPARE)[:size]
    return {
        "vocab.txt": "\n".join(words) + "\n",
        "tokenizer_config.json": json.dumps({"tokenizer_class": "BertTokenizer"} | settings),
    }


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def _numbers(*values: int) -> bytes:
    return b"".join(b"J" + struct.pack("<i", value) for value in values)


def torch_zip(tensors: Tensors) -> bytes:
    """The output of `torch.save` (torch 1.6 or later) for a dictionary of float32 tensors, made without torch."""
    pickle, members = b"\x80\x02}(", {}
    for place, (name, array) in enumerate(tensors.items()):
        strides = [stride // array.itemsize for stride in np.ascontiguousarray(array).strides]
        storage = _text("storage") + b"ctorch\nFloatStorage\n" + _text(str(place)) + _text("cpu") + _numbers(array.size)
        sizes = b"(" + _numbers(*array.shape) + b"t(" + _numbers(*strides) + b"t"
        hooks = b"\x89ccollections\nOrderedDict\n)R"
        call = b"((" + storage + b"tQ" + _numbers(0) + sizes + hooks + b"tR"
        pickle += _text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n" + call
        members[f"data/{place}"] = array.astype("<f4").tobytes()
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as file:  # a ZipInfo has a fixed time
        for member, content in {"data.pkl": pickle + b"u.", **members, "version": b"3\n"}.items():
            file.writestr(zipfile.ZipInfo(f"archive/{member}"), content)
    return raw.getvalue()


def archive(tensors: Tensors) -> bytes:
    """The tensors as a `.npz`."""
    raw = io.BytesIO()
    np.savez(raw, allow_pickle=False, **tensors)
    return raw.getvalue()


def _varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _varint(value >> 7)


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def sentencepiece() -> bytes:
    """A Unigram vocabulary of 41 pieces in SentencePiece's format; a tokenizer adds `<pad>` and `<mask>`."""
    pieces = [f"\u2581{word}" for word in WORDS.split() if word.isalpha()] + ["\u2581", *"abcdehimnorst,.!"]
    entries = [("<unk>", 2), ("<s>", 3), ("</s>", 3), *((piece, 1) for piece in pieces)][: SIZE - 2]
    written = b""
    for place, (piece, kind) in enumerate(entries):
        score = struct.pack("<f", -1.0 - place / 8 if kind == 1 else 0.0)
        written += _message(1, _message(1, piece.encode()) + b"\x15" + score + b"\x18" + _varint(kind))
    return written


def byte_pairs() -> Files:
    """A vocabulary of 43 byte pairs in RoBERTa's format."""
    merges = ["t h", "th e", "\u0120 the", "c a", "ca t", "\u0120 cat", "i n", "in g", "o n", "\u0120 on"]
    letters = "abcdefghiklmnoprstuwy,.!\u0120"
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *letters, *(merge.replace(" ", "") for merge in merges)]
    tokens = [*tokens, *(f"<spare{number}>" for number in range(SIZE - 1 - len(tokens))), "<mask>"]
    vocab = {token: number for number, token in enumerate(tokens)}
    return {"vocab.json": json.dumps(vocab), "merges.txt": "\n".join(["#version: 0.2", *merges, ""])}
