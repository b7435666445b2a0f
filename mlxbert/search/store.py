"""What an index keeps, and what a store of it can do."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mlxbert.search.filters import Filter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vector = NDArray[np.float32]

Scores: TypeAlias = list[tuple[int, float]]  # numbers of chunks and their scores, the best first
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
SCHEMA = 2  # of what is stored; a newer one is refused


@dataclass(frozen=True)
class IndexSettings:
    """What an index was made with; everything that its vectors and chunks depend on.

    Attributes:
        model: The model, as it was named.
        hash: Its fingerprint, see `mlxbert.folders.fingerprint.hash_model`.
        dimensions: The size of its vectors.
        similarity: How they are compared, see `mlxbert.similarity`.
        pooling: How the vectors of tokens become one.
        prompts: What stands before a query, and before a chunk.
        tokens: The most tokens of a chunk.
        titles: Whether titles and headings are embedded with a chunk.
        roots: The files and folders that it covers, absolute.
        include: Patterns of the only files that count; empty for all.
        exclude: Patterns of files that do not count.
        text: The field or column of a record that is searched; `None` to guess it.
        fields: The fields of a record to filter by; `None` for all others.
        created: When it was made, in ISO 8601.
        updated: When it was last up to date.
    """

    model: str
    hash: str
    dimensions: int
    similarity: str
    pooling: str
    prompts: tuple[str, str]
    tokens: int
    titles: bool
    roots: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    text: str | None = None
    fields: tuple[str, ...] | None = None
    created: str = ""
    updated: str = ""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of an index.

    Attributes:
        path: Its path; empty for records that were added.
        size: Its bytes.
        mtime: When it was changed, in nanoseconds; -1 if that may not be told from its next change.
        hash: Of its content.
        problem: Why it could not be read.
        left_out: Whether it is not one to be searched, rather than one that failed.
    """

    path: str
    size: int = 0
    mtime: int = -1
    hash: bytes = b""
    problem: str | None = None
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk of a document.

    Attributes:
        text: What is shown and searched.
        titles: What it stands under, outermost first.
        hash: Of the text that was embedded, with titles and prompt.
        first_line: Where it begins in its file, if that has lines.
        last_line: Where it ends.
        page: Where it begins, if there are pages.
    """

    text: str
    titles: tuple[str, ...]
    hash: bytes
    first_line: int | None = None
    last_line: int | None = None
    page: int | None = None


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document of a file.

    Attributes:
        place: Which part of its file it is.
        title: Its title.
        fields: What it can be filtered by.
        chunks: Its chunks in order.
    """

    place: str
    title: str
    fields: Mapping[str, Any]
    chunks: Sequence[StoredChunk]


@dataclass(frozen=True, slots=True)
class FoundChunk:
    """A chunk with what it belongs to.

    Attributes:
        number: Of the chunk.
        document: The number of its document.
        path: Its file; empty for a record that was added.
        place: Which part of its file its document is.
        fields: Those of its document.
        chunk: The chunk itself.
    """

    number: int
    document: int
    path: str
    place: str
    fields: Mapping[str, Any]
    chunk: StoredChunk


@dataclass(frozen=True)
class Stats:
    """How much an index holds.

    Attributes:
        files: How many files, those that could not be read left out.
        documents: How many documents they have.
        chunks: How many chunks these have.
        vectors: How many vectors; equal chunks share one.
        size: Bytes on disk.
        failed: The files that could not be read, and why.
    """

    files: int
    documents: int
    chunks: int
    vectors: int
    size: int
    failed: tuple[tuple[str, str], ...]


class IndexStore(Protocol):
    """Where an index is kept. What `writing` encloses happens whole or not at all."""

    path: str
    about: IndexSettings
    writable: bool

    def writing(self) -> AbstractContextManager[None]:
        """A transaction; a reader sees nothing of it before its end."""

    def reading(self) -> AbstractContextManager[None]:
        """What is read within is of one moment."""

    def refresh(self) -> None:
        """Reads again what the index was made with; another process may have added paths."""

    def set_about(self, about: IndexSettings) -> None:
        """Replaces what the index was made with."""

    def files(self) -> dict[str, StoredFile]:
        """The files by their paths."""

    def known(self, hashes: Iterable[bytes]) -> set[bytes]:
        """The hashes of embedded texts that have a vector."""

    def put_vectors(self, vectors: Mapping[bytes, "Vector"]) -> None:
        """Puts vectors that no chunk has yet: those of a file that is put later."""

    def put(self, file: StoredFile, documents: Iterable[StoredDocument], vectors: Mapping[bytes, "Vector"]) -> None:
        """Puts a file in the place of what was there under its path; `vectors` are those that it does not have yet."""

    def put_documents(self, documents: Iterable[StoredDocument], vectors: Mapping[bytes, "Vector"]) -> None:
        """Puts records, each in the place of the one that has its `place`."""

    def touch(self, file: StoredFile) -> None:
        """Notes another time of a file whose content is the same."""

    def rename(self, path: str, new: str) -> None:
        """Gives a file another path."""

    def remove(self, paths: Iterable[str]) -> None:
        """Removes files with all that is theirs."""

    def remove_documents(self, places: Iterable[str]) -> int:
        """Removes records that were added; returns how many there were."""

    def prune(self) -> None:
        """Removes the vectors that no chunk has any more."""

    def nearest(self, vector: "Vector", count: int, only: Filter) -> Scores:
        """The chunks whose vectors are most similar to one; equal scores in the order of `documents_of`, as below."""

    def with_words(self, query: str, count: int, only: Filter) -> Scores:
        """The chunks that have words of a query, by BM25."""

    def reachable(self, query: str) -> float:
        """The BM25 of a chunk that has all words of a query, at most."""

    def word_for_word(self, query: str, count: int, only: Filter) -> Scores:
        """The chunks in which a query, or all that it puts between quotation marks, stands word for word."""

    def chunks(self, numbers: Sequence[int]) -> list[FoundChunk]:
        """The chunks with these numbers; those that are gone are left out."""

    def documents_of(self, chunks: Collection[int]) -> dict[int, int]:
        """The numbers of the documents of chunks, in the order of files, of records, and within these."""

    def around(self, number: int, before: int, after: int) -> list[FoundChunk]:
        """A chunk with its neighbours in its document, in order."""

    def chunk_at(self, path: str, line: int) -> int | None:
        """The number of the chunk of a file that holds a line; of a file without lines, of its first chunk."""

    def count(self, only: Filter) -> int:
        """How many documents a filter lets through."""

    def fields(self) -> list[str]:
        """What documents can be filtered by."""

    def stats(self) -> Stats:
        """How much there is."""

    def check(self) -> None:
        """Raises StoreError if something is damaged."""

    def close(self) -> None:
        """Closes it."""


def storable(text: str) -> str:
    """A text with U+FFFD for what no database stores: halves of surrogate pairs, and NUL."""
    return _NOT_TEXT.sub("\ufffd", text)


def now() -> str:
    """The time, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
