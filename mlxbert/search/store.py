"""The data of an index, and the interface of its store."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, NamedTuple, Protocol, TypeAlias

from mlxbert.errors import StoreError
from mlxbert.lazy_numpy import NDArray, np
from mlxbert.results.short_repr import Brief
from mlxbert.search.filters import Filter

Vector: TypeAlias = "NDArray[np.float32]"

Scores: TypeAlias = list[tuple[int, float]]  # numbers of chunks and their scores, best first
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
SCHEMA = 3  # the version of the stored data; others are refused
SPARSE_SCHEMA = 4  # the version of an index with sparse vectors, which has one more table
TOKENS_SCHEMA = 5  # the version of an index with token vectors, which has another table
KINDS = ("dense", "sparse")  # of vectors
_TOKEN_DTYPES = ("binary", "float16")


LANCE, S3 = "lance:", "s3://"  # prefixes of locations of Lance tables


@dataclass(frozen=True)
class IndexSettings:
    """The settings that an index was created with; everything that its vectors and chunks depend on."""

    model: str  # the name of the model, as the user gave it
    hash: str  # the fingerprint of the model (see `mlxbert.folders.fingerprint.hash_model`)
    dimensions: int  # the size of the model's vectors; of sparse ones, the size of the vocabulary
    similarity: str  # how vectors are compared (see `mlxbert.similarity`)
    pooling: str  # how token vectors are combined into one vector
    prompts: tuple[str, str]  # the prompts in front of a query and of a chunk
    tokens: int  # the maximum number of tokens of a chunk
    titles: bool  # whether titles and headings are embedded with a chunk
    unrelated: tuple[float, float]  # the mean and the standard deviation of the scores of unrelated texts
    roots: tuple[str, ...] = ()  # the absolute paths of the files and folders that the index covers
    include: tuple[str, ...] = ()  # patterns of the files to index; empty for all
    exclude: tuple[str, ...] = ()  # patterns of files to leave out
    text: str | None = None  # the field or column of a record to search in; `None` to guess it
    fields: tuple[str, ...] | None = None  # the fields of a record to filter by; `None` for all others
    encoding: str | None = None  # the encoding of files that neither name theirs nor are UTF-8; `None` to guess it
    created: str = ""  # the time of creation, in ISO 8601
    updated: str = ""  # the time of the last update
    kind: str = "dense"  # the kind of the vectors, `dense` or `sparse`
    token_size: int = 0  # the size of the token vectors that are kept next to each vector; 0 if there are none
    token_dtype: str = ""  # the dtype in which they are kept, `binary` or `float16`; empty if there are none
    # The mean and the standard deviation of the MaxSim of unrelated texts, per token of the query.
    unrelated_tokens: tuple[float, float] | tuple[()] = ()

    @property
    def is_sparse(self) -> bool:
        """Whether a vector is an array (K,) of tokens and weights (see `sparse_vectors`), not an array of floats."""
        return self.kind == "sparse"


class VectorWithTokens(NamedTuple):
    """A vector of a text with its token vectors."""

    vector: "Vector"  # float32 (W,)
    tokens: "NDArray[Any]"  # (T, …), in the dtype in which the index keeps them


StoredVector: TypeAlias = Any  # a vector or, in an index with token vectors, a `VectorWithTokens`


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of an index."""

    path: str  # the path; empty for records that were added
    size: int = 0  # the size in bytes
    changed: int = -1  # the time of the last change, in nanoseconds; -1 if the next change might have the same time
    hash: bytes = b""  # the hash of the content
    problem: str | None = None  # the reason why the file could not be read, if there is one
    left_out: bool = False  # whether `problem` is a reason to leave the file out rather than a failure


