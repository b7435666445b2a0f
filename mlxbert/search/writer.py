"""An index brought up to date: what changed is read, split, embedded and put into its store, a transaction per file.

Files are read while chunks of earlier ones are embedded: batches do not end where files do.
"""

import hashlib
import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from mlxbert.errors import InputError
from mlxbert.files import sha256
from mlxbert.readers.documents.document import Document, UnreadableError
from mlxbert.results.result import Failure
from mlxbert.search import events
from mlxbert.search.events import Event
from mlxbert.search.places import is_under
from mlxbert.search.schema import ENDINGS
from mlxbert.search.signs import unit
from mlxbert.search.store import Store, StoredChunk, StoredDocument, StoredFile, now
from mlxbert.search.walk import Found, WalkOptions, walk

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from mlxbert.search.chunks import Chunk
    from mlxbert.tasks.embed import EmbedTask

    Vector = NDArray[np.float32]

MOST_BYTES = 2**26  # of a file, unless it holds records
_START = 2**13  # bytes that tell what a file is
_SETTLED = 2 * 10**9  # nanoseconds after which the time of a file differs from that of its next change
_TOGETHER = 500  # files that are removed in one transaction
_CLOSED = ("no permission", "cannot be read")  # folders whose files may still be there
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")


class Splits(Protocol):
    """What makes chunks of documents; see `mlxbert.search.chunks.Splitter`."""

    def __call__(self, document: Document) -> "Sequence[Chunk]":
        """The chunks of a document in order."""

    def embedded(self, document: Document, chunk: "Chunk") -> str:
        """The text of a chunk that is embedded."""


@dataclass
class Pending:
    """A file whose chunks are being embedded.

    Attributes:
        file: The file.
        documents: What it holds.
        texts: The texts of its chunks that have no vector yet.
        missing: Their hashes in order, as long as their vectors are not there.
        vectors: Those that are there.
    """

    file: StoredFile
    documents: list[StoredDocument] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    missing: deque[bytes] = field(default_factory=deque)
    vectors: dict[bytes, "Vector"] = field(default_factory=dict)


