"""Updates an index: changed files are read, split, embedded and written to the store, one transaction per file.

Files are read and embedded alternately: some files are read, until they have enough chunks to embed or have taken long,
and then embedded together. Only the hashes of a large file stay in memory: its chunks wait on disk, and its vectors are
written in groups before the file itself.
"""

import hashlib
import os
import pickle
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from io import BufferedReader
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from mlxbert.errors import InputError, StoreError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.results.result import Failure
from mlxbert.search import update_events
from mlxbert.search.documents.document import Document, ReadProblem, UnreadableError
from mlxbert.search.file_systems import FORBIDDEN, IN_THE_CLOUD
from mlxbert.search.file_walk import WalkedFile, WalkOptions, change_time, walk
from mlxbert.search.index_problems import ProblemList
from mlxbert.search.index_stores import canonical_paths, is_under
from mlxbert.search.store import IndexProblem, IndexStore, StoredChunk, StoredDocument, StoredFile, now, storable
from mlxbert.search.text_vectors import TextTask
from mlxbert.search.update_events import Event

if TYPE_CHECKING:
    from mlxbert.search.chunks import Chunk
Vector: TypeAlias = "NDArray[np.float32]"

MAX_BYTES = 2**26  # maximum size of a file, unless it holds records
_START = 2**13  # bytes at the start of a file from which its kind is recognized
_SETTLED = 2 * 10**9  # nanoseconds after which the next change of a file is sure to have another time
_GROUP = 500  # files removed in one transaction, or vectors written before their file
_SPOOL_BYTES = 2**20  # bytes of the chunks of a file that stay in memory
_NO_TEXT = ReadProblem("left out", "no text")
_NO_TOKENS = ReadProblem("left out", "a text that the model's tokenizer drops")
_TURN = 3.0  # seconds of reading, or of embedding, after which it should be the other's turn
_FIRST, _GROWTH, _AHEAD = 64, 4, 2  # chunks embedded first, the growth of later groups, and windows in the largest one
# Reasons for which a file or folder is unreadable but may be unchanged: it stays in the index.
_CLOSED = ("no permission", FORBIDDEN, "cannot be read", IN_THE_CLOUD)


class Splits(Protocol):
    """Splits documents into chunks (see `mlxbert.search.chunks.Splitter`)."""

    def __call__(self, document: Document) -> "Sequence[Chunk]":
        """Returns the chunks of a document in order."""

    def embedded(self, document: Document, chunk: "Chunk") -> Sequence[str]:
        """Returns the texts to embed for a chunk, one for each of its windows."""


class EmbeddingTools(NamedTuple):
    """What an update needs if there is something to embed."""

    task: TextTask  # embeds texts
    stored: Callable[[Any], Any]  # returns what the store keeps of a result of the task
    splitter: Splits  # splits documents into chunks


class _Spool:
    """Holds documents in memory or, if they are large, on disk.

    With each document, it holds the texts of the chunks that have no vector yet.

    Args:
        folder: The folder of the temporary file; `None` for the system's.
    """

    def __init__(self, folder: str | None) -> None:
        self._file = tempfile.SpooledTemporaryFile(_SPOOL_BYTES, dir=folder)  # noqa: SIM115

    def __del__(self) -> None:
        self._file.close()

    def add(self, document: StoredDocument, texts: Sequence[str]) -> None:
        pickle.dump((document, texts), self._file, pickle.HIGHEST_PROTOCOL)

    def __iter__(self) -> Iterator[tuple[StoredDocument, Sequence[str]]]:
        self._file.seek(0)
        with suppress(EOFError):
            while True:
                yield pickle.load(self._file)


@dataclass
class PendingFile:
    """A file whose chunks are being embedded."""

    file: StoredFile
    # The documents, each with the texts of its chunks that have no vector yet.
    held: Iterable[tuple[StoredDocument, Sequence[str]]] = ()
    documents: int = 0  # the number of documents
    chunks: int = 0  # the number of chunks
    guessed: str | None = None  # the field of the records that was guessed to hold the text
    problems: Sequence[IndexProblem] = ()  # what was left out, cut or guessed
    missing: deque[bytes] = field(default_factory=deque)  # the hashes, in order, of the texts that are not embedded yet
    # The vectors that are computed but not yet stored, by the hashes of their texts.
    vectors: dict[bytes, Any] = field(default_factory=dict)