@dataclass(frozen=True, slots=True)
class StoredChunk:
    """A chunk of a document."""

    text: str  # the text that is shown and searched
    titles: tuple[str, ...]  # the titles and headings above the chunk, outermost first
    hashes: tuple[bytes, ...]  # the hash of the text that was embedded for each window, which includes the titles
    first_line: int | None = None  # the line on which the chunk begins, if its file has lines
    last_line: int | None = None  # the line on which the chunk ends
    page: int | None = None  # the page on which the chunk begins, if there are pages


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document of a file."""

    place: str  # the part of the file that the document is from
    title: str
    fields: Mapping[str, Any]  # the fields to filter by
    chunks: Sequence[StoredChunk]  # the chunks in order


@dataclass(frozen=True, slots=True)
class FoundChunk:
    """A chunk with its document and file."""

    number: int
    document: int  # the number of the document
    path: str  # the path of the file; empty for a record that was added
    place: str  # the part of the file that the document is from
    fields: Mapping[str, Any]  # the fields of the document
    chunk: StoredChunk  # the chunk itself


@dataclass(frozen=True)
class IndexProblem(Brief):
    """Something that an index could not take over from a file as it stands."""

    path: str | None  # the path of the file; `None` for a record that was added
    place: str  # the part of the file: `row 3`, `message 2`, the `id` of a record; empty for the whole file
    kind: str  # whether it was `left out`, `cut` or `guessed`
    reason: str  # what it was, and why
    more: int = 0  # the number of further problems like this one in the file, whose places are not kept


@dataclass(frozen=True)
class Stats:
    """The size of an index."""

    files: int  # the number of files, without files that could not be read
    documents: int  # the number of documents
    chunks: int  # the number of chunks
    vectors: int  # the number of vectors; a chunk has one or more, and equal texts share one
    size: int  # the size on disk in bytes
    failed: tuple[tuple[str, str], ...]  # the paths of files that could not be read, with reasons
    problems: Mapping[str, int]  # the number of problems (see `IndexProblem`), by kind


class IndexStore(Protocol):
    """The storage of an index. Changes within `writing` are atomic."""

    path: str
    about: IndexSettings
    writable: bool
    is_new: bool  # whether this object has created the index, rather than opened it
    seconds_per_transaction: float  # files are collected for so long before they are written together

    @property
    def own_paths(self) -> Sequence[str]:
        """The files and folders of the index itself, which no update reads."""

    def locked(self) -> AbstractContextManager[None]:
        """Within this context, no other process updates the index, unless several may do so at once.

        Raises:
            BusyError: Another process is updating the index.
        """

    def writing(self) -> AbstractContextManager[None]:
        """Within this context, changes are one transaction; readers see them only after its end."""

    def reading(self) -> AbstractContextManager[None]:
        """Within this context, everything that is read comes from the same state of the index."""

    def refresh(self) -> None:
        """Reads the settings again; another process may have added paths."""

    def set_about(self, about: IndexSettings) -> None:
        """Replaces the settings."""

    def files(self) -> dict[str, StoredFile]:
        """Returns the files, keyed by path."""

    def known(self, hashes: Iterable[bytes]) -> set[bytes]:
        """Returns the hashes of texts that have a stored vector."""

    def vectors(self, hashes: Collection[bytes]) -> "dict[bytes, Vector]":
        """Returns the stored vectors of texts by their hashes; missing ones are left out."""

    def vectors_with_tokens(self, hashes: Collection[bytes]) -> "dict[bytes, VectorWithTokens]":
        """Returns the stored vectors of texts with those of their tokens, as `vectors` does."""

    def put_vectors(self, vectors: "Mapping[bytes, StoredVector]") -> None:
        """Stores vectors ahead of their chunks, for a file that is stored later."""

    def put(
        self,
        file: StoredFile,
        documents: Iterable[StoredDocument],
        vectors: "Mapping[bytes, StoredVector]",
        problems: Iterable[IndexProblem] = (),
    ) -> None:
        """Stores a file with its documents and problems, replacing any file with the same path.

        `vectors` holds the vectors of the documents that are not stored yet.
        """

    def put_documents(
        self,
        documents: Iterable[StoredDocument],
        vectors: "Mapping[bytes, StoredVector]",
        problems: Iterable[IndexProblem] = (),
    ) -> None:
        """Stores records and the problems of records without chunks; each replaces the record with the same `place`."""

    def touch(self, file: StoredFile) -> None:
        """Updates the size and time of a file whose content has not changed."""

    def rename(self, path: str, new: str) -> None:
        """Changes the path of a file."""

    def remove(self, paths: Iterable[str]) -> None:
        """Removes files with their documents and chunks."""

    def remove_documents(self, places: Iterable[str]) -> int:
        """Removes added records; returns the number of records removed."""

    def prune(self) -> None:
        """Removes the vectors that no chunk uses."""

    def nearest(self, vector: "Vector", count: int, only: Filter) -> Scores:
        """Returns the chunks with the most similar vectors; equally similar chunks are sorted as in `documents_of`."""

    def begin_nearest(self, vector: "Vector", count: int, only: Filter) -> Callable[[], Scores]:
        """Begins `nearest`, in part on another thread; returns a function that waits for the result and returns it."""

    def similarities(self, vector: "Vector", chunks: Collection[int]) -> dict[int, float]:
        """Returns the similarity of the most similar vector of each chunk, as `nearest` does."""

    def tokens(self, chunks: Sequence[int]) -> "dict[int, list[NDArray[Any]]]":
        """Returns the token vectors of each window of each chunk, in the dtype in which they are kept."""

    def with_words(self, query: str, count: int, only: Filter) -> Scores:
        """Returns the chunks with the highest BM25 scores for the words of a query."""

    def word_weights(self, query: str) -> dict[tuple[str, ...], float]:
        """Returns the weights of the words and phrases of a query; see `word_search.word_weights`."""

    def word_for_word(self, query: str, count: int, only: Filter) -> Scores:
        """Returns the chunks that contain all quoted phrases of a query or, if it has none, the query as one phrase."""

    def chunks(self, numbers: Sequence[int]) -> list[FoundChunk]:
        """Returns the chunks with these numbers; missing chunks are left out."""

    def documents_of(self, chunks: Collection[int]) -> dict[int, int]:
        """Maps each of the chunks to its document; the chunks are sorted by file, record and position."""

    def around(self, number: int, before: int, after: int) -> list[FoundChunk]:
        """Returns a chunk and its neighbors in the document, in order."""

    def documents(self, path: str) -> Iterator[StoredDocument]:
        """Yields the documents of a file in order or, for an empty path, the records that were added."""

    def chunk_at(self, path: str, line: int) -> int | None:
        """Returns the number of the chunk that holds a line of a file; the first chunk if the file has no lines."""

    def size(self) -> int:
        """Returns the number of chunks."""

    def count(self, only: Filter) -> int:
        """Returns the number of documents that match a filter."""

    def fields(self) -> list[str]:
        """Returns the names of the fields to filter by."""

    def problems(self) -> list[IndexProblem]:
        """Returns the problems of all files, sorted by path; a file that could not be read is a problem itself."""

    def stats(self) -> Stats:
        """Returns the size of the index."""

    def check(self) -> None:
        """Raises StoreError if something is damaged."""

    def close(self) -> None:
        """Closes the store."""


def storable(text: str) -> str:
    """Replaces characters that no database stores (lone surrogates and NUL) with U+FFFD."""
    return _NOT_TEXT.sub("\ufffd", text)


def now() -> str:
    """Returns the current time in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def to_float16(path: str, vector: "Vector") -> "NDArray[np.float16]":
    """Converts a vector to the type in which stores keep it; raises StoreError if a value is too large for it."""
    with np.errstate(over="ignore"):
        stored = np.asarray(vector).astype(np.float16)
    if not np.isfinite(stored).all():
        raise StoreError(f"{path}: a vector has the value {abs(vector).max():.3g}, which is too large for float16")
    return stored


