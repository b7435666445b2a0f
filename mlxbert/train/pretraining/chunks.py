"""Splits a corpus into chunks of consecutive sentences that fit the model, and orders them in phases.

Each chunk becomes a training example. Positions are counted in tokens from the start of the corpus. A sentence that is
too long for an example is split. The phases have examples of different lengths, each with its own passes over the
corpus. The number of an example encodes its phase, its pass and its chunk, so that its masks depend only on the seed
and the number.
"""

import bisect
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mlxbert.errors import ArgumentError, InputError
from mlxbert.option_declarations import check_listed
from mlxbert.train.pretraining.corpus.token_store import Corpus, Numbers, in_blocks, store

_ROUNDS = 6
_ODD, _WORD = 0x9E3779B97F4A7C15, 2**64 - 1  # the golden ratio, whose multiples spread over 64 bits


class FeistelPermutation:
    """The numbers from 0 to `count` - 1 in a random order that depends only on the seed.

    A Feistel network permutes the numbers below a power of four. It is applied to a number repeatedly, until the result
    is below `count` (https://en.wikipedia.org/wiki/Format-preserving_encryption).
    """

    def __init__(self, count: int, seed: str) -> None:
        rng = random.Random(seed)
        self._count, self._half = count, (max(count - 1, 1).bit_length() + 1) // 2
        self._keys = [rng.getrandbits(64) for _ in range(_ROUNDS)]

    def __iter__(self) -> Iterator[int]:
        return map(self.__getitem__, range(self._count))

    def __getitem__(self, place: int) -> int:
        """Returns the number at this position of the random order; positions start at 0."""
        while (place := self._encrypted(place)) >= self._count:
            pass
        return place

    def _encrypted(self, number: int) -> int:
        left, right = number >> self._half, number & ((1 << self._half) - 1)
        for key in self._keys:
            mixed = ((right + 1) * _ODD ^ key) & _WORD
            mixed = (mixed ^ mixed >> 29) * _ODD & _WORD
            left, right = right, left ^ mixed >> (64 - self._half)
        return left << self._half | right


_FEW_DOCUMENTS = 20  # with fewer, single chunks are held out instead of documents
_MAX_TRIED = 10_000  # chunks whose documents may be held out
_SHORTER = 0.1  # share of the chunks with a random, shorter size


class CorpusChunk(NamedTuple):
    """A part of a corpus: the tokens from `start` to `stop` (exclusive), the first of which is in `document`."""

    start: int
    stop: int
    document: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class Chunks:
    """The N chunks of a corpus in order. Each chunk is stored as a row of three numbers, (N, 3)."""

    def __init__(self, rows: Numbers) -> None:
        self._rows = rows

    @classmethod
    def written(cls, chunks: Iterable[CorpusChunk], folder: Path) -> "Chunks":
        """Writes chunks to an unnamed file in a folder, from which each chunk is read on access."""
        return cls(store(chunks, 3, folder))

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[CorpusChunk]:
        return (CorpusChunk(*row) for block in in_blocks(self._rows) for row in block.tolist())

    def __getitem__(self, number: int) -> CorpusChunk:
        return CorpusChunk(*self._rows[number].tolist())

    def take(self, numbers: Iterable[int]) -> "Chunks":
        """Returns the chunks with these numbers, in order and in memory."""
        return Chunks(np.array([self[number] for number in sorted(numbers)], np.int64).reshape(-1, 3))

    def sample(self, count: int, seed: int) -> "Chunks":
        """Returns `count` random chunks in memory, or all if there are fewer."""
        return self.take(islice(FeistelPermutation(len(self), f"drawn {seed}"), count))

    def of_document(self, document: int) -> range:
        """Returns the numbers of the chunks that begin in a document."""

        def first(document: int) -> int:
            return bisect.bisect_left(range(len(self)), document, key=lambda number: self[number].document)

        return range(first(document), first(document + 1))

    @property
    def several_documents(self) -> bool:
        """Whether the chunks begin in more than one document."""
        return self[0].document != self[len(self) - 1].document