class IndexWriter:
    """Updates an index.

    Args:
        store: The store of the index; no other process writes to it.
        tools: Loads and returns the tools; called only if there is something to embed.
    """

    def __init__(self, store: IndexStore, tools: Callable[[], EmbeddingTools]) -> None:
        self._store, self._tools = store, tools
        self._events: deque[Event] = deque()
        self._pending: deque[PendingFile] = deque()
        self._expected: set[bytes] = set()  # hashes of texts that are being embedded
        self._embedded = self._reused = 0
        self._changed = False
        self._written = time.monotonic()
        self._left_out: Counter[str] = Counter()

    @cached_property
    def _loaded_tools(self) -> EmbeddingTools:
        return self._tools()

    def update(self, paths: Sequence[str]) -> Iterator[Event]:
        started = time.perf_counter()
        before = {path: file for path, file in self._store.files().items() if is_under(path, paths)}
        changed, gone = yield from self._scan(paths, before)
        for start in range(0, len(gone), _GROUP):  # first, so that no search finds them while others are read
            with self._store.writing():
                self._store.remove(gone[start : start + _GROUP])
            yield from map(update_events.FileRemoved, gone[start : start + _GROUP])
        if changed:
            yield from self.embed(self._read_all(changed, before))
        if self._changed or gone:
            with self._store.writing():
                self._store.prune()
                self._store.set_about(replace(self._store.about, updated=now()))
        stats = self._store.stats()
        counts = stats.files, stats.chunks, self._embedded, self._reused, len(stats.failed)
        yield update_events.IndexUpdated(*counts, dict(self._left_out), stats.problems, time.perf_counter() - started)

    def embed(self, source: Iterable[PendingFile | Event]) -> Iterator[Event]:
        """Embeds pending files, and writes each file as soon as all of its vectors are computed.

        Yields the events of the source, too. If interrupted, it stores the vectors that are already computed.
        """
        try:
            yield from self._embed(source)
            self._write_ready(at_once=True)
            yield from self._drain_events()
        except KeyboardInterrupt:
            with suppress(StoreError):
                for pending in self._pending:
                    self._keep(pending)
            raise

    def _embed(self, source: Iterable[PendingFile | Event]) -> Iterator[Event]:
        """Reads and embeds files alternately.

        The first groups are small, so that it soon becomes known how long embedding takes. Later ones grow, so that a
        GPU has enough work, until one takes a turn.
        """
        task = self._loaded_tools.task
        entries, size = iter(source), _FIRST
        while group := (yield from self._read_group(entries, size)):
            started = time.monotonic()
            yield from self._embed_group(task, group)
            if time.monotonic() - started < _TURN:
                size = min(size * _GROWTH, _AHEAD * task.window)

    def _read_group(
        self, entries: Iterator[PendingFile | Event], size: int
    ) -> Generator[Event, None, list[PendingFile]]:
        """Reads files until they have `size` texts to embed or reading has taken a turn; returns them."""
        group, count, until = list[PendingFile](), 0, time.monotonic() + _TURN
        for entry in entries:
            if not isinstance(entry, PendingFile):
                yield entry
                continue
            self._pending.append(entry)
            self._expected.update(entry.missing)
            group += [entry] if entry.missing else []
            count += len(entry.missing)
            self._write_ready()
            yield from self._drain_events()
            if count >= size or (count and time.monotonic() > until):
                break
        return group

    def _embed_group(self, task: TextTask, group: Iterable[PendingFile]) -> Iterator[Event]:
        held = (texts for pending in group for _, texts in pending.held)
        for result in task.run(chain.from_iterable(held), "return"):
            pending = next(candidate for candidate in self._pending if candidate.missing)
            hash = pending.missing.popleft()
            self._expected.discard(hash)
            if isinstance(result, Failure):
                pending.file = replace(pending.file, problem=result.error.message)
            else:
                pending.vectors[hash] = self._loaded_tools.stored(result)
                self._embedded += 1
            if len(pending.vectors) >= _GROUP and self._is_due():
                self._keep(pending)
            self._write_ready()
            self._events.append(update_events.Embedded(self._embedded))
            yield from self._drain_events()
        self._write_ready()
        yield from self._drain_events()

    def _keep(self, pending: PendingFile) -> None:
        with self._store.writing():
            self._store.put_vectors(pending.vectors)
        pending.vectors = {}
        self._written = time.monotonic()

    def pending(self, file: StoredFile, documents: Iterable[Document]) -> PendingFile:
        """Splits the documents of a file, and collects the texts that still have to be embedded, and the problems."""
        held, new = _Spool(next(map(os.path.dirname, self._store.own_paths), None)), set[bytes]()
        result, problems = PendingFile(file, held), ProblemList(file.path or None)
        splitter = self._loaded_tools.splitter
        for document in map(_cleaned, documents):
            for problem in document.problems:
                problems.add(document.place, problem)
            empty = not document.text.strip()
            if empty and document.problems:
                continue  # not a document
            result.guessed = document.guessed
            chunks, texts = list[StoredChunk](), list[str]()
            for chunk in splitter(document):
                hashes = dict[bytes, str]()
                for text in splitter.embedded(document, chunk):
                    hashes[hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16]] = text
                lines = chunk.first_line, chunk.last_line, chunk.page
                shown = document.text[chunk.start : chunk.end]
                chunks.append(StoredChunk(shown, chunk.titles, tuple(hashes), *lines))
                missing = [hash for hash in hashes if not (hash in new or hash in self._expected)]
                known = self._store.known(missing) if missing else ()
                missing = [hash for hash in missing if hash not in known]
                self._reused += len(hashes) - len(missing)
                new.update(missing)
                result.missing.extend(missing)
                texts += [hashes[hash] for hash in missing]
            if not chunks:
                problems.add(document.place, _NO_TEXT if empty else _NO_TOKENS)
                if file.path:
                    continue
            title = document.title or next((heading.text for heading in document.headings), "")  # as it is shown
            held.add(StoredDocument(document.place, title, document.fields, chunks), texts)
            result.documents, result.chunks = result.documents + 1, result.chunks + len(chunks)
        if file.path and not result.documents and not problems.kept():
            problems.add("", _NO_TEXT)
        result.problems = problems.kept()
        return result

    def _scan(
        self, paths: Sequence[str], before: dict[str, StoredFile]
    ) -> Generator[Event, None, tuple[list[WalkedFile], list[str]]]:
        about = self._store.about
        gone, changed, count, closed = dict(before), [], 0, []
        own_paths = canonical_paths(self._store.own_paths)
        for entry in walk(paths, WalkOptions(include=about.include, exclude=about.exclude)):
            if is_under(entry.path, own_paths):  # they change with every update
                continue
            if not isinstance(entry, WalkedFile):
                closed += [entry.path] if entry.reason in _CLOSED else []
                yield self._leave_out(entry.path, entry.reason)
                continue
            count += 1
            stored = gone.pop(entry.path, None)
            if stored is None or (stored.size, stored.changed) != (entry.size, entry.changed):
                changed.append(entry)
            else:
                yield from self._problem_events(stored)
        missing = [path for path in paths if not os.path.exists(path)]  # removed since the walk began
        kept = {*closed, *missing}
        removed = [path for path in gone if not _is_within(path, kept)]
        size = sum(entry.size for entry in changed)
        yield update_events.Scanned(count, len(changed), size, len(removed), dict(self._left_out))
        return changed, removed

    def _problem_events(self, file: StoredFile) -> Iterator[Event]:
        if file.left_out:
            yield self._leave_out(file.path, str(file.problem))
        elif file.problem:
            yield update_events.FileFailed(file.path, file.problem)

    def _leave_out(self, path: str, reason: str) -> Event:
        self._left_out[reason] += 1
        return update_events.FileLeftOut(path, reason)

    def _drain_events(self) -> Iterator[Event]:
        while self._events:
            yield self._events.popleft()

    def _read_all(self, changed: Iterable[WalkedFile], before: dict[str, StoredFile]) -> Iterator[PendingFile | Event]:
        for entry in changed:
            yield update_events.FileStarted(entry.path, entry.size)
            pending = self._read(entry, before.get(entry.path))
            yield from self._drain_events()
            if pending is not None:
                yield update_events.FileRead(entry.path, entry.size, len(pending.missing), pending.guessed)
                yield pending

    def _read(self, entry: WalkedFile, stored: StoredFile | None) -> PendingFile | None:
        """Reads a file and splits it into chunks, or records its problem. Returns `None` if it is unchanged or gone."""
        file = StoredFile(entry.path, entry.size, entry.changed if time.time_ns() - entry.changed > _SETTLED else -1)
        try:
            with entry.open() as stream:
                return self._read_stream(entry, stream, file, stored)
        except FileNotFoundError:
            return None
        except (UnreadableError, InputError) as problem:
            return PendingFile(replace(file, problem=problem.message))
        except OSError as problem:  # for example no permission, which may be granted without a change of the file
            return PendingFile(replace(file, changed=-1, problem=problem.strerror or str(problem)))

    def _read_stream(
        self, entry: WalkedFile, stream: BufferedReader, file: StoredFile, stored: StoredFile | None
    ) -> PendingFile | None:
        """Reads an open file. If that fails, raises the error that `_read` records as the problem of the file."""
        from mlxbert.search.documents.document_kinds import read_documents
        from mlxbert.search.documents.table_documents import DocumentColumns

        kind, data, hash = _content(entry, stream)
        if hash and stored is not None and hash == stored.hash:
            with self._store.writing():
                self._store.touch(file)
            self._events.append(update_events.FileRead(entry.path, entry.size, 0))
            self._events.extend(self._problem_events(stored))
            return None
        file = replace(file, hash=hash)
        if kind is None or data is None:
            return PendingFile(replace(file, problem="binary" if kind is None else "too large", left_out=True))
        about = self._store.about
        columns = DocumentColumns(about.text, about.fields)
        documents = read_documents(entry.path, data, kind, columns, file=stream, encoding=about.encoding)
        pending = self.pending(file, documents)
        if change_time(os.stat(entry.path)) != entry.changed:
            file = replace(file, changed=-1)  # changed while it was read: the next update reads it again
        return replace(pending, file=file)

    def _is_due(self) -> bool:
        return time.monotonic() - self._written >= self._store.seconds_per_transaction

    def _write_ready(self, *, at_once: bool = False) -> None:
        """Writes the complete files at the front of the queue in one transaction, if it is time for one."""
        if self._pending and not self._pending[0].missing and (at_once or self._is_due()):
            with self._store.writing():
                while self._pending and not self._pending[0].missing:
                    self._write(self._pending.popleft())
            self._written = time.monotonic()

    def _has_vectors(self, document: StoredDocument, pending: PendingFile) -> bool:
        hashes = {hash for chunk in document.chunks for hash in chunk.hashes} - pending.vectors.keys()
        return not hashes - self._store.known(hashes) if hashes else True

    def _write(self, pending: PendingFile) -> None:
        held = pending.held if pending.file.problem is None else ()
        if not all(self._has_vectors(document, pending) for document, _ in held):
            problem = "a text that this file shares with another one could not be embedded"
            pending.file, held = replace(pending.file, problem=problem, hash=b"", changed=-1), ()
        file, documents = pending.file, (document for document, _ in held)
        self._changed = True
        if not file.path:
            self._store.put_documents(documents, pending.vectors, pending.problems)
            return
        self._store.put(file, documents, pending.vectors, pending.problems if file.problem is None else ())
        self._events.extend(self._problem_events(file))
        if not file.problem:
            self._events.append(update_events.FileIndexed(file.path, pending.documents, pending.chunks))


