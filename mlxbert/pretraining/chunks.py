"""The parts of a corpus that become training examples: runs of whole sentences that fit the model.

Positions are token numbers of the corpus. Where a sentence alone is too long, it is divided.
"""

import random
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import InputError
from mlxbert.pretraining.corpus.store import Corpus

Numbers = NDArray[np.int64]
_FEW_DOCUMENTS = 20  # with fewer, single chunks are held out instead of documents


@dataclass(frozen=True)
class Chunks:
    """N parts of a corpus.

    Attributes:
        starts: The first token of each, (N,).
        stops: The token after the last of each, (N,).
        documents: The document that each begins in, (N,).
    """

    starts: Numbers
    stops: Numbers
    documents: Numbers

    def __len__(self) -> int:
        return len(self.starts)

    def size(self, number: int) -> int:
        """The tokens of one."""
        return int(self.stops[number] - self.starts[number])

    def take(self, chosen: NDArray[np.bool_]) -> "Chunks":
        """Those where `chosen` (N,) is true."""
        return Chunks(self.starts[chosen], self.stops[chosen], self.documents[chosen])


def full_sentences(corpus: Corpus, room: int, *, across: bool = False) -> Chunks:
    """Chunks of as many sentences as fit, as in RoBERTa (arXiv:1907.11692).

    Args:
        corpus: The corpus.
        room: The most tokens of a chunk.
        across: Whether a chunk continues in the next document; then a separator stands between both, which counts.
    """
    borders = document_ends(corpus)
    found = array("q")  # a list of numbers would take five times the memory
    begin = 0
    for number, end in [(0, int(borders[-1]))] if across else enumerate(borders.tolist()):
        start = begin
        while start < end:
            stop = _fitting(corpus, start, end, _without_separators(borders, start, room) if across else room)
            found.extend((start, stop, int(np.searchsorted(borders, start, "right")) if across else number))
            start = stop
        begin = end
    return _chunks(found)


def sentence_pairs(corpus: Corpus, room: int, seed: int, shorter: float = 0.1) -> Chunks:
    """Chunks of at least two sentences of one document, to be divided into two texts, as in BERT (arXiv:1810.04805).

    Sentences of more than half the room are divided. A document with one short sentence gives no chunk.

    Args:
        corpus: The corpus.
        room: The most tokens of a chunk.
        seed: Decides which chunks are shorter.
        shorter: The share of chunks whose size is drawn, so that the model sees short texts, too.
    """
    rng = random.Random(f"chunks {seed}")
    found = array("q")
    for number, ends in enumerate(_units(corpus, room // 2)):
        first = 0
        while first < len(ends) - 1:
            target = rng.randint(2, room) if rng.random() < shorter else room
            last = min(first + 2, len(ends) - 1)
            while last < len(ends) - 1 and ends[last + 1] - ends[first] <= target:
                last += 1
            alone = last - first < 2  # what is left of a document is one sentence: the one before comes twice
            start = max(first - alone, 0)
            if last - start >= 2:
                found.extend((ends[start], ends[last], number))
            first = last
    return _chunks(found)


def document_ends(corpus: Corpus) -> Numbers:
    """Where each document ends, in tokens."""
    return np.asarray(corpus.sentences[corpus.documents - 1], np.int64)


def held_out(chunks: Chunks, share: float, most: int, seed: int) -> Chunks:
    """Chunks to evaluate on; of many documents, whole ones.

    Args:
        chunks: All of them.
        share: How many are held out; `most` is the limit.
        most: The most that are held out.
        seed: Decides which.

    Raises:
        InputError: There are too few to hold some out.
    """
    count = min(max(round(share * len(chunks)), 1), most)
    if count >= len(chunks):
        raise InputError(
            f"the corpus gives {len(chunks)} examples, none is left to train on", hint="more text, or shorter examples"
        )
    rng = np.random.default_rng([seed, 0])
    held = np.zeros(len(chunks), bool)
    sizes = np.bincount(chunks.documents)
    documents = np.flatnonzero(sizes)
    room = count
    for document in rng.permutation(documents).tolist() if len(documents) >= _FEW_DOCUMENTS else ():
        if sizes[document] <= room:
            held[chunks.documents == document] = True
            room -= int(sizes[document])
        if not room:
            break
    if not held.any():
        held[rng.permutation(len(chunks))[:count]] = True
    return chunks.take(held)


def apart_from(chunks: Chunks, others: Chunks) -> Chunks:
    """The chunks that have no token in common with others."""
    order = np.argsort(others.starts)
    starts, stops = others.starts[order], np.maximum.accumulate(others.stops[order])
    before = np.searchsorted(starts, chunks.stops, "left")  # so many others begin before a chunk ends
    return chunks.take((before == 0) | (stops[before - 1] <= chunks.starts))


def _without_separators(borders: Numbers, start: int, room: int) -> int:
    """How many tokens from `start` on have room together with a separator at each border among them."""
    first = int(np.searchsorted(borders, start, "right"))
    inside = borders[first : first + room] - start  # of the k-th border, k separators are before it
    crossed = int((inside + np.arange(len(inside)) < room - 1).sum())  # with a token behind each, and separators
    return min(room - crossed, *inside[crossed : crossed + 1].tolist(), room)


def _fitting(corpus: Corpus, start: int, end: int, room: int) -> int:
    """Where a chunk that begins at `start` ends: after a sentence, else after a word, and at `end` at the latest."""
    if start + room >= end:
        return end
    number = int(np.searchsorted(corpus.sentences, start + room, "right")) - 1
    stop = int(corpus.sentences[number]) if number >= 0 else start
    return stop if stop > start else _word_end(corpus, start, start + room)


def _word_end(corpus: Corpus, start: int, stop: int) -> int:
    """The last place up to `stop` where a word begins; `stop` itself, if one word fills everything."""
    begins = np.flatnonzero(~corpus.continues(start + 1, stop + 1))
    return start + 1 + int(begins[-1]) if len(begins) else stop


def _units(corpus: Corpus, most: int) -> Iterator[list[int]]:
    """For each document its beginning and the ends of its sentences, long ones divided."""
    sentence, start = 0, 0
    for count in corpus.documents.tolist():
        ends = [start]
        for end in corpus.sentences[sentence:count].tolist():
            while end - ends[-1] > most:
                ends.append(_word_end(corpus, ends[-1], ends[-1] + most))
            ends += [end] if end > ends[-1] else []
        yield ends
        sentence, start = count, ends[-1]


def _chunks(found: "array[int]") -> Chunks:
    """Chunks of their numbers: start, stop and document of each, one after the other."""
    return Chunks(*np.frombuffer(found, np.int64).reshape(-1, 3).T.copy() if found else np.zeros((3, 0), np.int64))