def full_sentences(corpus: Corpus, room: int, *, across: bool = False) -> Iterator[CorpusChunk]:
    """Yields chunks that each hold as many sentences as fit in `room` tokens, as in RoBERTa (arXiv:1907.11692).

    If `across` is true, a chunk may continue in the next document, after a separator that counts as one token.
    """
    first = start = last = separators = before = 0  # `last`: the end of the previous sentence; `before`: its document
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
    """Yields chunks that can be split into pairs of texts, as in BERT (arXiv:1810.04805).

    Each chunk has two or more sentences of the same document, and at most `room` tokens. One chunk in ten has a random
    size, so that the model also sees short texts. Sentences longer than half of `room` are split. A document with a
    single short sentence gives no chunk.
    """
    rng = random.Random(f"chunks {seed}")
    for document, units in groupby(_units(corpus, room // 2), key=lambda unit: unit[0]):
        waiting = (end for _, end in units)
        ends = [*islice(waiting, 1)]  # the start of the chunk, and the ends of its and later sentences
        before: int | None = None  # the start of the last sentence of the previous chunk
        while (ends := [*ends, *islice(waiting, room + 2 - len(ends))])[1:]:
            target = rng.randint(2, room) if rng.random() < _SHORTER else room
            last = min(2, len(ends) - 1)
            while last < len(ends) - 1 and ends[last + 1] - ends[0] <= target:
                last += 1
            # The rest of a document may be one sentence: then the previous sentence is used twice.
            if (start := ends[0] if last > 1 else before) is not None:
                yield CorpusChunk(start, ends[last], document)
            before, ends = ends[last - 1], ends[last:]


def held_out(chunks: Chunks, share: float, limit: int, seed: int) -> Chunks:
    """Returns the chunks to hold out for evaluation: a share of all chunks, but at most `limit`.

    Whole documents are held out if the corpus has enough of them. The result is in memory.
    """
    count = min(max(round(share * len(chunks)), 1), limit)
    if count >= len(chunks):
        raise InputError(
            f"no example is left for training, because the number of examples in the corpus is {len(chunks)}",
            hint="use more text or shorter examples",
        )
    held: list[int] = []
    tried: set[int] = set()
    if chunks[len(chunks) - 1].document + 1 >= _FEW_DOCUMENTS:
        for number in islice(FeistelPermutation(len(chunks), f"held out {seed}"), _MAX_TRIED):
            document = chunks[number].document
            if document not in tried and len(numbers := chunks.of_document(document)) <= count - len(held):
                held += numbers
            tried.add(document)
            if len(held) == count:
                break
    return chunks.take(held) if len(held) > count // 2 else chunks.sample(count, seed)


def without_overlap(chunks: Chunks, others: Chunks) -> Iterator[CorpusChunk]:
    """Yields the chunks that have no token in common with `others`."""
    starts = sorted(chunk.start for chunk in others)
    stops = [*accumulate((chunk.stop for chunk in sorted(others)), max)]
    for chunk in chunks:
        before = bisect.bisect_left(starts, chunk.stop)  # the number of `others` that begin before the chunk ends
        if not before or stops[before - 1] <= chunk.start:
            yield chunk


def _word_end(corpus: Corpus, start: int, stop: int) -> int:
    """Returns the last position, at most `stop`, where a word begins; `stop` if one word fills the whole range."""
    begins = np.flatnonzero(~corpus.continues(start + 1, stop + 1))
    return start + 1 + int(begins[-1]) if len(begins) else stop


def _units(corpus: Corpus, limit: int) -> Iterator[tuple[int, int]]:
    """Yields a document number and a position for the start of each document and for the end of each sentence.

    Sentences longer than `limit` tokens are split.
    """
    last, before = 0, -1
    for document, end in corpus.ends():
        if document != before:
            yield document, last
        while end - last > limit:
            last = _word_end(corpus, last, last + limit)
            yield document, last
        if end > last:
            yield document, end
        last, before = end, document


@dataclass(frozen=True)
class Length:
    """A requested phase: the maximum number of tokens per example, and the phase's share of all updates."""

    tokens: int
    share: float


@dataclass(frozen=True)
class Phase:
    """A phase of the schedule."""

    chunks: Chunks  # the chunks that become its examples
    tokens: int  # the maximum number of tokens per example
    share: float  # the share of all updates
    batch_size: int  # the number of examples per batch
    others: Chunks  # the chunks from which the second text of a negative pair may be drawn

    @property
    def batches(self) -> int:
        """The number of batches in a single pass over the chunks."""
        return math.ceil(len(self.chunks) / self.batch_size)


@dataclass(frozen=True)
class ExamplePosition:
    """The position of an example in the schedule: its phase, the pass in this phase, and its chunk, all as numbers."""

    phase: int
    epoch: int
    chunk: int


class Phases:
    """An `Order` whose updates go through the phases.

    There are `steps` updates; if `steps` is `None`, there are as many as `epochs` passes over the corpus take.
    """

    def __init__(
        self, phases: Sequence[Phase], *, steps: int | None, epochs: float, gradient_accumulation: int, seed: int
    ) -> None:
        self.phases, self._accumulation, self._seed = phases, gradient_accumulation, seed
        if steps is None:
            steps = max(round(epochs * sum(phase.share * phase.batches for phase in phases) / gradient_accumulation), 1)
        self.end_after(steps)

    def end_after(self, steps: int) -> None:
        """See `Order`; each phase keeps its share of the updates."""
        self.steps, phases = steps, self.phases
        self._ends = [round(steps * sum(phase.share for phase in phases[: n + 1])) for n in range(len(phases))]
        self._ends[-1] = steps
        self.epoch_steps = min(max(round(phases[0].batches / self._accumulation), 1), max(steps // 10, 1))

    def batches(self, step: int) -> list[list[int]]:
        phase, first = self._phase(step)
        per_pass = self.phases[phase].batches
        places = ((step - first) * self._accumulation + number for number in range(self._accumulation))
        return [
            [self._number(ExamplePosition(phase, place // per_pass, chunk)) for chunk in self._batch(phase, place)]
            for place in places
        ]

    def _batch(self, phase: int, place: int) -> list[int]:
        """Returns the numbers of the chunks in a batch; `place` counts the batches from the start of the phase."""
        epoch, number = divmod(place, self.phases[phase].batches)
        count, size = len(self.phases[phase].chunks), self.phases[phase].batch_size
        order = FeistelPermutation(count, f"order {self._seed} {phase} {epoch}")
        return [order[index] for index in range(number * size, min((number + 1) * size, count))]

    def _phase(self, step: int) -> tuple[int, int]:
        """Returns the number of the phase that an update belongs to, and the first update of that phase."""
        phase = next(number for number, end in enumerate(self._ends) if step < end)
        return phase, self._ends[phase - 1] if phase else 0

    def _number(self, place: ExamplePosition) -> int:
        per_epoch = max(len(phase.chunks) for phase in self.phases)
        return (place.epoch * per_epoch + place.chunk) * len(self.phases) + place.phase

    def place(self, number: int) -> ExamplePosition:
        """Converts the number of an example to its position in the schedule."""
        rest, phase = divmod(number, len(self.phases))
        return ExamplePosition(phase, *divmod(rest, max(len(phase.chunks) for phase in self.phases)))

    def epochs(self, step: int) -> float:
        done = 0.0
        for number, phase in enumerate(self.phases):
            first = self._ends[number - 1] if number else 0
            done += max(min(step, self._ends[number]) - first, 0) * self._accumulation / phase.batches
        return round(done, 4)

    def tokens(self, numbers: Sequence[int]) -> int:
        """See `Order`; special tokens are not counted."""
        return sum(self.phases[place.phase].chunks[place.chunk].size for place in map(self.place, numbers))


def read_lengths(text: str | int, limit: int) -> list[Length]:
    """Parses the requested lengths: one number, such as `128`, or phases with shares, such as `128:0.9,512:0.1`.

    `limit` is the maximum number of tokens that the model accepts.
    """
    lengths, parts = [], str(text).split(",")
    check_listed("length", parts)
    for part in parts:
        tokens, colon, share = part.partition(":")
        try:
            lengths.append(Length(int(tokens), float(share) if colon else 1.0))
        except ValueError:
            raise ArgumentError(
                f"`length` is {text!r:.60}, expected a number of tokens, or phases such as 128:0.9,512:0.1"
            ) from None
    total = sum(length.share for length in lengths)
    if not math.isclose(total, 1.0, abs_tol=1e-6) or any(not 0 < length.share <= 1 for length in lengths):
        raise ArgumentError(
            f"`length` is {text!r:.60}, whose shares add up to {total:g}, expected shares above 0 that add up to 1"
        )
    for length in lengths:
        if not 8 <= length.tokens <= limit:
            raise ArgumentError(
                f"`length` is {length.tokens}, expected 8 to {limit} tokens, the maximum length of the model"
            )
    return lengths
