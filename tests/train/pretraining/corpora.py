"""Corpora in memory, with words, sentences and documents of known sizes."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from mlxbert.train.pretraining.chunks import Chunks, CorpusChunk, Phase, Phases
from mlxbert.train.pretraining.corpus.token_store import Corpus, CorpusReport
from mlxbert.train.pretraining.examples import Examples, Frame, Masking, Pairs

PAD, UNK, CLS, SEP, MASK = range(5)
WORDS = 1000  # ids of the vocabulary
CONTINUES = 1 << 15


def corpus(documents: Sequence[Sequence[int]], seed: int = 0) -> Corpus:
    """Documents given by the tokens of their sentences; about a third of the tokens continue a word."""
    rng = random.Random(seed)
    sizes = [size for document in documents for size in document]
    ids = []
    for size in sizes:
        ids += [rng.randrange(5, WORDS) | (CONTINUES if place and rng.random() < 0.35 else 0) for place in range(size)]
    ends = np.cumsum(sizes).astype(np.int64)
    counts = np.cumsum([len(document) for document in documents]).astype(np.int64)
    report = CorpusReport((), {}, 0, len(documents), len(sizes), len(ids), 0, 0, 0, (), 0.0)
    return Corpus(np.array(ids, np.uint16), ends, counts, report)


def random_corpus(documents: int, seed: int = 0) -> Corpus:
    """Documents of 1 to 12 sentences of 1 to 40 tokens."""
    rng = random.Random(seed)
    return corpus([[rng.randint(1, 40) for _ in range(rng.randint(1, 12))] for _ in range(documents)], seed)


def in_memory(found: Iterable[CorpusChunk]) -> Chunks:
    """Chunks that need no file."""
    return Chunks(np.array([*found], np.int64).reshape(-1, 3))


FRAME = Frame(
    single=[(CLS, 0), (None, 0), (SEP, 0)],
    pair=[(CLS, 0), (None, 0), (SEP, 0), (None, 1), (SEP, 1)],
    special=np.array([PAD, UNK, CLS, SEP, MASK], np.int32),
    separator=SEP,
)


def examples(
    found: Corpus,
    given: Iterable[CorpusChunk],
    *,
    pairs: Pairs | None = None,
    copies: int | None = None,
    seed: int = 0,
    **masking: Any,
) -> tuple[Examples, Phases]:
    """Examples of one phase with BERT's masking over the words of these corpora, and their order."""
    chunks = in_memory(given)
    order = Phases([Phase(chunks, 64, 1.0, 4, chunks)], steps=100, epochs=1, gradient_accumulation=1, seed=seed)
    hidden = Masking(MASK, np.arange(5, WORDS, dtype=np.int32), **masking)
    return Examples(found, order, FRAME, hidden, pairs=pairs, copies=copies, seed=seed), order
