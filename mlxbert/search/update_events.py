"""The events of an index update."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mlxbert.results.short_repr import Brief


@dataclass(frozen=True)
class Scanned(Brief):
    """The files were listed; none has been read yet."""

    found: int  # the number of files
    changed: int  # the number of files that are new or have another size or time
    size: int  # the size of the changed files in bytes
    removed: int  # the number of files of the index that are gone
    left_out: Mapping[str, int]  # the number of files and folders that were left out, by reason


@dataclass(frozen=True)
class FileLeftOut(Brief):
    """A file or folder was left out."""

    path: str
    reason: str  # the reason in a word or two, such as `hidden` or `binary`


@dataclass(frozen=True)
class FileStarted(Brief):
    """A file begins to be read."""

    path: str
    size: int  # the size in bytes


@dataclass(frozen=True)
class FileRead(Brief):
    """A file was read; its chunks are still to be embedded."""

    path: str
    size: int  # the size in bytes
    chunks: int  # the number of texts to embed (a chunk has one or more), without texts that already have a vector
    guessed: str | None = None  # the field or column of its records that was guessed to hold the text


@dataclass(frozen=True)
class Embedded(Brief):
    """Some chunks were embedded."""

    chunks: int  # the number of texts embedded so far in this update; a chunk has one or more


@dataclass(frozen=True)
class FileIndexed(Brief):
    """A file was written to the index. It is not lost if the process is killed."""

    path: str
    documents: int  # the number of documents
    chunks: int  # the number of chunks


@dataclass(frozen=True)
class FileFailed(Brief):
    """A file could not be read. It is read again when it changes."""

    path: str
    reason: str


@dataclass(frozen=True)
class FileRemoved(Brief):
    """A file was removed from the index because it is gone."""

    path: str


@dataclass(frozen=True)
class IndexUpdated(Brief):
    """The index is up to date."""

    files: int  # the number of files in the index, without files that could not be read
    chunks: int  # the number of chunks in the index
    embedded: int  # the number of texts embedded in this update; a chunk has one or more
    reused: int  # the number of texts of new or changed files that already had a vector
    failed: int  # the number of files of the index that could not be read, now or earlier
    left_out: Mapping[str, int]  # the number of files and folders that were left out, by reason
    # The number of problems of the index (see `Index.problems`), by kind: `left out`, `cut`, `guessed`.
    problems: Mapping[str, int]
    seconds: float  # the duration of the update


Event: TypeAlias = (
    Scanned | FileLeftOut | FileStarted | FileRead | Embedded | FileIndexed | FileFailed | FileRemoved | IndexUpdated
)
