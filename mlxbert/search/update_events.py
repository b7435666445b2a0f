"""What happens while an index is brought up to date."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from mlxbert.results.brief import Brief


@dataclass(frozen=True)
class Scanned(Brief):
    """The files were looked at; none has been read yet.

    Attributes:
        found: How many files there are.
        changed: How many of them are new or have another size or time.
        size: Bytes of those.
        removed: How many files of the index are gone.
        left_out: How many files and folders were left out, by reason.
    """

    found: int
    changed: int
    size: int
    removed: int
    left_out: Mapping[str, int]


@dataclass(frozen=True)
class FileLeftOut(Brief):
    """A file or a folder that is not searched.

    Attributes:
        path: Its path.
        reason: Why, in a word or two: `hidden`, `binary`.
    """

    path: str
    reason: str


@dataclass(frozen=True)
class FileRead(Brief):
    """A file was read; its chunks are still to be embedded.

    Attributes:
        path: Its path.
        size: Its bytes.
        chunks: How many chunks it has that are to be embedded: equal ones have a vector already.
        guessed: The field or column of its records that was taken for the text.
    """

    path: str
    size: int
    chunks: int
    guessed: str | None = None


@dataclass(frozen=True)
class Embedded(Brief):
    """Some chunks were embedded.

    Attributes:
        chunks: How many so far, in this update.
    """

    chunks: int


@dataclass(frozen=True)
class FileIndexed(Brief):
    """A file is in the index; a kill from now on does not lose it.

    Attributes:
        path: Its path.
        documents: How many documents it has.
        chunks: How many chunks they have.
    """

    path: str
    documents: int
    chunks: int


@dataclass(frozen=True)
class FileFailed(Brief):
    """A file could not be read. It is tried again when it changes.

    Attributes:
        path: Its path.
        reason: Why.
    """

    path: str
    reason: str


@dataclass(frozen=True)
class FileRemoved(Brief):
    """A file of the index is gone.

    Attributes:
        path: Its path.
    """

    path: str


@dataclass(frozen=True)
class IndexUpdated(Brief):
    """The index is up to date.

    Attributes:
        files: How many files it holds, those that could not be read left out.
        chunks: How many chunks it holds.
        embedded: How many chunks were embedded in this update.
        reused: How many chunks of new or changed files had a vector already.
        failed: How many files of the index could not be read, now or earlier.
        left_out: How many files and folders were left out, by reason.
        seconds: How long the update took.
    """

    files: int
    chunks: int
    embedded: int
    reused: int
    failed: int
    left_out: Mapping[str, int]
    seconds: float


Event: TypeAlias = Scanned | FileLeftOut | FileRead | Embedded | FileIndexed | FileFailed | FileRemoved | IndexUpdated