class Writer:
    """Brings an index up to date.

    Args:
        store: That of the index, which no other process writes to.
        tools: Gives what embeds chunks, and what makes them; asked if there is something to embed, as it loads a model.
    """

    def __init__(self, store: Store, tools: "Callable[[], tuple[EmbedTask, Splits]]") -> None:
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
            yield from map(events.FileRemoved, gone[start : start + _TOGETHER])
        if self._changed or gone:
            with self._store.writing():
                self._store.prune()
                self._store.set_about(replace(self._store.about, updated=now()))
        found = self._store.stats()
        counts = found.files, found.chunks, self._embedded, self._reused, len(found.failed)
        yield events.Finished(*counts, dict(self._left_out), time.perf_counter() - started)

    def embed(self, source: Iterable[Pending]) -> Iterator[Event]:
        """Embeds what waits for that, and writes each file when the last of its vectors is there."""
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
            self._write_ready()
            self._events.append(events.Embedded(self._embedded))
            yield from self._happened()
        self._write_ready()
        yield from self._happened()

    def pending(self, file: StoredFile, documents: Iterable[Document]) -> Pending:
        """A file whose documents are split, with the texts that are still to be embedded."""
        found, new = Pending(file), dict[bytes, str]()
        _, splitter = self._made
        for document in map(_cleaned, documents):
            chunks = []
            for chunk in splitter(document):
                text = splitter.embedded(document, chunk)
                hash = hashlib.sha256(text.encode("utf-8", "replace")).digest()[:16]
                lines = chunk.first_line, chunk.last_line, chunk.page
                chunks.append(StoredChunk(document.text[chunk.start : chunk.end], chunk.titles, hash, *lines))
                if hash in new or hash in self._expected or self._store.known([hash]):
                    self._reused += 1
                else:
                    new[hash] = text
            found.documents.append(StoredDocument(document.place, document.title, document.fields, chunks))
        found.missing.extend(new)
        found.texts.extend(new.values())
        return found

    def _scan(
        self, paths: Sequence[str], before: dict[str, StoredFile]
    ) -> Generator[Event, None, tuple[list[Found], list[str]]]:
        """The files that have to be read, and those that are gone."""
        about = self._store.about
        gone, changed, count, closed = dict(before), [], 0, []
        own = {os.path.abspath(f"{self._store.path}{ending}") for ending in ENDINGS}
        for one in walk(paths, WalkOptions(include=about.include, exclude=about.exclude)):
            if one.path in own:  # it changes with every update
                continue
            if not isinstance(one, Found):
                closed += [one.path] if one.reason in _CLOSED else []
                yield self._leave_out(one.path, one.reason)
                continue
            count += 1
            known = gone.pop(one.path, None)
            if known is None or (known.size, known.mtime) != (one.size, one.mtime):
                changed.append(one)
            elif known.left_out:
                yield self._leave_out(one.path, str(known.problem))
            elif known.problem:
                yield events.FileFailed(one.path, known.problem)
        size = sum(one.size for one in changed)
        yield events.Scanned(count, len(changed), size, len(gone), dict(self._left_out))
        missing = [path for path in paths if not os.path.exists(path)]  # since the walk has begun
        return changed, [path for path in gone if not is_under(path, [*closed, *missing])]

    def _leave_out(self, path: str, reason: str) -> Event:
        self._left_out[reason] += 1
        return events.FileLeftOut(path, reason)

    def _texts(self, source: Iterable[Pending]) -> Iterator[str]:
        for pending in source:
            self._pending.append(pending)
            self._expected.update(pending.missing)
            texts, pending.texts = pending.texts, []
            yield from texts
            self._write_ready()

    def _happened(self) -> Iterator[Event]:
        while self._events:
            yield self._events.popleft()

    def _read_all(self, changed: Iterable[Found], before: dict[str, StoredFile]) -> Iterator[Pending]:
        for found in changed:
            pending = self._read(found, before.get(found.path))
            if pending is not None:
                chunks = sum(len(document.chunks) for document in pending.documents)
                self._events.append(events.FileRead(found.path, found.size, chunks))
                yield pending

    def _read(self, found: Found, known: StoredFile | None) -> Pending | None:
        """A file with its chunks, or with what is wrong with it; `None` if its content is the same, or it is gone."""
        from mlxbert.readers.documents.read import read_documents
        from mlxbert.readers.documents.records import Columns

        file = StoredFile(found.path, found.size, found.mtime if time.time_ns() - found.mtime > _SETTLED else -1)
        try:
            kind, data, hash = _content(found)
            if hash and known is not None and hash == known.hash:
                with self._store.writing():
                    self._store.touch(file)
                return None
            file = replace(file, hash=hash)
            if kind is None or data is None:
                file = replace(file, problem="binary" if kind is None else "too large", left_out=True)
                return Pending(file)
            about = self._store.about
            columns = Columns(about.text, about.fields)
            pending = self.pending(file, read_documents(found.path, data, kind, columns))
            if os.stat(found.path).st_mtime_ns != found.mtime:
                file = replace(file, mtime=-1)  # it is looked at again next time
            return replace(pending, file=file)
        except FileNotFoundError:
            return None
        except (UnreadableError, InputError) as problem:
            return Pending(replace(file, problem=problem.message))
        except OSError as problem:  # permission, for example: it may be given without a change of the file
            return Pending(replace(file, mtime=-1, problem=problem.strerror or str(problem)))

    def _write_ready(self) -> None:
        """Writes the files at the front all of whose vectors are there."""
        while self._pending and not self._pending[0].missing:
            pending = self._pending.popleft()
            with self._store.writing():
                self._write(pending)

    def _write(self, pending: Pending) -> None:
        hashes = {chunk.hash for document in pending.documents for chunk in document.chunks} - pending.vectors.keys()
        if hashes - self._store.known(hashes) and not pending.file.problem:
            problem = "a text that another file has, too, could not be embedded"
            pending.file = replace(pending.file, problem=problem, hash=b"", mtime=-1)
        file, documents = pending.file, [] if pending.file.problem else pending.documents
        self._changed = True
        if not file.path:
            self._store.put_documents(documents, pending.vectors)
            return
        self._store.put(file, documents, pending.vectors)
        if file.left_out:
            self._events.append(self._leave_out(file.path, str(file.problem)))
        elif file.problem:
            self._events.append(events.FileFailed(file.path, file.problem))
        else:
            chunks = sum(len(document.chunks) for document in documents)
            self._events.append(events.FileIndexed(file.path, len(documents), chunks))


def _content(found: Found) -> tuple[str | None, bytes | None, bytes]:
    """The kind of a file, its bytes and their hash; no bytes if there are too many, none are needed of records."""
    from mlxbert.readers.documents.kinds import kind_of

    with open(found.path, "rb") as file:
        start = file.read(_START)
        kind = kind_of(os.path.basename(found.path), start)
        if kind is None:
            return None, None, b""
        if kind != "records":
            data = start + file.read(MOST_BYTES + 1 - len(start))
            return kind, data if len(data) <= MOST_BYTES else None, hashlib.sha256(data).digest()[:16]
    return kind, b"", bytes.fromhex(sha256(Path(found.path)))[:16]


def _cleaned(document: Document) -> Document:
    """A document without halves of surrogate pairs and the like, which no database stores."""

    def clean(value: Any) -> Any:
        return _NOT_TEXT.sub("\ufffd", value) if isinstance(value, str) else value

    return replace(
        document,
        text=clean(document.text),
        title=clean(document.title),
        place=clean(document.place),
        headings=tuple(replace(heading, text=clean(heading.text)) for heading in document.headings),
        fields={clean(name): clean(value) for name, value in document.fields.items()},
    )
