"""Stores the token ids of a corpus on disk. The texts are read only once, and reading can be resumed.

`ids.bin` holds the token ids, `sentences.bin` the number of tokens up to the end of each sentence, and `documents.bin`
the number of sentences up to the end of each document. `corpus.json` is written last and holds the committed sizes and
the hashes of these files. Bytes after the committed size are left from an interrupted run and are removed. If a hash
does not match, the corpus is read again.
"""

import bisect
import hashlib
import json
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mlxbert.durable_files import acquire_lock, writing
from mlxbert.errors import CheckpointError, InputError
from mlxbert.progress import OnProgress
from mlxbert.readers.formats import find_format
from mlxbert.readers.input_files import Stamp, hashed
from mlxbert.readers.text_lines import UTF8, uncompressed_name
from mlxbert.text.tokenizer import Tokenizer
from mlxbert.train.pretraining.corpus.documents import DocumentReader, check_files
from mlxbert.train.pretraining.corpus.token_writer import CommittedTokens, TokenWriter, ids_dtype, load_state

_BLOCK = 2**12  # rows that are read or written at a time


class Stored:
    """An array of N rows in a file, (N,) or (N, W). The caller may close the file, and even remove it.

    The file is not memory-mapped, because all pages ever read would then count as memory of the process.
    """

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._file, self.dtype, self._shape = os.dup(file.fileno()), dtype, shape
        self._size = dtype.itemsize * int(np.prod(shape[1:]))  # bytes of a row
        weakref.finalize(self, os.close, self._file)

    def __len__(self) -> int:
        return self._shape[0]

    def __getitem__(self, place: int | slice) -> Any:
        """Returns a row, or a range of consecutive rows."""
        if not isinstance(place, slice):
            return self[place : place + 1][0]
        start, stop, _ = place.indices(len(self))
        size = max(stop - start, 0) * self._size
        content = os.pread(self._file, size, start * self._size)
        if len(content) < size:
            raise CheckpointError(
                f"the stored corpus ends after {start * self._size + len(content):,} bytes, expected "
                f"{len(self) * self._size:,} bytes",
                hint="remove the folder of shards, which will be rebuilt",
            )
        return np.frombuffer(content, self.dtype).reshape(-1, *self._shape[1:])


Numbers = Stored | NDArray[Any]


def in_blocks(numbers: Numbers) -> Iterator[NDArray[Any]]:
    """Returns an iterator over all rows in order, in blocks."""
    return (numbers[start : start + _BLOCK] for start in range(0, len(numbers), _BLOCK))


def store(rows: Iterable[tuple[int, ...]], width: int, folder: Path) -> Stored:
    """Writes rows of `width` numbers to an unnamed file in `folder`. The file is deleted once the result is unused."""
    dtype, count, waiting = np.dtype("<i8"), 0, iter(rows)
    with writing(folder, "the places of the examples "):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            while block := [*islice(waiting, _BLOCK)]:
                file.write(np.array(block, dtype).tobytes())
                count += len(block)
            file.flush()
            return Stored(file, dtype, (count, width))


VERSION = 1  # of the format
_LOCK = ".lock"


@dataclass(frozen=True)
class CorpusReport:
    """A report on the contents of a corpus."""

    files: tuple[str, ...]  # the paths of the text files
    sha256: Mapping[str, str]  # the SHA-256 of each file
    bytes: int  # the total size of the files in bytes, before decompression
    documents: int  # the number of documents with at least one token
    sentences: int  # the number of sentences with at least one token
    tokens: int  # the number of tokens, not counting special tokens
    unknown: int  # the number of unknown tokens
    skipped: int  # the number of unusable lines and records
    empty: int  # the number of empty files
    problems: tuple[str, ...]  # messages about the first problems (skipped lines and records, and empty files)
    seconds: float  # the time that reading took, summed over all runs


