"""Converts sentences to arrays of token ids. The highest bit of an id is set if the token continues a word."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlxbert.text.tokenizer import Tokenizer
from mlxbert.weights.tokenizers.library_guards import largest_id


@dataclass(frozen=True)
class Sentences:
    """The T tokens of N sentences."""

    ids: NDArray[Any]  # (T,) token ids of type `ids_dtype`; the highest bit is set if the token continues a word
    lengths: NDArray[np.int64]  # (N,) number of tokens in each sentence
    unknown: int  # the number of unknown tokens


def ids_dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    """Returns the dtype for token ids: `uint16` if every id fits in 15 bits, otherwise `uint32`; little-endian."""
    return np.dtype("<u2" if largest_id(tokenizer.files.tokenizer) < 2**15 else "<u4")


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], begins: Sequence[bool]) -> Sentences:
    """Tokenizes N sentences; those that do not begin a document are tokenized as if they followed a space.

    A special token that is spelled out in a text is treated as ordinary text. If the tokenizer nevertheless returns the
    id of the special token, this id is left out.
    """
    if tokenizer.files.spelling.word_start:  # a word has a different token after a space
        texts = [text if begin else f" {text}" for text, begin in zip(texts, begins, strict=True)]
    encodings = tokenizer.encode_many(texts)
    lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
    total = int(lengths.sum())
    ids = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int64, total)
    words = np.fromiter(chain.from_iterable(_words(encoding.word_ids) for encoding in encodings), np.int64, total)
    owners = np.repeat(np.arange(len(encodings)), lengths)
    special = {number for role in tokenizer.special if (number := _id(tokenizer, role)) is not None and role != "unk"}
    kept = ~np.isin(ids, list(special))
    if not kept.all():
        ids, words, owners = ids[kept], words[kept], owners[kept]
        lengths = np.bincount(owners, minlength=len(encodings)).astype(np.int64)
    continues = np.zeros(len(ids), np.bool_)
    continues[1:] = (words[1:] == words[:-1]) & (owners[1:] == owners[:-1]) & (words[1:] >= 0)
    dtype = ids_dtype(tokenizer)
    stored = ids.astype(dtype)
    stored[continues] |= dtype.type(1 << (8 * dtype.itemsize - 1))
    unknown = _id(tokenizer, "unk")
    return Sentences(stored, lengths, 0 if unknown is None else int((ids == unknown).sum()))


def _id(tokenizer: Tokenizer, role: str) -> int | None:
    return tokenizer.token_id(tokenizer.special[role]) if role in tokenizer.special else None


def _words(words: list[int | None]) -> Iterator[int] | list[Any]:
    return (-1 if word is None else word for word in words) if None in words else words