def finite_fields(document: StoredDocument) -> dict[str, Any]:
    """Returns the fields of a document, without infinity and NaN, which JSON does not have."""
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in document.fields.items()
    }


def settings_of(values: Mapping[str, Any]) -> IndexSettings:
    """Converts settings that were stored as JSON; raises ValueError or TypeError if they are invalid."""
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    about = IndexSettings(**{**values, **lists})
    texts = (
        *(about.model, about.hash, about.similarity, about.pooling, about.created, about.updated),
        *(about.text or "", about.encoding or ""),
        *(*about.prompts, *about.roots, *about.include, *about.exclude, *(about.fields or ())),
    )
    if not all(isinstance(text, str) for text in texts) or len(about.prompts) != 2:
        raise ValueError("the stored settings are invalid")
    sizes = about.dimensions, about.tokens, about.token_size + 1
    if not all(type(number) is int and 0 < number < 2**20 for number in sizes):
        raise ValueError("the size of vectors or chunks is invalid")
    if about.kind not in KINDS:
        raise ValueError("the kind of the vectors is unknown")
    if about.token_dtype not in (("",) if about.token_size == 0 else _TOKEN_DTYPES):
        raise ValueError("the dtype of the token vectors is unknown")
    if bool(about.unrelated_tokens) != bool(about.token_size):
        raise ValueError("the mean and deviation of MaxSim are missing, or not expected")
    for unrelated in (about.unrelated, about.unrelated_tokens or about.unrelated):
        finite = all(type(number) is float and isfinite(number) for number in unrelated)
        if not (len(unrelated) == 2 and finite and unrelated[1] > 0):
            raise ValueError("the stored mean and deviation of scores are invalid")
    return about
