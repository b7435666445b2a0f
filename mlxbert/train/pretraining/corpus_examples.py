"""Makes examples for training and evaluation from the files of a corpus."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mlxbert.errors import ArgumentError, InputError
from mlxbert.progress import OnProgress
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.train.options.loop_options import TrainingOptions
from mlxbert.train.pretraining.chunks import Chunks, full_sentences, held_out, sentence_pairs, without_overlap
from mlxbert.train.pretraining.corpus.token_store import Corpus, CorpusReport, read_corpus
from mlxbert.train.pretraining.examples import Examples, Frame, Pairs
from mlxbert.train.pretraining.masks import Masking
from mlxbert.train.pretraining.phases import Length, Phase, Phases, read_lengths
from mlxbert.train.pretraining.pretraining_settings import Settings

MAX_HELD_OUT = 1000  # examples, so that evaluation does not take long


@dataclass(frozen=True)
class Data:
    """The training and validation examples of a run, the order of training, and a report on the corpus."""

    train: Examples
    valid: Examples
    order: Phases
    report: CorpusReport


def make_frame(tokenizer: Tokenizer) -> Frame:
    """Returns the special tokens that a tokenizer adds to one text and to a pair."""
    separator = tokenizer.token_id(tokenizer.special.get("sep", ""))
    if separator is None:
        raise ArgumentError("the vocabulary has no separator token, which pre-training needs")
    numbers = (tokenizer.token_id(token) for token in tokenizer.special.values())
    special = np.array([number for number in numbers if number is not None], np.int32)
    return Frame(*tokenizer.templates, special, separator)


def make_masking(tokenizer: Tokenizer, settings: Settings, *, all_masked: bool = False) -> Masking:
    """Makes the rule for masking tokens from the vocabulary of a tokenizer and the settings of a run."""
    mask = None if tokenizer.mask_token is None else tokenizer.token_id(tokenizer.mask_token)
    if mask is None:
        raise ArgumentError("the vocabulary has no mask token, which pre-training needs")
    used = tokenizer.known_ids()
    words = np.setdiff1d(np.arange(tokenizer.vocab_size) if used is None else used, make_frame(tokenizer).special)
    share, whole_words = settings.mask_probability, settings.whole_words
    return Masking(mask, words.astype(np.int32), share=share, whole_words=whole_words, all_masked=all_masked)


class Maker:
    """Makes the examples of a run.

    Args:
        pairs: The kind of pairs that the objective needs; `None` for single texts.
    """

    def __init__(
        self, settings: Settings, tokenizer: Tokenizer, pairs: Pairs | None, longest: int, *, all_masked: bool = False
    ) -> None:
        self._settings, self._tokenizer, self._pairs = settings, tokenizer, pairs
        self._frame = make_frame(tokenizer)
        self._masking = make_masking(tokenizer, settings, all_masked=all_masked)
        self.lengths = read_lengths(settings.length, longest)

    def make(
        self, folder: Path, options: TrainingOptions, steps: int | None, epochs: float, on_read: OnProgress | None
    ) -> Data:
        """Reads the corpus into the folder and splits it into examples.

        Training has `steps` updates or, if `steps` is `None`, as many as `epochs` passes over the corpus take.
        """
        settings = self._settings
        shards = settings.shards
        corpus = self._read(settings.corpus, shards or folder / "corpus", on_read, keyed=shards is not None)
        phases: list[Phase] = []
        held: Chunks | None = None
        others: Chunks | None = None  # the source of second texts in evaluation
        for length in self.lengths:
            chunks = self._chunks(corpus, length, options.seed, folder)
            if not settings.valid:
                held = held or held_out(chunks, settings.validation_fraction, MAX_HELD_OUT, options.seed)
                chunks = Chunks.written(without_overlap(chunks, held), folder)
            if not len(chunks):
                raise InputError(
                    "the corpus is so small that all examples are held out for evaluation",
                    hint="use more text, or evaluate on other files with valid=",
                )
            size = max(options.batch_size * self.lengths[0].tokens // length.tokens, 1)  # equal tokens in each phase
            phases.append(Phase(chunks, length.tokens, length.share, size, chunks))
        order = Phases(
            phases, steps=steps, epochs=epochs, gradient_accumulation=options.gradient_accumulation, seed=options.seed
        )
        evaluated = corpus
        if held is None:
            evaluated = self._read(settings.valid, folder / "valid", None)
            others = self._chunks(evaluated, self.lengths[0], options.seed, folder)
            held = others.sample(MAX_HELD_OUT, options.seed)
        train = self._examples(corpus, order, options.seed)
        second_texts = held if held.several_documents else others or phases[0].chunks  # from other documents
        valid = self.evaluated(evaluated, held, second_texts)
        return Data(train, valid, order, corpus.report)

    def evaluated(self, corpus: Corpus, chunks: Chunks, others: Chunks) -> Examples:
        """Makes examples for evaluation; their masks do not depend on the seed of the run."""
        phase = Phase(chunks, self.lengths[0].tokens, 1.0, 1, others)
        order = Phases([phase], steps=1, epochs=1, gradient_accumulation=1, seed=0)
        return self._examples(corpus, order, 0)

    def all_of(self, files: Sequence[Path], folder: Path, limit: int | None, on_read: OnProgress | None) -> Examples:
        """Makes examples for evaluation from other files: `limit` random examples, or all if `limit` is `None`."""
        corpus = self._read(files, folder, on_read)
        chunks = self._chunks(corpus, self.lengths[0], 0, folder)
        return self.evaluated(corpus, chunks if limit is None else chunks.sample(limit, 0), chunks)

    def _examples(self, corpus: Corpus, order: Phases, seed: int) -> Examples:
        return Examples(
            corpus, order, self._frame, self._masking, pairs=self._pairs, copies=self._settings.masks, seed=seed
        )

    def _read(self, files: Sequence[Path], folder: Path, on_read: OnProgress | None, *, keyed: bool = False) -> Corpus:
        return read_corpus(
            files, folder, self._tokenizer, field=self._settings.field, documents=self._settings.documents,
            encoding=self._settings.encoding, keyed=keyed, on_progress=on_read, hashes=self._settings.hashes,
        )  # fmt: skip

    def _chunks(self, corpus: Corpus, length: Length, seed: int, folder: Path) -> Chunks:
        template = self._frame.single if self._pairs is None else self._frame.pair
        room = length.tokens - sum(special is not None for special, _ in template)
        if self._pairs is None:
            chunks = full_sentences(corpus, room, across=self._settings.across_documents)
        else:
            chunks = sentence_pairs(corpus, room, seed)
        stored = Chunks.written(chunks, folder)
        if not len(stored):
            raise InputError(
                "no document of the corpus has two sentences, which are needed for a pair",
                hint="use the objective mlm, which needs no pairs",
            )
        return stored
