"""Tokenizes the sentences of documents, and writes their tokens in blocks.

The highest bit of an id is set if the token continues a word. Each block is committed by replacing the state file as
the last step.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mlxbert.durable_files import DamagedError, check_hash, fsync, hashed, read_record, write_record
from mlxbert.progress import OnProgress
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.train.pretraining.corpus.documents import CorpusPosition, DocumentReader, FilePart
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


BLOCK = 2**20  # tokens after which the state is written
BATCH_SENTENCES, BATCH_CHARACTERS = 2048, 500_000
_STATE = "corpus.json"


@dataclass(frozen=True)
class CommittedTokens:
    """The state of a corpus on disk after the last committed block."""

    # The sources and options of the corpus, and the size of an id in bytes as `width`. A corpus with a different key is
    # read from the beginning.
    key: Mapping[str, Any]
    place: CorpusPosition = field(default_factory=CorpusPosition)  # the position up to which the files were read
    tokens: int = 0  # the number of tokens on disk
    sentences: int = 0  # the number of sentences on disk
    documents: int = 0  # the number of documents on disk
    closed: int = 0  # the number of sentences in complete documents
    unknown: int = 0  # the number of unknown tokens
    longest: int = 0  # the number of tokens of the longest sentence
    seconds: float = 0.0  # the time that reading took, summed over all runs
    sha256: Mapping[str, str] = field(default_factory=dict)  # the hash of the committed bytes of each file
    complete: bool = False  # whether all files were read

    @property
    def sizes(self) -> dict[str, int]:
        """The number of committed bytes of each file."""
        return {
            "ids.bin": self.tokens * self.key["width"],
            **{"sentences.bin": self.sentences * 8, "documents.bin": self.documents * 8},
        }


def load_state(folder: Path, key: Mapping[str, Any]) -> CommittedTokens:
    """Loads the committed state; returns an empty state if none was saved for this key, or if a file is damaged."""
    try:
        values = read_record(folder / _STATE, key)
        place = CorpusPosition(**{**values["place"], "problems": tuple(values["place"]["problems"])})
        state = CommittedTokens(**{**values, "place": place})
        for name, size in state.sizes.items():
            check_hash(folder / name, state.sha256[name], size)
    except (OSError, DamagedError, TypeError, KeyError):
        return CommittedTokens(key)
    return state


class TokenWriter:
    """Appends tokens to the files of a corpus, after the committed bytes."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, state: CommittedTokens) -> None:
        self._folder, self._tokenizer = folder, tokenizer
        self._state = state
        self._begun, self._before = time.monotonic(), state.seconds
        self._files: dict[str, BinaryIO] = {}
        self._hashes: dict[str, hashlib._Hash] = {}

    def write(self, reader: DocumentReader, on_progress: OnProgress | None) -> CommittedTokens:
        """Writes the tokens of all parts that a reader yields; returns the state after the last part."""
        with ExitStack() as stack:
            for name, size in self._state.sizes.items():
                path = self._folder / name
                self._files[name] = stack.enter_context(path.open("r+b" if path.exists() else "w+b"))
                self._files[name].truncate(size)
                self._files[name].seek(size)
                self._hashes[name] = hashed(path, size)
            committed = self._state.tokens
            for parts in _batches(reader):
                self._append(parts)
                if parts[-1].resumable and self._state.tokens - committed >= BLOCK:
                    self._commit(reader.place)
                    committed = self._state.tokens
                if on_progress is not None:
                    on_progress(reader.done, reader.total)
            self._commit(reader.place, complete=True)
        return self._state

    def _inside(self, parts: list[FilePart], place: int) -> bool:
        return parts[place - 1].continues if place else self._state.sentences > self._state.closed

    def _append(self, parts: list[FilePart]) -> None:
        state = self._state
        begins = [
            number == 0 and not self._inside(parts, place)
            for place, part in enumerate(parts)
            for number in range(len(part.sentences))
        ]
        tokens = tokenize(self._tokenizer, [sentence for part in parts for sentence in part.sentences], begins)
        kept = tokens.lengths > 0
        ends = state.tokens + np.cumsum(tokens.lengths[kept])
        # The number of sentences up to the end of each part, then the ends of documents that have sentences.
        bounds = np.cumsum([len(part.sentences) for part in parts])
        counts = state.sentences + np.concatenate([[0], np.cumsum(kept)])[bounds]
        closed = counts[[not part.continues for part in parts]]
        closed = closed[np.diff(closed, prepend=state.closed) > 0]
        for name, array in (("ids.bin", tokens.ids), ("sentences.bin", ends), ("documents.bin", closed)):
            content = array.astype(array.dtype if name == "ids.bin" else "<i8").tobytes()
            self._files[name].write(content)
            self._hashes[name].update(content)
        self._state = replace(
            state,
            tokens=state.tokens + len(tokens.ids),
            sentences=state.sentences + len(ends),
            documents=state.documents + len(closed),
            closed=int(closed[-1]) if len(closed) else state.closed,
            unknown=state.unknown + tokens.unknown,
            longest=max(state.longest, int(tokens.lengths.max(initial=0))),
        )

    def _commit(self, place: CorpusPosition, *, complete: bool = False) -> None:
        for file in self._files.values():
            file.flush()
            fsync(file.fileno(), durable=False)  # `write_record` makes them durable
        seconds = round(self._before + time.monotonic() - self._begun, 3)
        hashes = {name: content.hexdigest() for name, content in self._hashes.items()}
        self._state = replace(self._state, place=place, seconds=seconds, sha256=hashes, complete=complete)
        write_record(self._folder / _STATE, asdict(self._state), self._state.key)


def _batches(parts: DocumentReader) -> Iterator[list[FilePart]]:
    """Yields lists of parts to tokenize together. The reader reads beyond a list only once the next is requested."""
    batch: list[FilePart] = []
    sentences = characters = 0
    for part in parts:
        batch.append(part)
        sentences += len(part.sentences)
        characters += sum(map(len, part.sentences))
        if sentences >= BATCH_SENTENCES or characters >= BATCH_CHARACTERS or len(batch) >= BATCH_SENTENCES:
            yield batch
            batch, sentences, characters = [], 0, 0
    if batch:
        yield batch
