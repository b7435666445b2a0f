"""The events of an index update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mlxbert.results.short_repr import Brief


@dataclass(frozen=True)
class Scanned(Brief):
    """The files were listed; none has been read yet.

    Attributes:
        found: The number of files.
        changed: The number of files that are new or have another size or time.
        size: The size of the changed files in bytes.
        removed: The number of files of the index that are gone.
        left_out: The number of files and folders that were left out, by reason.
    """

    found: int
    changed: int
    size: int
    removed: int
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class FileLeftOut(Brief):
    """A file or folder was left out.

    Attributes:
        path: The path.
        reason: The reason in a word or two, such as `hidden` or `binary`.
    """

    path: str
    reason: str


@dataclass(frozen=True)
class FileStarted(Brief):
    """A file begins to be read.

    Attributes:
        path: The path.
        size: The size in bytes.
    """

    path: str
    size: int


@dataclass(frozen=True)
class FileRead(Brief):
    """A file was read; its chunks are still to be embedded.

    Attributes:
        path: The path.
        size: The size in bytes.
        chunks: The number of texts to embed (a chunk has one or more), without texts that already have a vector.
        guessed: The field or column of its records that was guessed to hold the text.
    """

    path: str
    size: int
    chunks: int
    guessed: str | None = None


@dataclass(frozen=True)
class Embedded(Brief):
    """Some chunks were embedded.

    Attributes:
        chunks: The number of texts embedded so far in this update; a chunk has one or more.
    """

    chunks: int


@dataclass(frozen=True)
class FileIndexed(Brief):
    """A file was written to the index. It is not lost if the process is killed.

    Attributes:
        path: The path.
        documents: The number of documents.
        chunks: The number of chunks.
    """

    path: str
    documents: int
    chunks: int


@dataclass(frozen=True)
class FileFailed(Brief):
    """A file could not be read. It is read again when it changes.

    Attributes:
        path: The path.
        reason: The reason.
    """

    path: str
    reason: str


@dataclass(frozen=True)
class FileRemoved(Brief):
    """A file was removed from the index because it is gone.

    Attributes:
        path: The path.
    """

    path: str


@dataclass(frozen=True)
class IndexUpdated(Brief):
    """The index is up to date.

    Attributes:
        files: The number of files in the index, without files that could not be read.
        chunks: The number of chunks in the index.
        embedded: The number of texts embedded in this update; a chunk has one or more.
        reused: The number of texts of new or changed files that already had a vector.
        failed: The number of files of the index that could not be read, now or earlier.
        left_out: The number of files and folders that were left out, by reason.
        problems: The number of problems of the index (see `Index.problems`), by kind: `left out`, `cut`, `guessed`.
        seconds: The duration of the update.
    """

    files: int
    chunks: int
    embedded: int
    reused: int
    failed: int
    left_out: Mapping[str, int]
    problems: Mapping[str, int]
    seconds: float


Event: TypeAlias = (
    Scanned | FileLeftOut | FileStarted | FileRead | Embedded | FileIndexed | FileFailed | FileRemoved | IndexUpdated
)
