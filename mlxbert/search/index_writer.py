"""An index brought up to date: what changed is read, split, embedded and put into its store, a transaction per file.

Files are read while chunks of earlier ones are embedded: batches do not end where files do. Of a file of any size only
hashes are in memory: its chunks wait on disk, and its vectors go into the store before it does, some at a time.
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
from typing import TYPE_CHECKING, Any, Protocol

from mlxbert.errors import InputError, StoreError
from mlxbert.readers.documents.document import Document, UnreadableError
from mlxbert.results.result import Failure
from mlxbert.search import update_events
from mlxbert.search.file_systems import FORBIDDEN, IN_THE_CLOUD
from mlxbert.search.file_walk import WalkedFile, WalkOptions, walk
from mlxbert.search.index_locations import is_under, spelled
from mlxbert.search.schema import ENDINGS
from mlxbert.search.store import IndexStore, StoredChunk, StoredDocument, StoredFile, now, storable
from mlxbert.search.update_events import Event
from mlxbert.search.vector_signs import unit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlxbert.search.chunks import Chunk
    from mlxbert.tasks.embed import EmbedTask

    Vector = NDArray[np.float32]

MOST_BYTES = 2**26  # of a file, unless it holds records
_START = 2**13  # bytes that tell what a file is
_SETTLED = 2 * 10**9  # nanoseconds after which the time of a file differs from that of its next change
_TOGETHER = 500  # files that are removed in one transaction, or vectors that are written before their file is
_SMALL = 2**20  # bytes of the chunks of a file that stay in memory
# Folders whose files, and files, that may be as they were.
_CLOSED = ("no permission", FORBIDDEN, "cannot be read", IN_THE_CLOUD)


class Splits(Protocol):
    """What makes chunks of documents; see `mlxbert.search.chunks.Splitter`."""

    def __call__(self, document: Document) -> "Sequence[Chunk]":
        """The chunks of a document in order."""

    def embedded(self, document: Document, chunk: "Chunk") -> str:
        """The text of a chunk that is embedded."""


class _Spool:
    """Documents, each with the texts of its chunks that have no vector yet: many of them in a file without a name.

    Args:
        folder: Where that is.
    """

    def __init__(self, folder: str) -> None:
        self._file = tempfile.SpooledTemporaryFile(_SMALL, dir=folder)  # noqa: SIM115

    def __del__(self) -> None:
        self._file.close()

    def add(self, document: StoredDocument, texts: Sequence[str]) -> None:
        """Adds a document."""
        pickle.dump((document, texts), self._file, pickle.HIGHEST_PROTOCOL)

    def __iter__(self) -> Iterator[tuple[StoredDocument, Sequence[str]]]:
        self._file.seek(0)
        with suppress(EOFError):
            while True:
                yield pickle.load(self._file)


@dataclass
class Pending:
    """A file whose chunks are being embedded.

    Attributes:
        file: The file.
        held: What it holds.
        documents: How many documents these are.
        chunks: How many chunks they have.
        guessed: Which part of records was taken for their text.
        missing: The hashes of texts, in order, whose vectors are not there yet.
        vectors: Those that are there, and not yet in the store.
    """

    file: StoredFile
    held: Iterable[tuple[StoredDocument, Sequence[str]]] = ()
    documents: int = 0
    chunks: int = 0
    guessed: str | None = None
    missing: deque[bytes] = field(default_factory=deque)
    vectors: dict[bytes, "Vector"] = field(default_factory=dict)


class IndexWriter:
    """Brings an index up to date.

    Args:
        store: That of the index, which no other process writes to.
        tools: Gives what embeds chunks, and what makes them; asked if there is something to embed, as it loads a model.
    """

    def __init__(self, store: IndexStore, tools: "Callable[[], tuple[EmbedTask, Splits]]") -> None:
        self._store, self._tools = store, tools
        self._events: deque[Event] = deque()
        self._pending: deque[Pending] = deque()
        self._expected: set[bytes] = set()  # hashes of texts that are being embedded
        self._embedded = self._reused = 0
        self._changed = False
        self._left_out: Counter[str] = Counter()

    @cached_property
    def _made(self) -> "tuple[EmbedTask, Splits]":
        return self._tools()

    def update(self, paths: Sequence[str]) -> Iterator[Event]:
        """Brings what lies under some paths up to date."""
        started = time.perf_counter()
        before = {path: file for path, file in self._store.files().items() if is_under(path, paths)}
        changed, gone = yield from self._scan(paths, before)
        if changed:
            yield from self.embed(self._read_all(changed, before))
        for start in range(0, len(gone), _TOGETHER):
            with self._store.writing():
                self._store.remove(gone[start : start + _TOGETHER])
            yield from map(update_events.FileRemoved, gone[start : start + _TOGETHER])
        if self._changed or gone:
            with self._store.writing():
                self._store.prune()
                self._store.set_about(replace(self._store.about, updated=now()))
        found = self._store.stats()
        counts = found.files, found.chunks, self._embedded, self._reused, len(found.failed)
        yield update_events.IndexUpdated(*counts, dict(self._left_out), time.perf_counter() - started)

    def embed(self, source: Iterable[Pending]) -> Iterator[Event]:
        """Embeds what waits for that, and writes each file when the last of its vectors is there.

        An interrupt loses none of the vectors that are there.
        """
        try:
            yield from self._embed(source)
        except KeyboardInterrupt:
            with suppress(StoreError):
                for pending in self._pending:
                    self._keep(pending)
            raise

    def _embed(self, source: Iterable[Pending]) -> Iterator[Event]:
        task, _ = self._made
        for result in task.run(self._texts(source), "return"):
            pending = next(one for one in self._pending if one.missing)
            hash = pending.missing.popleft()
            self._expected.discard(hash)
            if isinstance(result, Failure):
                pending.file = replace(pending.file, problem=result.error.message)
            else:
                pending.vectors[hash] = unit(result.embedding, self._store.about.similarity)
                self._embedded += 1
            if len(pending.vectors) == _TOGETHER:
                self._keep(pending)
            self._write_ready()
            self._events.append(update_events.Embedded(self._embedded))
            yield from self._happened()
        self._write_ready()
        yield from self._happened()

    def _keep(self, pending: Pending) -> None:
        """Writes the vectors of a file that is not yet complete."""
        with self._store.writing():
            self._store.put_vectors(pending.vectors)
        pending.vectors = {}

    def pending(self, file: StoredFile, documents: Iterable[Document]) -> Pending:
        """A file whose documents are split, with the texts that are still to be embedded."""
        held, new = _Spool(os.path.dirname(os.path.abspath(self._store.path))), set[bytes]()
        found = Pending(file, held)
        _, splitter = self._made
        for document in map(_cleaned, documents):
            chunks, texts = list[StoredChunk](), list[str]()
            for chunk in splitter(document):
                text = splitter.embedded(document, chunk)
                hash = hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16]
                lines = chunk.first_line, chunk.last_line, chunk.page
                chunks.append(StoredChunk(document.text[chunk.start : chunk.end], chunk.titles, hash, *lines))
                if hash in new or hash in self._expected or self._store.known([hash]):
                    self._reused += 1
                else:
                    new.add(hash)
                    found.missing.append(hash)
                    texts.append(text)
            held.add(StoredDocument(document.place, document.title, document.fields, chunks), texts)
            found.documents, found.chunks = found.documents + 1, found.chunks + len(chunks)
            found.guessed = document.guessed
        return found

    def _scan(
        self, paths: Sequence[str], before: dict[str, StoredFile]
    ) -> Generator[Event, None, tuple[list[WalkedFile], list[str]]]:
        """The files that have to be read, and those that are gone."""
        about = self._store.about
        gone, changed, count, closed = dict(before), [], 0, []
        own = {*spelled([f"{self._store.path}{ending}" for ending in ENDINGS], paths)}
        for one in walk(paths, WalkOptions(include=about.include, exclude=about.exclude)):
            if one.path in own:  # it changes with every update
                continue
            if not isinstance(one, WalkedFile):
                closed += [one.path] if one.reason in _CLOSED else []
                yield self._leave_out(one.path, one.reason)
                continue
            count += 1
            known = gone.pop(one.path, None)
            if known is None or (known.size, known.mtime) != (one.size, one.mtime):
                changed.append(one)
            else:
                yield from self._wrong(known)
        missing = [path for path in paths if not os.path.exists(path)]  # since the walk has begun
        kept = {*closed, *missing}
        removed = [path for path in gone if not _lies_in(path, kept)]
        size = sum(one.size for one in changed)
        yield update_events.Scanned(count, len(changed), size, len(removed), dict(self._left_out))
        return changed, removed

    def _wrong(self, file: StoredFile) -> Iterator[Event]:
        """What is wrong with a file, if anything is."""
        if file.left_out:
            yield self._leave_out(file.path, str(file.problem))
        elif file.problem:
            yield update_events.FileFailed(file.path, file.problem)

    def _leave_out(self, path: str, reason: str) -> Event:
        self._left_out[reason] += 1
        return update_events.FileLeftOut(path, reason)

    def _texts(self, source: Iterable[Pending]) -> Iterator[str]:
        for pending in source:
            self._pending.append(pending)
            self._expected.update(pending.missing)
            for _, texts in pending.held:
                yield from texts
            self._write_ready()

    def _happened(self) -> Iterator[Event]:
        while self._events:
            yield self._events.popleft()

    def _read_all(self, changed: Iterable[WalkedFile], before: dict[str, StoredFile]) -> Iterator[Pending]:
        for found in changed:
            pending = self._read(found, before.get(found.path))
            if pending is not None:
                self._events.append(
                    update_events.FileRead(found.path, found.size, len(pending.missing), pending.guessed)
                )
                yield pending

    def _read(self, found: WalkedFile, known: StoredFile | None) -> Pending | None:
        """A file with its chunks, or with what is wrong with it; `None` if its content is the same, or it is gone."""
        file = StoredFile(found.path, found.size, found.mtime if time.time_ns() - found.mtime > _SETTLED else -1)
        try:
            with found.open() as opened:
                return self._read_opened(found, opened, file, known)
        except FileNotFoundError:
            return None
        except (UnreadableError, InputError) as problem:
            return Pending(replace(file, problem=problem.message))
        except OSError as problem:  # permission, for example: it may be given without a change of the file
            return Pending(replace(file, mtime=-1, problem=problem.strerror or str(problem)))

    def _read_opened(
        self, found: WalkedFile, opened: BufferedReader, file: StoredFile, known: StoredFile | None
    ) -> Pending | None:
        """`_read` of an open file; what is wrong with it is raised."""
        from mlxbert.readers.documents.document_kinds import read_documents
        from mlxbert.readers.documents.table_documents import DocumentColumns

        kind, data, hash = _content(found, opened)
        if hash and known is not None and hash == known.hash:
            with self._store.writing():
                self._store.touch(file)
            self._events.append(update_events.FileRead(found.path, found.size, 0))
            self._events.extend(self._wrong(known))
            return None
        file = replace(file, hash=hash)
        if kind is None or data is None:
            return Pending(replace(file, problem="binary" if kind is None else "too large", left_out=True))
        about = self._store.about
        columns = DocumentColumns(about.text, about.fields)
        pending = self.pending(file, read_documents(found.path, data, kind, columns, file=opened))
        if os.stat(found.path).st_mtime_ns != found.mtime:
            file = replace(file, mtime=-1)  # it is looked at again next time
        return replace(pending, file=file)

    def _write_ready(self) -> None:
        """Writes the files at the front all of whose vectors are there."""
        while self._pending and not self._pending[0].missing:
            pending = self._pending.popleft()
            with self._store.writing():
                self._write(pending)

    def _write(self, pending: Pending) -> None:
        held = pending.held if pending.file.problem is None else ()
        hashes = (chunk.hash for document, _ in held for chunk in document.chunks)
        if not all(hash in pending.vectors or self._store.known([hash]) for hash in hashes):
            problem = "a text that another file has, too, could not be embedded"
            pending.file, held = replace(pending.file, problem=problem, hash=b"", mtime=-1), ()
        file, documents = pending.file, (document for document, _ in held)
        self._changed = True
        if not file.path:
            self._store.put_documents(documents, pending.vectors)
            return
        self._store.put(file, documents, pending.vectors)
        self._events.extend(self._wrong(file))
        if not file.problem:
            self._events.append(update_events.FileIndexed(file.path, pending.documents, pending.chunks))


def _lies_in(path: str, paths: Collection[str]) -> bool:
    """Whether a path is one of many others, or lies in one."""
    while path not in paths:
        path, before = os.path.dirname(path), path
        if path == before:
            return False
    return True


def _content(found: WalkedFile, file: BufferedReader) -> tuple[str | None, bytes | None, bytes]:
    """The kind of a file, its bytes and their hash; no bytes if there are too many, none are needed of records."""
    from mlxbert.readers.documents.document_kinds import kind_of

    start = file.read(_START)
    kind = kind_of(os.path.basename(found.path), start)
    if kind is None:
        return None, None, b""
    if kind != "records":
        data = start + file.read(MOST_BYTES + 1 - len(start))
        return kind, data if len(data) <= MOST_BYTES else None, hashlib.sha256(data).digest()[:16]
    file.seek(0)
    return kind, b"", hashlib.file_digest(file, "sha256").digest()[:16]


def _cleaned(document: Document) -> Document:
    """A document without halves of surrogate pairs and the like, which no database stores."""

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
