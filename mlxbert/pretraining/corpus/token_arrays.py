"""Sentences to arrays of token ids whose highest bit says that the token continues a word."""

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
    """The tokens of N sentences.

    Attributes:
        ids: (T,) ids with the highest bit set where a token continues a word; see `ids_dtype`.
        lengths: (N,) tokens of each sentence.
        unknown: How many tokens are not in the vocabulary.
    """

    ids: NDArray[Any]
    lengths: NDArray[np.int64]
    unknown: int


def ids_dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    """`uint16` where 15 bits hold every id, else `uint32`; little-endian."""
    return np.dtype("<u2" if largest_id(tokenizer.files.tokenizer) < 2**15 else "<u4")


def tokenize(tokenizer: Tokenizer, texts: Sequence[str], begins: Sequence[bool]) -> Sentences:
    """The tokens of N sentences; those that do not begin a document follow a space.

    A special token that is spelled out in a text is ordinary text; a vocabulary that nevertheless makes its id of it
    loses the token.
    """
    if tokenizer.files.spelling.word_start:  # the token of a word after a space is another one
        texts = [text if begin else f" {text}" for text, begin in zip(texts, begins, strict=True)]
    found = tokenizer.encode_many(texts)
    lengths = np.fromiter(map(len, found), np.int64, len(found))
    total = int(lengths.sum())
    ids = np.fromiter(chain.from_iterable(one.ids for one in found), np.int64, total)
    words = np.fromiter(chain.from_iterable(_words(one.word_ids) for one in found), np.int64, total)
    owners = np.repeat(np.arange(len(found)), lengths)
    special = {number for role in tokenizer.special if (number := _id(tokenizer, role)) is not None and role != "unk"}
    kept = ~np.isin(ids, list(special))
    if not kept.all():
        ids, words, owners = ids[kept], words[kept], owners[kept]
        lengths = np.bincount(owners, minlength=len(found)).astype(np.int64)
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
