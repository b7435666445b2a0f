"""Training examples: chunks of a corpus with special tokens added and some tokens masked.

An example depends only on the seed, the number of the pass, and the chunk.

Shapes: N tokens of an example, M masked tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlxbert.errors import InputError
from mlxbert.text.encoding import Template
from mlxbert.train.pretraining.chunks import Chunks, CorpusChunk, Phases
from mlxbert.train.pretraining.corpus.token_store import Corpus

Ids = NDArray[np.int32]
Flags = NDArray[np.bool_]
Draws = NDArray[np.float32]
_MASKED, _REPLACED = 0.8, 0.1  # of the masked tokens


@dataclass(frozen=True)
class Masking:
    """The rule by which tokens are masked."""

    mask: int  # the id of the mask token
    words: Ids  # the ids that random replacements are drawn from: all ids except special tokens
    share: float = 0.15  # the share of tokens that are masked
    whole_words: bool = False  # whether all tokens of a word are masked together
    all_masked: bool = False  # whether every masked token becomes the mask token, as in ELECTRA's generator

    def apply(self, ids: Ids, continues: Flags, usable: Flags, rng: np.random.Generator) -> tuple[Ids, Ids]:
        """Masks some of the `usable` tokens of a text, which are all but the special tokens.

        Returns the positions of the masked tokens in order, (M,), and the ids of all tokens after masking, (N,).
        """
        places = self._words(continues, usable, rng) if self.whole_words else self._tokens(usable, rng)
        masked = ids.copy()
        if self.all_masked:
            masked[places] = self.mask
            return places, masked
        random = rng.random(len(places))
        masked[places[random < _MASKED]] = self.mask
        other = places[(random >= _MASKED) & (random < _MASKED + _REPLACED)]
        masked[other] = self.words[rng.integers(len(self.words), size=len(other))]
        return places, masked

    def _count(self, tokens: int, rng: np.random.Generator) -> int:
        """Returns how many tokens to mask. The number is rounded at random, so that the average share is right."""
        return int(self.share * tokens + rng.random())

    def _tokens(self, usable: Flags, rng: np.random.Generator) -> Ids:
        places = np.flatnonzero(usable).astype(np.int32)
        return np.sort(rng.permutation(places)[: self._count(len(places), rng)])

    def _words(self, continues: Flags, usable: Flags, rng: np.random.Generator) -> Ids:
        """Returns the positions of the tokens of randomly drawn words.

        The last word is included or not at random, so that the average share of masked tokens is right.
        """
        places = np.flatnonzero(usable).astype(np.int32)
        if not len(places):
            return places
        begins = ~continues[places]
        begins[0] = True
        begins[1:] |= np.diff(places) > 1  # a special token is between them
        word = np.cumsum(begins) - 1
        sizes = np.bincount(word)
        order = rng.permutation(len(sizes))
        filled = np.cumsum(sizes[order])
        target = self.share * len(places)
        full = int(np.searchsorted(filled, target, "right"))
        before = filled[full - 1] if full else 0
        last = full < len(order) and rng.random() < (target - before) / sizes[order[full]]
        chosen = np.zeros(len(sizes), bool)
        chosen[order[: full + last]] = True
        return places[chosen[word]]


Pairs = Literal["next", "order"]
OTHER = 1  # the class of pairs whose texts do not follow each other, in both heads, as in transformers


@dataclass(frozen=True)
class PretrainingExample:
    """A training example."""

    ids: Ids  # token ids, some of them masked, (N,)
    segments: Ids  # the segment of each token, (N,)
    places: Ids  # the positions of the masked tokens, (M,)
    clean: Ids  # token ids before masking, (N,)
    label: int | None = None  # for a pair, whether the second text follows the first (0) or not (1)
    # For ELECTRA, two random numbers in [0, 1) per masked token, (M, 2). They decide which token the generator samples
    # for it.
    draws: Draws | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def originals(self) -> Ids:
        """The original ids of the masked tokens, (M,)."""
        return self.clean[self.places]


class Text(NamedTuple):
    """The token ids of a text without special tokens, (N,), and flags that say which tokens continue a word, (N,)."""

    ids: Ids
    continues: Flags


@dataclass(frozen=True)
class Frame:
    """The special tokens that are added around a single text and around a pair; ids in `special` are never masked."""

    single: Template
    pair: Template
    special: Ids
    separator: int

    @property
    def added(self) -> int:
        """The number of special tokens around a pair."""
        return sum(special is not None for special, _ in self.pair)

    def around(self, texts: Sequence[Text]) -> tuple[Ids, Ids, Flags]:
        """Adds special tokens to one text or to a pair; returns ids, segments, and flags that continue a word, (N,)."""
        waiting = iter(texts)
        parts: list[tuple[Ids, int, Flags]] = []
        for special, segment in self.single if len(texts) == 1 else self.pair:
            if special is None:
                text = next(waiting)
                parts.append((text.ids, segment, text.continues))
            else:
                parts.append((np.array([special], np.int32), segment, np.zeros(1, bool)))
        ids, segments, continues = zip(*parts, strict=True)
        sizes = [len(part) for part in ids]
        return np.concatenate(ids), np.repeat(np.array(segments, np.int32), sizes), np.concatenate(continues)


class Examples:
    """The examples of a corpus. An example is made when it is accessed by its number (see `Phases.place`).

    Half of the pairs are negative: if `pairs` is `next`, the second text comes from another document; if it is `order`,
    the two texts are swapped. Each of the first `copies` passes has its own masks, which later passes repeat. If
    `copies` is `None`, every pass has new masks.
    """

    def __init__(
        self,
        corpus: Corpus,
        order: Phases,
        frame: Frame,
        masking: Masking,
        *,
        pairs: Pairs | None = None,
        copies: int | None = None,
        seed: int = 0,
    ) -> None:
        self.corpus, self.order, self.frame, self.masking = corpus, order, frame, masking
        self._pairs, self._copies, self._seed = pairs, copies, seed
        if pairs == "next" and not all(phase.others.several_documents for phase in order.phases):
            raise InputError(
                "next-sentence prediction needs two documents that can be split into pairs, but the corpus has one",
                hint="separate documents by empty lines, or use the objective mlm,sop, which needs only one document",
            )

    def __iter__(self) -> Iterator[PretrainingExample]:
        """Iterates over the examples of the first pass, although the numbers of later passes are valid, too."""
        return (self[number] for number in range(len(self)))

    def __len__(self) -> int:
        return sum(len(phase.chunks) for phase in self.order.phases)

    def __getitem__(self, number: int) -> PretrainingExample:
        """Returns an example, whose masks and pairing are seeded by its number."""
        place = self.order.place(number)
        chunk = self.order.phases[place.phase].chunks[place.chunk]
        copy = place.epoch if self._copies is None else place.epoch % self._copies
        rng = np.random.default_rng([self._seed, place.phase, copy, place.chunk])
        label = None if self._pairs is None else int(rng.random() < 0.5)
        texts = [self._single(chunk)] if label is None else self._pair(place.phase, chunk, label, rng)
        ids, segments, continues = self.frame.around(texts)
        places, masked = self.masking.apply(ids, continues, ~np.isin(ids, self.frame.special), rng)
        draws = rng.random((len(places), 2), np.float32) if self.masking.all_masked else None
        return PretrainingExample(masked, segments, places, ids, label, draws)

    def describe(self, number: int) -> str:
        """Describes the location of an example in the corpus, for error messages."""
        place = self.order.place(number)
        chunk = self.order.phases[place.phase].chunks[place.chunk]
        return f"tokens {chunk.start:,} to {chunk.stop:,} of the corpus"

    def _text(self, start: int, stop: int) -> Text:
        return Text(self.corpus.tokens(start, stop), self.corpus.continues(start, stop))

    def _single(self, chunk: CorpusChunk) -> Text:
        """Returns the chunk as a single text, with separators between documents."""
        text = self._text(chunk.start, chunk.stop)
        borders = self.corpus.borders(chunk.document, chunk.stop)
        if not borders:
            return text
        inside = np.array(borders) - chunk.start
        ids = np.insert(text.ids, inside, self.frame.separator).astype(np.int32)
        return Text(ids, np.insert(text.continues, inside, False))

    def _pair(self, phase: int, chunk: CorpusChunk, label: int, rng: np.random.Generator) -> list[Text]:
        """Splits a chunk into two texts. For label 1, takes the second from another document, or swaps the two."""
        split = self._division(chunk, rng)
        first, second = self._text(chunk.start, split), (split, chunk.stop)
        if label == OTHER and self._pairs == "next":
            room = self.order.phases[phase].tokens - self.frame.added - len(first.ids)
            second = self._elsewhere(self.order.phases[phase].others, chunk.document, room, rng)
        texts = [first, self._text(*second)]
        return texts[::-1] if label == OTHER and self._pairs == "order" else texts

    def _division(self, chunk: CorpusChunk, rng: np.random.Generator) -> int:
        """Draws the position at which to split a chunk: after a sentence or, if there is only one, before a word."""
        ends = self.corpus.inside(chunk.document, chunk.start, chunk.stop)
        if not len(ends):
            begins = np.flatnonzero(~self.corpus.continues(chunk.start + 1, chunk.stop))
            ends = chunk.start + 1 + (begins if len(begins) else np.arange(chunk.size - 1))
        return int(ends[rng.integers(len(ends))])

    def _elsewhere(self, chunks: Chunks, document: int, room: int, rng: np.random.Generator) -> tuple[int, int]:
        """Draws a text of at most `room` tokens from a document other than `document`; returns its start and end."""
        while (other := chunks[int(rng.integers(len(chunks)))]).document == document:
            pass
        start = self._division(other, rng)
        return start, min(start + max(room, 1), other.stop)


def in_batches(count: int, size: int) -> Iterator[range]:
    """Returns an iterator over the example numbers from 0 to `count` - 1, in batches of `size`."""
    return (range(start, min(start + size, count)) for start in range(0, count, size))