def _is_within(path: str, paths: Collection[str]) -> bool:
    """Whether a path or a folder above it is in `paths`; fast even if there are many paths."""
    while path not in paths:
        path, before = os.path.dirname(path), path
        if path == before:
            return False
    return True


def _content(entry: WalkedFile, file: BufferedReader) -> tuple[str | None, bytes | None, bytes]:
    """Returns the kind, bytes and hash of a file.

    The bytes are `None` if there are more than `MAX_BYTES`, and empty for a file of records.
    """
    from mlxbert.search.documents.document_kinds import kind_of

    start = file.read(_START)
    kind = kind_of(os.path.basename(entry.path), start)
    if kind is None:
        return None, None, b""
    if kind != "records":
        data = start + file.read(MAX_BYTES + 1 - len(start))
        return kind, data if len(data) <= MAX_BYTES else None, hashlib.sha256(data).digest()[:16]
    file.seek(0)
    return kind, b"", hashlib.file_digest(file, "sha256").digest()[:16]


def _cleaned(document: Document) -> Document:
    """Replaces the characters of a document that databases cannot store."""

    def clean(value: Any) -> Any:
        return storable(value) if isinstance(value, str) else value

    return replace(
        document,
        text=clean(document.text),
        title=clean(document.title),
        place=clean(document.place),
        headings=tuple(replace(heading, text=clean(heading.text)) for heading in document.headings),
        fields={clean(name): clean(value) for name, value in document.fields.items()},
    )
