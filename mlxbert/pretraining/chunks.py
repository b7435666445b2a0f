"""The parts of a corpus that become training examples: runs of whole sentences that fit the model.

Positions are token numbers of the corpus. Where a sentence alone is too long, it is divided.
"""

import bisect
import random
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlxbert.errors import InputError
from mlxbert.pretraining.corpus.number_files import Numbers, in_blocks, store
from mlxbert.pretraining.corpus.token_store import Corpus
from mlxbert.pretraining.permutation import FeistelPermutation

_FEW_DOCUMENTS = 20  # with fewer, single chunks are held out instead of documents
_MOST_TRIED = 10_000  # chunks whose documents may be held out
_SHORTER = 0.1  # share of the pairs


class CorpusChunk(NamedTuple):
    """A part of a corpus: its first token, the token after its last, and the document that it begins in."""

    start: int
    stop: int
    document: int

    @property
    def size(self) -> int:
        """Its tokens."""
        return self.stop - self.start


class Chunks:
    """N parts of a corpus in order: rows of three numbers, (N, 3)."""

    def __init__(self, rows: Numbers) -> None:
        self._rows = rows

    @classmethod
    def written(cls, found: Iterable[CorpusChunk], folder: Path) -> "Chunks":
        """Chunks in a file without a name in a folder: only those in use are in memory."""
        return cls(store(found, 3, folder))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[CorpusChunk]:
        return (CorpusChunk(*row) for block in in_blocks(self._rows) for row in block.tolist())

    def __getitem__(self, number: int) -> CorpusChunk:
        return CorpusChunk(*self._rows[number].tolist())

    def take(self, numbers: Iterable[int]) -> "Chunks":
        """Some of them in memory, in order."""
        return Chunks(np.array([self[number] for number in sorted(numbers)], np.int64).reshape(-1, 3))

    def drawn(self, count: int, seed: int) -> "Chunks":
        """That many of them in memory, drawn at random; all if there are no more."""
        return self.take(islice(FeistelPermutation(len(self), f"drawn {seed}"), count))

    def of(self, document: int) -> range:
        """The numbers of those that begin in a document."""

        def first(document: int) -> int:
            return bisect.bisect_left(range(len(self)), document, key=lambda number: self[number].document)

        return range(first(document), first(document + 1))

    @property
    def several_documents(self) -> bool:
        """Whether they are of more than one document."""
        return self[0].document != self[len(self) - 1].document


def full_sentences(corpus: Corpus, room: int, *, across: bool = False) -> Iterator[CorpusChunk]:
    """Chunks of as many sentences as fit, as in RoBERTa (arXiv:1907.11692), of at most `room` tokens.

    With `across`, a chunk continues in the next document, after a separator, which counts.
    """
    first = start = last = separators = before = 0  # `last` is where the sentence before ends, in the document `before`
    for document, end in corpus.ends():
        if document != before:
            separators += 1
            if not across:
                yield CorpusChunk(start, last, first)
                first, start, separators = document, last, 0
        while end - start + separators > room:
            stop = last if last > start else _word_end(corpus, start, start + room)
            yield CorpusChunk(start, stop, first)
            first, start, last, separators = document, stop, max(last, stop), 0
        last, before = end, document
    if last > start:
        yield CorpusChunk(start, last, first)


def sentence_pairs(corpus: Corpus, room: int, seed: int) -> Iterator[CorpusChunk]:
    """Chunks of at least two sentences of one document, to be divided into two texts, as in BERT (arXiv:1810.04805).

    They have at most `room` tokens; of one in ten the size is drawn, so that the model sees short texts, too.
    Sentences of more than half the room are divided. A document with one short sentence gives no chunk.
    """
    rng = random.Random(f"chunks {seed}")
    for document, units in groupby(_units(corpus, room // 2), key=lambda unit: unit[0]):
        waiting = (end for _, end in units)
        ends = [*islice(waiting, 1)]  # where the chunk begins, and its sentences end, and perhaps some more
        before: int | None = None  # where the last sentence of the chunk before begins
        while (ends := [*ends, *islice(waiting, room + 2 - len(ends))])[1:]:
            target = rng.randint(2, room) if rng.random() < _SHORTER else room
            last = min(2, len(ends) - 1)
            while last < len(ends) - 1 and ends[last + 1] - ends[0] <= target:
                last += 1
            # What is left of a document may be one sentence: the one before comes twice.
            if (start := ends[0] if last > 1 else before) is not None:
                yield CorpusChunk(start, ends[last], document)
            before, ends = ends[last - 1], ends[last:]


def held_out(chunks: Chunks, share: float, most: int, seed: int) -> Chunks:
    """A share of the chunks, at most `most`, in memory; of many documents whole ones, unless these are too long."""
    count = min(max(round(share * len(chunks)), 1), most)
    if count >= len(chunks):
        raise InputError(
            f"the corpus gives {len(chunks)} examples, none is left to train on", hint="more text, or shorter examples"
        )
    held: list[int] = []
    tried: set[int] = set()
    if chunks[len(chunks) - 1].document + 1 >= _FEW_DOCUMENTS:
        for number in islice(FeistelPermutation(len(chunks), f"held out {seed}"), _MOST_TRIED):
            document = chunks[number].document
            if document not in tried and len(found := chunks.of(document)) <= count - len(held):
                held += found
            tried.add(document)
            if len(held) == count:
                break
    return chunks.take(held) if len(held) > count // 2 else chunks.drawn(count, seed)


def apart_from(chunks: Chunks, others: Chunks) -> Iterator[CorpusChunk]:
    """The chunks that have no token in common with others."""
    starts = sorted(chunk.start for chunk in others)
    stops = [*accumulate((chunk.stop for chunk in sorted(others)), max)]
    for chunk in chunks:
        before = bisect.bisect_left(starts, chunk.stop)  # that many others begin before the chunk ends
        if not before or stops[before - 1] <= chunk.start:
            yield chunk


def _word_end(corpus: Corpus, start: int, stop: int) -> int:
    """The last place up to `stop` where a word begins; `stop` itself, if one word fills everything."""
    begins = np.flatnonzero(~corpus.continues(start + 1, stop + 1))
    return start + 1 + int(begins[-1]) if len(begins) else stop


def _units(corpus: Corpus, most: int) -> Iterator[tuple[int, int]]:
    """Of each document where it begins and its sentences end, long ones divided; each with the document's number."""
    last, before = 0, -1
    for document, end in corpus.ends():
        if document != before:
            yield document, last
        while end - last > most:
            last = _word_end(corpus, last, last + most)
            yield document, last
        if end > last:
            yield document, end
        last, before = end, document