@dataclass(frozen=True)
class Corpus:
    """The tokens of a corpus with T tokens, S sentences and D documents."""

    # (T,) token ids; the highest bit marks a token that continues the word of the previous token.
    ids: Numbers = field(repr=False)
    sentences: Numbers = field(repr=False)  # (S,) the number of tokens up to the end of each sentence
    documents: Numbers = field(repr=False)  # (D,) the number of sentences up to the end of each document
    report: CorpusReport  # the report on the contents of the corpus

    def tokens(self, start: int, end: int) -> NDArray[np.int32]:
        """Returns the ids of the tokens from `start` to `end` (exclusive)."""
        return (self.ids[start:end] & (self._highest - 1)).astype(np.int32)

    def continues(self, start: int, end: int) -> NDArray[np.bool_]:
        """Returns for each token from `start` to `end` (exclusive) whether it continues a word."""
        return np.asarray(self.ids[start:end] & self._highest != 0)

    def ends(self) -> Iterator[tuple[int, int]]:
        """Yields two numbers for each sentence in order: its document, and the position of its end in tokens."""
        closed = (count for block in in_blocks(self.documents) for count in block.tolist())
        document, last = 0, next(closed)
        for number, end in enumerate(end for block in in_blocks(self.sentences) for end in block.tolist()):
            if number == last:
                document, last = document + 1, next(closed)
            yield document, end

    def borders(self, document: int, stop: int) -> list[int]:
        """Returns the positions before `stop`, in tokens, at which `document` and the documents after it end."""
        ends: list[int] = []
        while document < len(self.documents) and (end := int(self.sentences[self.documents[document] - 1])) < stop:
            ends.append(end)
            document += 1
        return ends

    def inside(self, document: int, start: int, stop: int) -> NDArray[Any]:
        """Returns the positions after `start` and before `stop`, in tokens, at which sentences of `document` end."""
        first = int(self.documents[document - 1]) if document else 0
        first = bisect.bisect_right(self.sentences, start, first, int(self.documents[document]))
        ends: NDArray[Any] = self.sentences[first : first + stop - start]
        return ends[ends < stop]

    @property
    def _highest(self) -> Any:
        return self.ids.dtype.type(1 << (8 * self.ids.dtype.itemsize - 1))


def read_corpus(
    files: Sequence[str | Path],
    folder: Path,
    tokenizer: Tokenizer,
    *,
    field: str = "text",
    documents: str = "blank",
    encoding: str = UTF8,
    keyed: bool = False,
    hashes: Mapping[Path, tuple[str, Stamp]] | None = None,
    on_progress: OnProgress | None = None,
) -> Corpus:
    """Stores the token ids of text files in a folder, or opens the folder if it already holds them.

    After an interruption, the same call resumes and gives the same result. If the files, the vocabulary or an option
    has changed, or a file of the folder is damaged, it starts again.

    If `keyed` is true, `folder` may hold several corpora, each in a subfolder of its own. `hashes` may hold earlier
    results of `hashed` for the files. For `field`, `documents` and `encoding`, see `DocumentReader`.
    """
    paths = check_files(files, field, documents)
    hashes = hashes or {path: hashed(path) for path in paths}
    sha256 = {str(path): hashes[path][0] for path in paths}
    key = {
        "version": VERSION,
        "files": [[find_format(str(path)).value, sha256[str(path)]] for path in paths],
        "tokenizer": hashlib.sha256(tokenizer.files.tokenizer.to_str().encode()).hexdigest(),
        **{"field": field, "documents": documents, "width": ids_dtype(tokenizer).itemsize},
        **({} if encoding == UTF8 else {"encoding": encoding}),
    }
    if keyed:
        folder = folder / hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    state = load_state(folder, key)
    if not state.complete:
        with writing(folder, "the corpus ", "; the part read so far is kept"):
            folder.mkdir(parents=True, exist_ok=True)
            with acquire_lock(folder / _LOCK, "run"):
                state = load_state(folder, key)
                reader = DocumentReader(
                    paths, field, documents, state.place, [hashes[path][1] for path in paths], encoding
                )
                state = TokenWriter(folder, tokenizer, state).write(reader, on_progress)
                (folder / _LOCK).unlink()
    return _open(folder, paths, sha256, tokenizer, state)


def _open(
    folder: Path, paths: Sequence[Path], sha256: Mapping[str, str], tokenizer: Tokenizer, state: CommittedTokens
) -> Corpus:
    if state.longest < 2:
        names = ", ".join(map(str, paths[:3])) + (", …" if len(paths) > 3 else "")
        in_fields = not all(uncompressed_name(path.name).endswith(".txt") for path in paths)
        raise InputError(
            f"{names}: no sentence has two tokens, expected text in the language of the vocabulary",
            hint=f"check {'`field=` and ' * in_fields}the vocabulary, and that the files are not empty",
        )
    ids = _stored(folder / "ids.bin", ids_dtype(tokenizer), state.tokens)
    sentences = _stored(folder / "sentences.bin", np.dtype("<i8"), state.sentences)
    documents = _stored(folder / "documents.bin", np.dtype("<i8"), state.documents)
    report = CorpusReport(
        files=tuple(map(str, paths)),
        sha256=sha256,
        bytes=sum(path.stat().st_size for path in paths),
        documents=state.documents,
        sentences=state.sentences,
        tokens=state.tokens,
        unknown=state.unknown,
        skipped=state.place.skipped,
        empty=state.place.empty,
        problems=state.place.problems,
        seconds=state.seconds,
    )
    return Corpus(ids, sentences, documents, report)


def _stored(path: Path, dtype: np.dtype[Any], count: int) -> Stored:
    try:
        with path.open("rb") as file:
            return Stored(file, dtype, (count,))
    except OSError as problem:
        raise CheckpointError(
            f"{path.parent}: the corpus is damaged ({problem})", hint="remove this folder, which will be rebuilt"
        ) from None
